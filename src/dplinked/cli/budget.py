"""The commands ``dplinked budget …``: the steward keeps the ledger with them, and everybody may see what is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dplinked.cli.terminal import (
    Decimal,
    Encoding,
    Separator,
    Sheet,
    StudyFile,
    Thousands,
    as_written,
    check_writable,
    files_of,
    write_text,
)
from dplinked.errors import StudyError, raise_alone

if TYPE_CHECKING:
    from dplinked.data.format import File
    from dplinked.ledger.balance import Balance
    from dplinked.ledger.ledger import Ledger
    from dplinked.study.study import Study

app = typer.Typer(help="Budgets: who may still spend how much on whom.", no_args_is_help=True)
_STEWARD, _EVERYBODY = "Steward's commands", "Everybody's commands"


@app.command(rich_help_panel=_STEWARD)
def init(
    study: StudyFile,
    epsilon: Annotated[float, typer.Option(help="Epsilon of the whole budget.")],
    delta: Annotated[float, typer.Option(help="Delta of the whole budget.")],
    register: Annotated[list[Path] | None, typer.Option(help="Further files about the same people; repeat.")] = None,
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
) -> None:
    """Open a budget for the study's population, once, and register its data with the study's links and unit."""
    from dplinked.ledger.steward import Place, data_of, open_budget

    declared = _read_study(study)
    further = _further(
        register, separator=separator, decimal=decimal, thousands=thousands, encoding=encoding, sheet=sheet
    )
    opened = open_budget(Place.of(declared), declared, epsilon=epsilon, delta=delta, further=further)
    count = len(data_of(declared)) + len(further)
    typer.echo(f"Opened a budget of ({epsilon:g}, {delta:g}) for {opened.population!r}; {count} file(s) registered.")


@app.command("register", rich_help_panel=_STEWARD)
def register_files(
    study: StudyFile,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files about the same people; without any, the study's own data.")
    ] = None,
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
) -> None:
    """Register the study's data, or further files about its population, with the study's links and unit.

    From then on, a study of the data may protect more than this study does, and never less. The same file written otherwise is other data: say how it is written as in the command that links it.
    """
    from dplinked.ledger.steward import data_of, ledger_of, register

    declared = _read_study(study)
    further = _further(files, separator=separator, decimal=decimal, thousands=thousands, encoding=encoding, sheet=sheet)
    ledger, sources = ledger_of(declared), further or data_of(declared)
    if not sources:
        raise StudyError("There is nothing to register: name files, or add [data] to the study.")
    register(ledger, declared, sources)
    typer.echo(f"Registered {len(sources)} file(s) for {ledger.population!r}: they draw on the same budget.")


@app.command(rich_help_panel=_STEWARD)
def book(
    study: StudyFile,
    note: Annotated[str, typer.Option(help="What it was.")],
    epsilon: Annotated[float | None, typer.Option(help="Epsilon that was spent elsewhere.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta that was spent elsewhere: of a Gaussian release; 0 for any pure epsilon."),
    ] = None,
    accuracy: Annotated[
        Path | None,
        typer.Option(help="Instead of both: the accuracy.json of accuracies that were released without this ledger."),
    ] = None,
) -> None:
    """Book spending that happened outside the ledger."""
    if [epsilon is None, delta is None] != [accuracy is not None] * 2:
        raise StudyError("Say what was spent by --epsilon and --delta, or by --accuracy alone.")
    ledger = _ledger_of(study)
    if accuracy is not None:
        _book_accuracy(ledger, accuracy, note)
    elif epsilon is not None and delta is not None:
        ledger.book(epsilon=epsilon, delta=delta, note=note)
    _show_balance(ledger.balance())


@app.command(rich_help_panel=_STEWARD)
def verify(
    study: StudyFile,
    head: Annotated[str | None, typer.Option(help="The ledger head that a release printed.")] = None,
) -> None:
    """Check the ledger's chain and balance; with --head, that it was not rolled back since that release."""
    _show_balance(_ledger_of(study).verify(head))
    typer.echo("The chain holds.")


@app.command(rich_help_panel=_STEWARD)
def export(
    study: StudyFile,
    out: Annotated[Path, typer.Option(help="Where to write the events (JSON lines).")] = Path("ledger.jsonl"),
) -> None:
    """Write all events of the study's population, releases included, as JSON lines."""
    from dplinked.ledger.steward import events_as_lines, ledger_of

    declared = _read_study(study)
    check_writable(out, study, *files_of(declared))
    events = ledger_of(declared).events()
    write_text(out, events_as_lines(events))
    typer.echo(f"{len(events)} events written to {out}.")


@app.command(rich_help_panel=_EVERYBODY)
def show(study: StudyFile) -> None:
    """What was spent on what, what is left, and how many releases like the study's that allows."""
    from dplinked.fitting import release_mu
    from dplinked.ledger.account import budget_document
    from dplinked.report.text import write_text as as_text

    declared = _read_study(study)
    ledger = _ledger_of(study)
    asked = f"the one that this study asks for (epsilon = {declared.epsilon:g}, delta = {declared.delta:g})"
    typer.echo(as_text(budget_document(ledger.balance(), ledger.events(), release_mu(declared), asked)))


def _further(files: list[Path] | None, **options: list[str] | None) -> list[Path | File]:
    """Further files with how they are written; of the study's own data the study says it."""
    if not files and any(options.values()):
        raise StudyError(
            "How files are written is said of further files. Of its own data the study says it, in [data]."
        )
    return as_written(files or [], **options)


def _read_study(path: Path) -> Study:
    """Read a study. One without a ledger is refused."""
    from dplinked.ledger.steward import Place
    from dplinked.study.study import Study

    study = Study.from_toml(path)
    Place.of(study)
    return study


def _ledger_of(study: Path) -> Ledger:
    """Open the ledger that a study file names."""
    from dplinked.ledger.steward import ledger_of

    return ledger_of(_read_study(study))


def _book_accuracy(ledger: Ledger, accuracy: Path, note: str) -> None:
    """Book released accuracies by their epsilon and delta, or by what their secret sample cost."""
    from dplinked.linkage.secret_sample import SecretSample
    from dplinked.linker.release_accuracy import ReleasedAccuracy

    text = ""
    try:
        text = accuracy.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise_alone(StudyError(f"{accuracy.name!r} cannot be read. Name the accuracy.json of released accuracies."))
    released = ReleasedAccuracy.from_json(text)
    if isinstance(released.linkage.paid, SecretSample):
        ledger.book_sample(released.linkage.paid, note=note)
    else:
        ledger.book(epsilon=released.epsilon, delta=released.delta, note=note)


def _show_balance(balance: Balance) -> None:
    from dplinked.ledger.account import describe_balance

    typer.echo("\n".join([" ".join(describe_balance(balance)), f"Ledger head {balance.head}"]))
