"""Who is let into the studio, and by which address."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener, url2pathname, urlopen

import pytest
from browsing import PATIENCE, see, wait_for

from dplinked.studio.guard import Guard
from dplinked.studio.serve import run_studio, write_redirect


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
        serving.join(PATIENCE)


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
        assert process.wait(PATIENCE) == 0
    assert (folder / "stderr.txt").read_text() == ""


def test_an_address_that_nobody_used_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: wait_for(lambda: bool(opened)))
    run_studio(folder / "study.toml", say=lambda _: None)
    page = Path(url2pathname(urlsplit(opened[0]).path))
    wait_for(lambda: not page.parent.exists())


@pytest.mark.slow
def test_another_port_gets_neither_cookie_nor_page(start: Any, folder: Path, harvester: Harvester) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    see(page, "The study is complete", ".state")
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
    see(page, "The study is complete", ".state")
    studio.asked = [url for url in studio.asked if not url.startswith("file:")]
