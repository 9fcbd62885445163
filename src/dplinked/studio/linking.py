"""A linkage as it was asked for: kept between windows, done as a job, and written as a command and in Python."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dplinked.data.files import kind_of
from dplinked.data.fingerprint import source_state
from dplinked.data.format import File, split_file
from dplinked.errors import StudyError
from dplinked.linker.files import ACCURACY, AUDIT, FIRST, LINKAGE, PAGE, ROWS, SECOND, has_answers
from dplinked.linker.review import is_list_of
from dplinked.studio.draft import Changes, Draft
from dplinked.studio.files_page import in_python

if TYPE_CHECKING:
    from dplinked.linkage import ELE
    from dplinked.linker.linked import Linked
    from dplinked.linker.release_accuracy import ReleasedAccuracy
    from dplinked.studio.desk import Desk, Report

METHODS = ("rules", "splink")
_MARKS = {"separator": ",", "decimal": ".", "encoding": "utf-8"}  # what a command says of a file that declares nothing
_OF_LINKS = ("block", "fields", "carriers")  # settings of a linkage that follow from what was declared, not from rows


@dataclass(frozen=True)
class Request:
    """Everything that is declared of a linkage.

    Attributes
    ----------
    left, right
        The two files, as the page *Files* keeps them: a path within the studio's folder, and how the file is written.
    fields
        What is compared: the columns of both files, and the kind of the field.
    id
        The columns that name a record; None for row numbers.
    block
        Columns to link within.
    method, threshold, overlap, carriers
        As :func:`dplinked.link` takes them; `carriers` is None if links are one to one.
    out
        The folder that is written, within the studio's.
    size
        How many links to draw for a review, 0 for none.
    secret
        Whether they are drawn in secret.
    """

    left: Mapping[str, Any]
    right: Mapping[str, Any]
    fields: tuple[tuple[str, str, str], ...]
    id: tuple[str, str] | None = None
    block: tuple[str, ...] = ()
    method: str = "rules"
    threshold: float | None = None
    overlap: float | None = None
    carriers: int | None = None
    out: str = "linked"
    size: int = 400
    secret: bool = False

    def kept(self) -> dict[str, Any]:
        """All of it as values of JSON."""
        whole = {**self.__dict__, "left": dict(self.left), "right": dict(self.right)}
        lists = {
            name: [list(one) if isinstance(one, tuple) else one for one in whole[name] or ()]
            for name in ("fields", "id", "block")
        }
        return {**whole, **lists, "id": lists["id"] or None}

    @classmethod
    def from_kept(cls, kept: Any) -> Request | None:
        """What was kept; None if that is nothing of ours."""
        try:
            id = kept["id"]
            fields = tuple((str(left), str(right), str(kind)) for left, right, kind in kept["fields"])
            return cls(
                **{
                    **kept,
                    "fields": fields,
                    "id": None if id is None else (id[0], id[1]),
                    "block": tuple(kept["block"]),
                }
            )
        except (TypeError, KeyError, ValueError, IndexError):
            return None

    @property
    def key(self) -> str:
        """Name of the file with the key of a secret sample."""
        return f"{self.out}-audit.key"

    # --- done ------------------------------------------------------------------------------------

    def files(self, folder: Path) -> tuple[File | Path, File | Path]:
        """Both files."""
        return _file(self.left, folder), _file(self.right, folder)

    def link(self, folder: Path, report: Report | None = None) -> Linked:
        """Link the files."""
        import dplinked as dpl

        fields = [dpl.Field(left, kind, right=right) for left, right, kind in self.fields]
        left, right = self.files(folder)
        return dpl.link(
            left, right, fields=fields, id=self.id, block=list(self.block) or None, progress=report, **self._options()
        )

    def _options(self) -> dict[str, Any]:
        links = "one-to-one" if self.carriers is None else "many-to-one"
        given = {
            "method": self.method,
            "threshold": self.threshold,
            "overlap": self.overlap,
            "links": links,
            "carriers": self.carriers,
        }
        plain = {"threshold": None, "overlap": None, "links": "one-to-one", "carriers": None}
        return {name: value for name, value in given.items() if name not in plain or value != plain[name]}

    # --- the same elsewhere ------------------------------------------------------------------------

    def in_shell(self, *more: str) -> str | None:
        """The command that does the same in the studio's folder, with `more` options instead of a sample to draw; None if no command can say it."""
        written = self._written()
        if written is None or any("=" in left for left, _, _ in self.fields):
            return None
        words = ["dplinked", "link", self.left["path"], self.right["path"], "--out", self.out, *written]
        for left, right, kind in self.fields:
            words += ["--field", f"{left}:{kind}" if left == right else f"{left}={right}:{kind}"]
        if self.id is not None:
            words += ["--id", self.id[0], *(["--right-id", self.id[1]] if self.id[0] != self.id[1] else [])]
        for name in self.block:
            words += ["--block", name]
        for name, value in self._options().items():
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
        if not more and self.size:
            more = ("--audit-sample", str(self.size))
        if self.secret and self.size:
            more = (
                *more,
                *(() if "--audit-sample" in more else ("--audit-sample", str(self.size))),
                "--audit-key",
                self.key,
            )
        return shlex.join([*words, *more])

    def _written(self) -> list[str] | None:
        """How both files are written, as options of the command; None if it cannot be said."""
        words: list[str] = []
        own = [dict(side.get("options") or {}) for side in (self.left, self.right)]
        paths = [Path(side["path"]) for side in (self.left, self.right)]
        alike = kind_of(paths[0]) == kind_of(paths[1])
        for name in ("separator", "decimal", "thousands", "encoding", "sheet"):
            values = [options.get(name) for options in own]
            given = [value for value in values if value is not None]
            once = bool(given) and (values[0] == values[1] or (len(given) == 1 and not alike))
            said = (
                given[:1]
                if once
                else [
                    _default(name, path) if value is None else value for value, path in zip(values, paths, strict=True)
                ]
            )
            if given and None in said:
                return None
            for mark in said if given else ():
                words += [f"--{name}", "tab" if mark == "\t" else str(mark)]
        return words

    def in_python(self, folder: Path, *more: str) -> str:
        """Python lines that do the same in the studio's folder, ending with `more` instead of a sample to draw."""
        fields = [
            f"    dpl.Field({left!r}, {kind!r}{'' if left == right else f', right={right!r}'}),"
            for left, right, kind in self.fields
        ]
        options = {"id": self.id, "block": list(self.block) or None, **self._options()}
        given = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
        drawn = f", audit_sample={self.size}" if self.size else ""
        drawn += f", key={self.key!r}" if self.size and self.secret else ""
        return "\n".join([
            in_python(self.files(folder), folder), "fields = [", *fields, "]", f"linked = dpl.link(left, right, fields=fields{given})",
            *(more or (f"linked.save({self.out!r}{drawn})",)),
        ])  # fmt: skip


def _default(name: str, path: Path) -> str | None:
    """What a command says of a file that declares nothing; None if there is no word for it."""
    tabs = name == "separator" and ".tsv" in (suffix.lower() for suffix in path.suffixes)
    return "\t" if tabs else _MARKS.get(name)


def _file(kept: Mapping[str, Any], folder: Path) -> File | Path:
    options = dict(kept.get("options") or {})
    path = folder / str(kept["path"])
    return File(path, **options) if options else path


# --- jobs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MadeLinks:
    """Links that were made since the studio was started, and what was asked for."""

    request: Request
    linked: Linked


def link_files(request: Request, folder: Path, report: Report) -> MadeLinks:
    """Link both files, judge the links, and write what ``dplinked link`` writes. A list that is kept, since none is drawn, must be of these links."""
    linked = request.link(folder, report)
    if not request.size:
        _keep_list(linked, folder / request.out)
    judge(linked, report)
    report("Writing", 0, 0)
    linked.save(
        folder / request.out,
        audit_sample=request.size or None,
        key=folder / request.key if request.secret and request.size else None,
    )
    return MadeLinks(request, linked)


def _keep_list(linked: Linked, out: Path) -> None:
    """Leave a list of these links as it is, and take one of other links away; one that was answered is refused instead."""
    if not (out / AUDIT).is_file() or is_list_of(linked, out / AUDIT):
        return
    if any(has_answers(out / name) for name in (AUDIT, FIRST, SECOND)):
        raise StudyError(
            f"The answers in {out.name!r} are about other links than these, or about links that were drawn in secret, so they cannot be kept for these. Nothing was written. Name another folder on Link, "
            "or link with the settings that they were drawn with."
        )
    for name in (AUDIT, FIRST, SECOND):
        (out / name).unlink(missing_ok=True)


def judge(linked: Linked, report: Report) -> None:
    """Find out how good the links are, step by step; the linkage keeps what it found."""
    for done, name in enumerate(("matches", "estimates", "likely_duplicates")):
        report("Judging the links", done, 3)
        getattr(linked, name)


def links_of(desk: Desk, request: Request, report: Report) -> Linked:
    """The links as they were made: those that are at hand if both files are unchanged, else made again, which gives the same ones."""
    made = desk.results.get("link")
    if isinstance(made, MadeLinks) and made.request == request:
        states = [source_state(split_file(file)[0].resolve()) for file in request.files(desk.folder)]
        if list(made.linked.states) == states:
            return made.linked
    return request.link(desk.folder, report)


@dataclass(frozen=True)
class Price:
    """What a released accuracy costs, and whom it is charged to."""

    epsilon: float
    delta: float
    displaced: int = 0
    ledger: str | Path | None = None
    population: str | None = None
    key: Path | None = None

    def options(self, folder: Path) -> list[str]:
        """As options of a command that is run in the studio's folder."""
        words = [
            "--release-accuracy",
            f"{self.epsilon:g}",
            "--delta",
            f"{self.delta:g}",
            "--displaced-links",
            str(self.displaced),
        ]
        for name, value in (("ledger", self.ledger), ("population", self.population), ("ledger-key", self.key)):
            words += [] if value is None else [f"--{name}", _named(value, folder)]
        return words

    def arguments(self, folder: Path) -> str:
        """As arguments in Python."""
        named = {"ledger": self.ledger, "population": self.population, "ledger_key": self.key}
        more = "".join(f", {name}={_named(value, folder)!r}" for name, value in named.items() if value is not None)
        return f"epsilon={self.epsilon:g}, delta={self.delta:g}, unit=dpl.PrivacyUnit(displaced_links={self.displaced}){more}"


def _named(value: str | Path, folder: Path) -> str:
    path = Path(value)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(value)


def take_accuracy(desk: Desk, request: Request, price: Price | None, report: Report) -> ELE:
    """Read the answers back, take the accuracies as identifiers told them or release them, and write the linkage anew. A release is written even if the rest fails."""
    import dplinked as dpl

    folder, out = desk.folder, desk.folder / request.out
    linked = links_of(desk, request, report)
    report("Reading the answers", 0, 0)
    secret = (folder / request.key, request.size) if request.secret else (None, None)
    linked = linked.audited(out / AUDIT, key=secret[0], size=secret[1])
    judge(linked, report)
    if price is None:
        linkage = linked.linkage_by_identifiers()
        linked.save(out, linkage=linkage)
        return linkage
    report("Releasing the accuracy", 0, 0)
    paid: ReleasedAccuracy = dpl.release_accuracy(
        linked, epsilon=price.epsilon, delta=price.delta, unit=dpl.PrivacyUnit(displaced_links=price.displaced),
        ledger=price.ledger, population=price.population, ledger_key=price.key,
    )  # fmt: skip
    try:
        linked.save(out, linkage=paid.linkage)
    finally:
        paid.save(out / ACCURACY)
    return paid.linkage


# --- what the study takes from it ----------------------------------------------------------------------


def data_changes(draft: Draft, request: Request, folder: Path) -> Changes:
    """The settings of a study that say where the linked rows are, and by what they were linked. How good the links are is left to be said."""
    written = _section(folder / request.out)
    clean: Changes = {("data", key): None for key in draft.keys("data")}
    clean |= {("linkage", key): None for key in draft.keys("linkage")}
    links = {("linkage", key): written[key] for key in _OF_LINKS if key in written}
    return {**clean, ("data", "path"): f"{request.out}/{ROWS}", **links}


def accuracy_changes(draft: Draft, request: Request, folder: Path) -> Changes:
    """The settings of a study that say how good the links are, as the linkage was written."""
    clean: Changes = {("linkage", key): None for key in draft.keys("linkage")}
    return {**clean, **{("linkage", key): value for key, value in _section(folder / request.out).items()}}


def public_changes(draft: Draft, accuracy: float, checked: int) -> Changes:
    """The settings of a study whose accuracy is known from elsewhere."""
    kept = {key: draft.get("linkage", key) for key in _OF_LINKS}
    clean: Changes = {("linkage", key): None for key in draft.keys("linkage")}
    declared = {"accuracy": accuracy, "checked": checked, "source": "public", **kept}
    return {**clean, **{("linkage", key): value for key, value in declared.items() if value is not None}}


def _section(out: Path) -> dict[str, Any]:
    """The section that a linkage wrote for studies; empty if it wrote none."""
    try:
        found = tomllib.loads((out / LINKAGE).read_text(encoding="utf-8"))["linkage"]
    except (OSError, ValueError, KeyError):
        return {}
    return dict(found)


def released_before(out: Path) -> bool:
    """Whether a folder's linkage has an accuracy that was released and paid for."""
    return _section(out).get("source") == "released"


def page_of(out: Path) -> str | None:
    """The linkage's own page, if it is there."""
    try:
        return (out / PAGE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def was_written(out: Path, since: float) -> bool:
    """Whether links were written into a folder at a time or later."""
    rows = out / ROWS
    return rows.is_file() and rows.stat().st_mtime >= since - 0.05  # file systems' clocks are coarse


def quoted(names: Sequence[str]) -> str:
    """Names of columns in a sentence."""
    return ", ".join(f"'{name}'" for name in names)
