"""The studio: who is let in, and the whole path in a real browser."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener, url2pathname, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dplinked as dpl
from dplinked.simulate import linked_households
from dplinked.studio.desk import Desk, Fault, Job, Made, attempt
from dplinked.studio.draft import BLANK, Draft, formula_columns, list_from, table_from
from dplinked.studio.form import Fields, column_changes, counted_of, exposure_of, family_of, form, form_changes
from dplinked.studio.guard import Guard
from dplinked.studio.serve import run_studio, write_redirect
from studies import LEDGER_STUDY, STUDY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGES = ("study", "check", "plan", "release", "budget")
ODD = '<img src=x onerror="document.title=1">\'&amp;😀'  # a column's name

# --- the guard ---------------------------------------------------------------------------------------


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: str


class Host:
    """A guard on port 1234, and what is behind it."""

    def __init__(self) -> None:
        self.guard, self.passed = Guard(1234, self._app), 0
        self.token = urlsplit(self.guard.address).query

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed += 1
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"inside"})
        else:
            await send({"type": "websocket.accept"})

    def ask(
        self, query: str = "", *, kind: str = "http", method: str = "GET", path: str = "/", **headers: str
    ) -> Answer:
        given = {"host": "127.0.0.1:1234", **headers}
        scope = {
            "type": kind, "method": method, "path": path, "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": f"{kind}.connect"}

        asyncio.run(self.guard(scope, receive, send))
        if kind == "websocket":
            return Answer({"websocket.accept": 200, "websocket.close": 403}[sent[0]["type"]], {}, "")
        got = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], got, sent[1]["body"].decode())

    def enter(self) -> tuple[str, str]:
        """Use the address: the cookie, and the folder that it is for."""
        cookie, *options = self.ask(self.token).headers["set-cookie"].split("; ")
        return cookie, next(one.removeprefix("Path=") for one in options if one.startswith("Path="))


@pytest.fixture
def host() -> Host:
    return Host()


def test_the_address_works_once(host: Host) -> None:
    first = host.ask(host.token)
    assert first.status == 200
    folder = first.headers["refresh"].removeprefix("0; url=")
    assert re.fullmatch(r"/[\w-]{43}/", folder)
    assert {"HttpOnly", "SameSite=Strict", f"Path={folder}"} <= set(first.headers["set-cookie"].split("; "))
    assert folder.strip("/") not in first.headers["set-cookie"].split(";")[0]
    assert first.headers["referrer-policy"] == "no-referrer"
    assert host.token.removeprefix("token=") not in first.headers["set-cookie"] + first.body
    again = host.ask(host.token)
    assert again.status == 403
    assert "start it anew" in again.body
    assert "set-cookie" not in again.headers
    assert host.passed == 0


@pytest.mark.parametrize("query", ["", "token=", "token=wrong", "token=%ff", "token=\u00e9"])
def test_a_wrong_token_is_refused_and_uses_up_nothing(host: Host, query: str) -> None:
    assert host.ask(query).status == 403
    assert host.ask(f"{host.token}&{host.token}").status == 403
    assert host.ask(host.token, method="POST").status == 403
    assert host.ask(host.token, path="/session/1").status == 403
    assert host.passed == 0
    assert host.ask(host.token).status == 200


def test_the_cookie_opens_everything_in_its_folder(host: Host) -> None:
    cookie, folder = host.enter()
    inside = host.ask(path=f"{folder}session/1/download/x", cookie=f"other=1; {cookie}")
    assert (inside.status, inside.body) == (200, "inside")
    assert "default-src 'none'" in inside.headers["content-security-policy"]
    assert inside.headers["referrer-policy"] == "no-referrer"
    assert host.ask(host.token, cookie=cookie).status == 403  # the address works once, in the same browser too
    for wrong in (cookie[:-1], cookie + "x", cookie.replace("1234", "1235"), "=", "a=\x01"):
        assert host.ask(cookie=wrong, path=folder).status == 403
    assert host.ask(path=folder).status == 403


def test_the_cookie_opens_nothing_elsewhere(host: Host) -> None:
    """Whoever got the cookie, as servers on other ports could, does not get in without the folder's name."""
    cookie, folder = host.enter()
    wrong = folder.translate(str.maketrans("ab", "ba")).swapcase()
    for path in (
        "/",
        "",
        "/websocket/",
        "/session/1/download/x",
        "/lib/a.js",
        folder[:-1],
        folder[1:],
        wrong,
        f"/{folder}",
        f"/x{folder}",
    ):
        assert host.ask(path=path, cookie=cookie).status == 403
        assert host.ask(path=path, cookie=cookie, kind="websocket", origin="http://127.0.0.1:1234").status == 403
    assert host.passed == 0
    assert host.ask(path=folder, cookie=cookie).status == 200


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", "127.0.0.1:99", "evil.example:1234", ""])
def test_other_hosts_names_are_refused(host: Host, name: str) -> None:
    cookie, folder = host.enter()
    assert host.ask(cookie=cookie, path=folder, host=name).status == 403
    origin = "http://127.0.0.1:1234"
    assert host.ask(cookie=cookie, path=folder, kind="websocket", host=name, origin=origin).status == 403
    assert host.ask(cookie=cookie, path=folder, host="localhost:1234").status == 200


def test_the_socket_is_for_our_own_page(host: Host) -> None:
    (cookie, folder), ours = host.enter(), "http://127.0.0.1:1234"
    socket = f"{folder}websocket/"
    assert host.ask(kind="websocket", path=socket, cookie=cookie, origin=ours).status == 200
    assert host.ask(kind="websocket", path=socket, origin=ours).status == 403
    assert host.ask(kind="websocket", path=socket, cookie=cookie).status == 403
    for origin in ("http://evil.example", "http://127.0.0.1:99", "https://127.0.0.1:1234", "null"):
        assert host.ask(kind="websocket", path=socket, cookie=cookie, origin=origin).status == 403
        assert host.ask(method="POST", path=folder, cookie=cookie, origin=origin).status == 403


class Harvester(ThreadingHTTPServer):
    """Another user's server on this machine: it remembers whatever is sent to it."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.cookies: list[str] = []
        super().__init__(("127.0.0.1", 0), Harvest)
        self.port = int(self.server_address[1])
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Harvest(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Harvester)
        self.server.paths.append(self.path)
        self.server.cookies += self.headers.get_all("cookie", [])
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>harvest</title>")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def harvester() -> Iterator[Harvester]:
    with Harvester() as server:
        yield server
        server.shutdown()


@pytest.fixture
def served() -> Iterator[Guard]:
    """A guard on a port of this machine, with an app behind it that says where it was asked."""
    uvicorn = pytest.importorskip("uvicorn")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].removeprefix(scope["root_path"]).encode()})

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        guard = Guard(listening.getsockname()[1], app)
        server = uvicorn.Server(uvicorn.Config(guard, log_config=None, lifespan="off"))
        serving = threading.Thread(target=server.run, args=([listening],))
        serving.start()
        yield guard
        server.should_exit = True
        serving.join(10)


def test_a_server_on_another_port_gets_nothing_of_use(served: Guard, harvester: Harvester) -> None:
    """Like browsers, Python's cookie jar sends a host's cookies to all its ports."""
    jar = CookieJar()
    client = build_opener(HTTPCookieProcessor(jar))
    with client.open(served.address) as first:
        studio = urljoin(served.address, first.headers["refresh"].removeprefix("0; url="))
    with client.open(f"{studio}session/1") as inside:
        assert inside.read() == b"/session/1"
    for path in ("", "session/1", "websocket/", "?token=1"):
        with client.open(f"http://127.0.0.1:{harvester.port}/{path}"):
            pass
    assert len(harvester.paths) == 4
    assert harvester.cookies == []

    # even one that has the cookie does not get in without the folder's name
    (cookie,) = jar
    for path in ("/", "/session/1", "/websocket/"):
        request = Request(urljoin(served.address, path), headers={"Cookie": f"{cookie.name}={cookie.value}"})
        with pytest.raises(HTTPError) as refused:
            urlopen(request)
        assert refused.value.code == 403
        refused.value.close()


# --- the way into the browser ------------------------------------------------------------------------


def test_the_browsers_command_line_does_not_hold_the_token(folder: Path) -> None:
    """The browser is started with a page that only its owner can read, and that is removed as soon as it was used."""
    pytest.importorskip("shiny", reason="the studio needs Shiny: pip install 'dplinked[studio]'")
    seen = folder / "seen"
    browser = folder / "browser.sh"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.new\nmv {seen}.new {seen}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "dplinked.cli", "studio"]
    with (folder / "stderr.txt").open("w") as errors, subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "BROWSER": f"{browser} %s"}
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            address = next(line.strip() for line in process.stdout if "token=" in line)
            wait_for(seen.exists)
            started = seen.read_text().strip()
            assert "token" not in started
            assert urlsplit(address).query.removeprefix("token=") not in started
            page = Path(url2pathname(urlsplit(started).path))
            assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
            assert f'content="0; url={address}"' in page.read_text(encoding="utf-8")
            with urlopen(address) as first:
                assert "set-cookie" in first.headers
            wait_for(lambda: not page.parent.exists())
        finally:
            process.send_signal(2)
        assert process.wait(20) == 0
    assert (folder / "stderr.txt").read_text() == ""


def test_an_address_that_nobody_used_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: wait_for(lambda: bool(opened)))
    run_studio(folder / "study.toml", say=lambda _: None)
    page = Path(url2pathname(urlsplit(opened[0]).path))
    wait_for(lambda: not page.parent.exists())


def wait_for(done: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


# --- studies as text, and the desk -------------------------------------------------------------------


def test_a_draft_changes_what_was_asked_and_nothing_else() -> None:
    draft = Draft(0, "s.toml", LEDGER_STUDY)
    same = {("privacy", "epsilon"): 1, ("linkage", "accuracy"): 0.91, ("model", "ridge"): None, ("typical", "x"): []}
    assert draft.changed(same) == LEDGER_STUDY
    changed = draft.changed({("privacy", "epsilon"): 0.5, ("ledger", "url"): "", ("ledger", "population"): None})
    assert changed.splitlines()[0] == LEDGER_STUDY.splitlines()[0]
    assert "epsilon = 0.5" in changed
    assert "[ledger]" not in changed
    assert Draft(0, "s.toml", "not = = toml").sections is None


def test_a_moved_accuracy_is_known_no_better_than_the_declared_one() -> None:
    from dplinked.studio.plan_page import _sliders

    declared = dpl.ELE(0.75, block="k", checked=300, source="public", carriers=2)
    study = dpl.Study(formula="y ~ x", bounds={"x": (0, 1), "y": (0, 1)}, linkage=declared, epsilon=1.0, delta=1e-6)
    moved = _sliders({"accuracy": 0.9}.get, study)["linkage"]
    assert moved.accuracy_error == pytest.approx(0.025)
    assert (moved.accuracy, moved.block, moved.carriers) == (0.9, "k", 2)
    assert "linkage" not in _sliders({}.get, study)


class Sent:
    """What a browser sent for the form of a draft: values by the ids of fields."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __getitem__(self, id: str) -> Any:
        field = lambda: self.values[id]  # noqa: E731
        field.is_set = lambda: id in self.values
        return field


def test_the_form_keeps_a_matching_matrix() -> None:
    """It has no fields for one, so other settings change and the section stays, comments included."""
    section = '[linkage]\nmodel = "matching"  # by ids\npairs = "pairs.parquet"\nid = "person"\naccuracy_min = 0.5\n'
    text = BLANK.replace("[linkage]\n", section).replace(
        "displaced_links = 0", "displaced_links = 1\nlinkage_change = 1.0"
    )
    draft = Draft(3, "s.toml", text)
    fields = Fields(
        Sent(
            formula_3="y ~ x", path_3="r.csv", epsilon_3=0.5, delta_3=1e-6, displaced_3=2, change_3=1.0, moves_3=False
        ),
        draft,
        {},
    )
    page = str(form(draft, fields))
    assert "This form keeps it as it is" in page
    assert "Share of links that are right" not in page
    changed = draft.changed({**form_changes(draft, fields), ("bounds", "x"): [0, 1], ("bounds", "y"): [0, 1]})
    assert section in changed
    study = dpl.Study.from_text(changed, "folder")
    assert (study.epsilon, study.unit.displaced_links, study.linkage.id) == (0.5, 2, "person")
    assert study.linkage.pairs == Path("folder", "pairs.parquet")


EVENTS_STUDY = """\
[model]
formula = "died ~ age"
[bounds]
age = [0, 100]
died = [0, 1]
[typical]
died = [0, 1]
[linkage]
accuracy = 0.9
[privacy]
epsilon = 1.0
delta = 1e-6
"""


def form_text(text: str, sent: dict[str, Any]) -> str:
    """What the form makes of a text, as the browser sent its fields."""
    draft = Draft(0, "s.toml", text)
    fields = Fields(Sent(**{f"{name}_0": value for name, value in sent.items()}), draft, {"died": 0, "years": 1})
    chosen = (
        family_of(draft, fields),
        exposure_of(draft, fields),
        *(counted_of(draft, fields, name) for name in ("weights", "where")),
    )
    columns = formula_columns(draft.get("model", "formula"), [], *chosen)
    kept = {
        ("privacy", "epsilon"),
        ("privacy", "delta"),
        ("linkage", "accuracy"),
        ("model", "formula"),
    }  # not sent here
    changes = {key: value for key, value in form_changes(draft, fields).items() if key not in kept}
    return draft.changed({**changes, **column_changes(draft, fields, *columns)})


def test_the_form_makes_an_event_of_a_number() -> None:
    text = form_text(EVENTS_STUDY, {"family": "logistic", "levels_0": "no\nyes"})
    study = dpl.Study.from_text(text, "folder")
    assert (study.family, study.levels, list(study.bounds)) == ("logistic", {"died": ["no", "yes"]}, ["age"])
    assert formula_columns("C(died) ~ age", [], "logistic") == (["age"], ["died"])


def test_the_form_says_what_becomes_of_missing_cells() -> None:
    text = form_text(EVENTS_STUDY, {"missing": "fill"})
    assert dpl.Study.from_text(text, "folder").missing == "fill"
    assert dpl.Study.from_text(form_text(text, {"missing": "drop"}), "folder").missing == "drop"
    assert form_text(EVENTS_STUDY, {"missing": "drop"}) == EVENTS_STUDY


def test_the_form_gives_counts_an_exposure() -> None:
    sent = {"family": "poisson", "exposure": "years", "bounds0_1": 0.5, "bounds1_1": 2.0}
    text = form_text(EVENTS_STUDY, sent)
    study = dpl.Study.from_text(text, "folder")
    assert (study.family, study.exposure, study.bounds["years"]) == ("poisson", "years", [0.5, 2.0])
    again = form_text(text, {**sent, "family": "linear"})
    assert dpl.Study.from_text(again, "folder").family == "linear"
    assert "exposure" not in again


def test_the_form_shows_what_rows_count_by() -> None:
    """Columns of weights and conditions get bounds and levels like those of the formula."""
    where = "age > 3 and region == 'north' and w < 2"
    assert formula_columns("y ~ x", [], "linear", None, "w", where) == (["y", "x", "w", "age"], ["region"])
    assert formula_columns("y ~ x", [], "linear", None, "w", "age >") == (["y", "x", "w"], [])
    sent = {"family": "linear", "weights": "years", "where": "age > 50", "bounds0_1": 0.5, "bounds1_1": 2.0}
    text = form_text(EVENTS_STUDY, sent)
    assert 'weights = "years"' in text
    assert 'where = "age > 50"' in text
    assert form_text(text, {**sent, "weights": "", "where": ""}).count("where") == 0


def test_the_form_says_nothing_of_lines() -> None:
    assert form_text(EVENTS_STUDY, {"family": "linear", "exposure": ""}) == EVENTS_STUDY


def test_odd_names_survive_the_text() -> None:
    changes = {
        ("model", "formula"): f"`{ODD}` ~ x",
        ("bounds", ODD): [0, 1],
        ("bounds", "x"): [0.5, 2],
        ("linkage", "block"): f"{ODD}'s",
        ("linkage", "accuracy"): table_from(f"{ODD} = 0.9\n a = b = 0.8\n\n"),
        ("data", "path"): "x\n\u202e.csv",
    }
    study = dpl.Study.from_text(Draft(0, "", BLANK).changed(changes), "/tmp")
    assert study.bounds == {ODD: [0, 1], "x": [0.5, 2]}
    assert study.linkage == dpl.ELE({ODD: 0.9, "a = b": 0.8}, f"{ODD}'s")
    assert formula_columns(study.formula, []) == ([ODD, "x"], [])
    assert list_from("1\n two\n", [1, 2]) == [1, "two"]


def test_only_our_own_errors_are_shown() -> None:
    def fails() -> None:
        raise ValueError("a cell")

    assert attempt(fails) == Fault("Unexpected error; please report it.")
    refused = attempt(lambda: dpl.ELE(2.0))
    assert isinstance(refused, Fault)
    assert "accuracy must lie" in refused.text


@pytest.mark.parametrize("name", ["", "a", "../a.toml", "/etc/a.toml", "a/b.toml", "a\n.toml", ".toml/"])
def test_files_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(dpl.StudyError, match="is not a name for a study file"):
        desk.read(name)
    with pytest.raises(dpl.StudyError, match="is not a name for a study file"):
        desk.write(name, "", None)


def test_a_file_is_not_overwritten_unseen(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write("a.toml", "one", None)
    with pytest.raises(dpl.StudyError, match="is there already"):
        desk.write("a.toml", "two", None)
    desk.write("a.toml", "two", "one")
    assert desk.read("a.toml") == "two"
    assert (desk.study_files(), desk.free_name()) == (["a.toml"], "study.toml")


def test_one_release_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going, begun = threading.Event(), []

    def slow(*_: Any, progress: Any, **__: Any) -> Any:
        begun.append(progress("reading", 1, 2))
        going.wait(30)
        raise dpl.BudgetError("No.")

    monkeypatch.setattr("dplinked.studio.desk.fit_study", slow)
    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    desk.start(study, None)
    with pytest.raises(dpl.StudyError, match="is running already"):
        desk.start(study, None)
    going.set()
    made_on(desk)
    assert len(begun) == 1
    assert desk.job == Job(running=False, fault=Fault("No."))


def made_on(desk: Desk) -> tuple[Made, ...]:
    """What was made, as soon as nothing is running any more."""
    wait_for(lambda: desk.job is not None and not desk.job.running)
    return desk.made


def test_a_release_is_written_before_it_is_shown(folder: Path) -> None:
    (folder / "release.json").write_text("mine")
    (folder / "release-2.json").symlink_to(folder / "nowhere")
    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    desk.start(study, "first")
    (made,) = made_on(desk)
    assert (made.file, made.stored) == ("release-3.json", False)
    assert dpl.Release.load(folder / "release-3.json") == made.release
    assert (folder / "release.json").read_text() == "mine"
    assert not (folder / "nowhere").exists()

    desk.start(study, "first")  # the ledger has it: nothing is spent, and nothing is written twice
    again = made_on(desk)[-1]
    assert (again.file, again.stored, again.release) == ("release-3.json", True, made.release)
    desk.start(study, "second", again=True)
    another = made_on(desk)[-1]
    assert (another.file, another.stored) == ("release-4.json", False)


def test_a_release_that_cannot_be_written_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves no file that looks like a release, and the page keeps it."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    def open_full(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        opened = whole(path, mode, *rest, **options)
        if mode != "x":
            return opened
        opened.close()
        return Full()

    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    whole = Path.open
    monkeypatch.setattr(Path, "open", open_full)
    desk.start(study, None)
    (made,) = made_on(desk)
    assert {path for path in folder.iterdir() if path.suffix == ".json"} == set()
    assert isinstance(made.file, Fault)
    assert "could not be written to the study's folder" in made.file.text
    assert made.release.count == 2000
    assert desk.job == Job(running=False)


def test_paying_anew_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(*_: Any, again: bool, **__: Any) -> Any:
        asked.append(again)
        raise dpl.BudgetError("No.")

    monkeypatch.setattr("dplinked.studio.desk.fit_study", refuse)
    desk, study = Desk(folder), dpl.Study.from_toml(folder / "study.toml")
    desk.start(study, None)
    made_on(desk)
    desk.start(study, None, again=True)
    made_on(desk)
    assert asked == [False, True]


def test_it_says_why_it_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dpl.StudyError, match=r"no study file 'absent\.toml'"):
        run_studio(tmp_path / "absent.toml")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(dpl.StudyError, match="cannot be used"):
            run_studio(None, port=taken.getsockname()[1])
    monkeypatch.setattr("dplinked.studio.serve.find_spec", lambda name: None)
    with pytest.raises(dpl.StudyError, match="pip install 'dplinked"):
        run_studio(None)


def test_the_library_does_not_load_the_studio() -> None:
    code = "import sys, dplinked, dplinked.cli.main; print([m for m in sys.modules if 'studio' in m or m in ('shiny', 'uvicorn')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- in a browser ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data, a study of it, and a budget for four releases of epsilon 1."""
    table = pa.table(linked_households(2_000, 1)).drop_columns(["true_consumption"])
    pq.write_table(table, tmp_path / "linked.parquet")
    (tmp_path / "study.toml").write_text(LEDGER_STUDY, encoding="utf-8")
    ledger = dpl.Ledger.create(tmp_path / "budget.db", "households", epsilon=1.5, delta=1e-6)
    ledger.register(tmp_path / "linked.parquet", linkage=dpl.ELE(0.91, block="state"))
    return tmp_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("shiny", reason="the studio needs Shiny: pip install 'dplinked[studio]'")
    api = pytest.importorskip("playwright.sync_api", reason="browser tests need Playwright")
    if CHROMIUM is None:
        pytest.skip("browser tests need Chromium: apt install chromium")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM)
        yield launched
        launched.close()


class Studio:
    """A running studio, and windows in it."""

    def __init__(self, browser: Any, *arguments: object, cwd: Path) -> None:
        command = [sys.executable, "-m", "dplinked.cli", "studio", "--no-browser", *map(str, arguments)]
        self.errors = cwd / "stderr.txt"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        self.address = next(line.strip() for line in self.process.stdout if "token=" in line)
        self.origin = self.address.split("/?")[0]
        self._browser, self._contexts = browser, []
        self.asked: list[str] = []
        self.logged: list[str] = []

    def open(self, width: int = 1280, scheme: str = "light", address: str | None = None) -> Any:
        """A window of a browser of its own at the printed address, or at another one."""
        context = self._browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(20_000)
        self._contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url.replace("ws://", "http://")))
        page.on("console", lambda message: self.logged.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.logged.append(str(error)))
        page.goto(address or self.address)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        self.process.send_signal(2)
        assert self.process.wait(20) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self.errors.read_text() == ""
        assert {url[: len(self.origin)] for url in self.asked} <= {self.origin}, "something was loaded from elsewhere"
        assert [line for line in self.logged if "404" not in line and "403" not in line] == []  # no icon; refusals


@pytest.fixture
def start(browser: Any, folder: Path) -> Iterator[Any]:
    begun: list[Studio] = []

    def begin(*arguments: object) -> Studio:
        begun.append(Studio(browser, *arguments, cwd=folder))
        return begun[-1]

    yield begin
    for studio in begun:
        studio.close()


def go(page: Any, name: str) -> None:
    link = page.locator(f"a[data-value={name}]")
    if not link.is_visible():
        page.get_by_role("button", name="Toggle navigation").click()
    link.click()
    page.locator(f".tab-pane.active[data-value={name}]").wait_for()


def see(page: Any, text: str | re.Pattern[str], kind: str = ".note") -> None:
    page.locator(f".tab-pane.active {kind}").filter(has_text=text).first.wait_for()


def settle(page: Any) -> None:
    """Wait until the server has nothing more to say."""
    page.wait_for_timeout(300)
    page.locator("html:not(.shiny-busy)").wait_for(state="attached")


def release(page: Any, name: str = "", *, anew: bool = False) -> None:
    go(page, "release")
    page.get_by_label("Name of this release").fill(name)
    page.get_by_label("Pay anew").set_checked(anew)
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").click()


def left(page: Any) -> float:
    """Epsilon that the page Budget says is left."""
    go(page, "budget")
    page.get_by_role("button", name="Read again").click()
    settle(page)
    told = page.locator(".tab-pane.active .lead").inner_text()
    return float(re.search(r"one release of epsilon = ([\d.]+)", told)[1])  # type: ignore[index]


def drag(page: Any, label: str, by: int) -> None:
    handle = page.locator(f".shiny-input-container:has(label:text-is({json.dumps(label)})) .irs-handle").last
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + by, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()


def fetch(page: Any, button: str) -> tuple[str, str]:
    with page.expect_download() as waiting:
        page.get_by_role("link", name=button).click()
    return waiting.value.suggested_filename, waiting.value.path().read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_whole_path(start: Any, folder: Path) -> None:
    (folder / "study.toml").unlink()
    studio = start()
    page = studio.open()
    see(page, "lacks 'formula'")

    # write a study
    page.get_by_label("Data file").fill("linked.parquet")
    page.get_by_label("Formula").fill("consumption ~ income + C(region)")
    page.get_by_label("Formula").press("Tab")
    see(page, "lacks 'accuracy'")
    for name, value in {
        "consumption: Lowest": "0", "consumption: Highest": "120000", "income: Lowest": "0", "income: Highest": "150000",
        "income: Typical from": "15000", "income: to": "50000", "region: Levels": "north\nsouth",
        "Block column": "state", "Share of links that are right": "0.91", "Ledger": "budget.db", "Population": "households",
    }.items():  # fmt: skip
        page.get_by_label(name).fill(value)
    see(page, "The study is complete")
    see(page, "Not saved")
    page.get_by_role("button", name="Save").click()
    see(page, "'study.toml' is saved")
    assert fetch(page, "Download study file") == ("study.toml", (folder / "study.toml").read_text(encoding="utf-8"))
    study = dpl.Study.from_toml(folder / "study.toml")
    wanted = dpl.Study.from_text(LEDGER_STUDY, folder)
    assert study == wanted

    # check
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "FOR THE STEWARD ONLY, NOT FOR PUBLICATION")
    see(page, "Ready: nothing was seen", ".good")
    see(page, "2,000 rows; all declared columns are there", "li")

    # plan: a larger epsilon, narrower intervals
    go(page, "plan")
    page.get_by_label("Number of rows").fill("2000")
    cell = page.locator("tr:visible", has_text="income").locator("td").first
    see(page, "At 2,000 rows, epsilon = 1,", ".hint")
    before = float(cell.inner_text()[1:])
    drag(page, "Epsilon", 60)
    see(page, re.compile(r"At 2,000 rows, epsilon = ([2-9]|1\.\d)"), ".hint")
    assert float(cell.inner_text()[1:]) < before
    assert page.locator("figure svg").get_attribute("aria-label").startswith("Expected 95 % intervals")

    page.get_by_role("button", name="Use these settings").click()
    see(page, "Not saved")
    assert float(page.get_by_label("Epsilon of").input_value()) > 1
    page.get_by_label("Epsilon of").fill("1")

    # release, and see the budget fall
    go(page, "release")
    see(page, "the budget of households", "td")
    whole = left(page)
    release(page, "first")
    page.frame_locator("iframe.report").get_by_role("heading", level=1).wait_for()
    assert page.locator("iframe.report").get_attribute("sandbox") == ""
    rest = left(page)
    assert rest < whole
    see(page, "first", "th")
    go(page, "release")
    see(page, "Written to 'release.json' in the study's folder.", ".good")
    name, text = fetch(page, "Download release")
    assert (folder / "release.json").read_text(encoding="utf-8") == text
    made = dpl.Release.from_json(text)
    assert (name, made.count, made.ledger.id) == ("release.json", 2000, "first")
    name, text = fetch(page, "Download report")
    assert name == "report.html"
    assert "differentially private" in text

    # the same name again costs nothing; a third one, paid anew, is more than is left
    release(page, "first")
    page.get_by_label("Releases since the studio was started").wait_for()
    see(page, "The ledger had this release already")
    see(page, "Written to 'release.json'", ".good")
    assert left(page) == rest
    release(page, "second", anew=True)
    page.get_by_label("Releases since the studio was started").locator("option", has_text="3. ").wait_for(
        state="attached"
    )
    go(page, "release")
    see(page, "more than is left", "td")
    release(page, anew=True)
    see(page, "The budget of 'households' does not allow this release")
    assert len(dpl.Ledger(folder / "budget.db").events()) == 6  # opened, registered, two charges with their releases
    page.reload()
    go(page, "release")
    page.locator("iframe.report").wait_for()  # what was paid for is not lost with a window
    see(page, "Written to 'release-2.json'", ".good")


@pytest.mark.slow
def test_counts_ask_for_an_exposure_and_events_for_levels(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open()
    see(page, "The study is complete")
    exposure = page.get_by_label("Column of exposures")
    assert not exposure.is_visible()
    page.get_by_label("The response is").select_option("poisson")
    exposure.wait_for()
    see(page, "family='poisson' takes counts")
    page.get_by_label("The response is").select_option("logistic")
    page.get_by_label("consumption: Levels").fill("no\nyes")
    see(page, "The study is complete")
    go(page, "plan")
    page.get_by_label("Share of rows with the event").wait_for()
    see(page, "events on 10 % of the rows", ".hint")
    page.get_by_label("Share of rows with the event").fill("0.3")
    see(page, "events on 30 % of the rows", ".hint")
    page.get_by_role("columnheader", name="of the odds ratio").wait_for()


@pytest.mark.slow
def test_refusals(start: Any, folder: Path) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    see(page, "The study is complete")
    assert re.fullmatch(re.escape(studio.origin) + r"/[\w-]{43}/", page.url)

    other = studio.open()
    assert "The studio's address works once" in other.inner_text("main")
    assert other.goto(f"{studio.origin}/?token=wrong").status == 403
    assert other.goto(f"{studio.origin}/lib/shiny-1/shiny.min.js").status == 403
    assert other.goto(page.url).status == 403  # the address that the first browser shows
    assert page.goto(studio.address).status == 403  # the browser that is in, at the old address
    page.go_back()
    see(page, "The study is complete")
    page.reload()
    see(page, "The study is complete")

    for label, value, told in (
        ("Epsilon of", "-1", "epsilon must be"), ("Epsilon of", "50", "large_epsilon"), ("Share of links", "1.5", "accuracy must lie"),
        ("income: Highest", "-3", "low one must come first"), ("Formula", "consumption ~ scale(income)", "not supported"),
    ):  # fmt: skip
        field = page.get_by_label(label)
        right = field.input_value()
        field.fill(value)
        field.press("Tab")
        see(page, told, ".bad")
        for name in ("release", "plan", "budget"):
            go(page, name)
            see(page, told, ".bad")
        assert page.get_by_role("button", name="Release …").count() == 0
        go(page, "study")
        field.fill(right)
        field.press("Tab")
        see(page, "The study is complete")

    page.get_by_role("button", name="Edit as text").click()
    page.get_by_label("Study file (TOML)").fill("epsilon = = 1")
    page.get_by_role("button", name="Use this text").click()
    see(page, "is not valid TOML")
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_role("button", name="Discard them").click()
    see(page, "The study is complete")
    page.get_by_label("Data file").fill("absent.parquet")
    release(page)
    see(page, "not registered", ".bad")
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "no file", "li")


@pytest.mark.slow
def test_another_port_gets_neither_cookie_nor_page(start: Any, folder: Path, harvester: Harvester) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    see(page, "The study is complete")
    visit = page.context.new_page()
    visit.goto(f"http://127.0.0.1:{harvester.port}/")
    told = visit.evaluate(
        """async studio => {
            const socket = new Promise(done => {
                const one = new WebSocket(studio.replace('http', 'ws') + '/websocket/');
                one.onopen = () => done('open');
                one.onerror = () => done('refused');
            });
            const own = await fetch('/websocket/').then(answer => answer.status);
            return [await socket, own, document.cookie];
        }""",
        studio.origin,
    )
    assert told == ["refused", 200, ""]
    assert "/websocket/" in harvester.paths
    assert harvester.cookies == []

    # with the cookie, but without the folder's name, nobody gets in
    (cookie,) = page.context.cookies(page.url)
    for path in ("/", "/websocket/", "/session/1/download/x"):
        request = Request(studio.origin + path, headers={"Cookie": f"{cookie['name']}={cookie['value']}"})
        with pytest.raises(HTTPError, match="403"):
            urlopen(request)


@pytest.mark.slow
def test_the_redirecting_page_leads_in(start: Any, folder: Path) -> None:
    """From a file, in a browser: the strict cookie is sent all the same."""
    studio = start(folder / "study.toml")
    page = studio.open(address=write_redirect(folder, studio.address).as_uri())
    see(page, "The study is complete")
    studio.asked = [url for url in studio.asked if not url.startswith("file:")]


OVERLAPS = """() => {
  const seen = node => { const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    return box.width > 1 && box.height > 1 && style.visibility == 'visible' && !['absolute', 'fixed'].includes(style.position) };
  const parts_of = node => [...node.children].flatMap(
    part => getComputedStyle(part).display == 'contents' ? parts_of(part) : [part]);
  const found = [];
  for (const parent of document.querySelectorAll('nav *, .tab-pane.active, .tab-pane.active *')) {
    if (parent.closest('svg, .irs, table')) continue;
    const parts = parts_of(parent).filter(seen);
    for (let i = 0; i < parts.length; i++) for (let j = i + 1; j < parts.length; j++) {
      const a = parts[i].getBoundingClientRect(), b = parts[j].getBoundingClientRect();
      if (getComputedStyle(parts[i]).display == 'inline' || getComputedStyle(parts[j]).display == 'inline') continue;
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
        found.push(parts[i].outerHTML.slice(0, 80) + ' / ' + parts[j].outerHTML.slice(0, 80));
    } }
  for (const node of document.querySelectorAll('.tab-pane.active *')) {
    if (node.closest('svg, .irs, .scroll, .visually-hidden') || !seen(node)) continue;
    if (node.getBoundingClientRect().right > innerWidth + 1) found.push('beyond the edge: ' + node.outerHTML.slice(0, 80));
    if (node.scrollWidth > node.clientWidth + 1 && node.clientWidth && !['INPUT', 'TEXTAREA', 'SELECT'].includes(node.tagName)
        && getComputedStyle(node).display != 'inline') found.push('wider than it is: ' + node.outerHTML.slice(0, 80));
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page scrolls sideways');
  return found;
}"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark"), (1280, "dark"), (400, "light")])
def test_every_page_is_readable(start: Any, folder: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    studio = start(folder / "study.toml")
    page = studio.open(width, scheme)
    see(page, "The study is complete")
    assert page.evaluate("document.documentElement.dataset.bsTheme") == scheme

    def look(name: str) -> None:
        page.wait_for_timeout(300)
        assert page.evaluate(OVERLAPS) == [], name
        found = axe.run(page).response["violations"]
        shown = [
            (one["id"], node["html"], node["failureSummary"])
            for one in found
            for node in one["nodes"]
            if one["impact"] in ("serious", "critical")
        ]
        assert shown == [], name

    look("study")
    page.get_by_role("button", name="Edit as text").click()
    page.get_by_label("Study file (TOML)").wait_for()
    look("text")
    page.get_by_role("button", name="Cancel").click()
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, "rows", "li")
    look("check")
    go(page, "plan")
    page.locator("figure svg").wait_for()
    look("plan")
    go(page, "release")
    page.get_by_role("button", name="Release …").click()
    page.get_by_role("button", name="Spend it and release").wait_for()
    look("question")
    page.get_by_role("button", name="Spend it and release").click()
    page.locator("iframe.report").wait_for()
    look("release")
    go(page, "budget")
    see(page, "release", "td")
    look("budget")
    go(page, "study")
    page.get_by_label("Epsilon of").fill("-1")
    see(page, "epsilon must be")
    look("fault")

    # planted faults are noticed
    page.add_style_tag(content=".hint { color: #808080 !important }")
    found = axe.run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] == "serious"] == ["color-contrast"]
    page.add_style_tag(content="h1 { margin-bottom: -3rem !important }")
    assert page.evaluate(OVERLAPS) != []


@pytest.mark.slow
def test_odd_names_are_shown_as_text(start: Any, folder: Path) -> None:
    table = pq.read_table(folder / "linked.parquet")
    pq.write_table(
        table.rename_columns([{"income": ODD, "region": ODD + "2"}.get(name, name) for name in table.column_names]),
        folder / "odd.parquet",
    )
    text = STUDY.replace("linked.parquet", "odd.parquet")
    text = text.replace("~ income + C(region)", f"~ `{ODD}` + C(`{ODD}2`)".replace('"', '\\"'))
    quoted = json.dumps(ODD, ensure_ascii=False)
    text = text.replace("income =", f"{quoted} =").replace("region =", f"{json.dumps(ODD + '2', ensure_ascii=False)} =")
    (folder / f"<b>{'x' * 40}<b>'😀.toml").write_text(text, encoding="utf-8")
    studio = start(folder / f"<b>{'x' * 40}<b>'😀.toml")
    page = studio.open(400)
    see(page, "The study is complete")
    page.get_by_label(f"{ODD}: Lowest").wait_for()
    page.get_by_label(f"{ODD}2: Levels").wait_for()
    page.get_by_label("Data file").fill(ODD)
    see(page, "Not saved")
    page.get_by_label("Data file").fill("odd.parquet")
    see(page, "is saved")
    go(page, "check")
    page.get_by_role("button", name="Look at the data").click()
    see(page, ODD, "#check_found th")
    go(page, "plan")
    page.get_by_text(f"Bounds of {ODD}").wait_for()
    see(page, ODD, "th")
    page.locator("figure svg").wait_for()
    release(page)
    page.frame_locator("iframe.report").get_by_text(ODD).first.wait_for()
    for name in PAGES:
        go(page, name)
        page.wait_for_timeout(200)
        assert page.locator(".tab-pane.active img, .tab-pane.active b").count() == 0
        assert page.evaluate(OVERLAPS) == []
    assert page.title() == "dplinked studio"
