"""The command line: ``dplinked demo | link | check | plan | fit | report | budget | reproduce``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dplinked.errors import DplinkedError, ReleaseError, StudyError, raise_alone

app = typer.Typer(
    help="Differentially private linear regression on data joined by imperfect record linkage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_progress = Console(stderr=True)

StudyFile = Annotated[Path, typer.Argument(help="The study file (TOML).")]

DEMO_STUDY = """\
# Everything here is public: nothing was read from the data.
[data]
path = "linked.parquet"

[model]
formula = "consumption ~ income + C(region)"

[bounds]
income = [0, 150000]
consumption = [0, 120000]

[levels]
region = ["north", "south"]

[typical]
income = [15000, 50000]

[unit]
moves_block = false
displaced_links = 0

[privacy]
epsilon = 1.0
delta = 1e-6

"""
DEMO_FIELDS = ("given_name", "surname", "date_of_birth", "postcode", "address")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's files.")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=1_000, help="Number of generated people.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Seed of the generated data (never of the noise).")] = 1,
) -> None:
    """Generate two files about the same people, link them, fit privately, and report."""
    import pyarrow.csv

    import dplinked as dpl
    from dplinked.records import linkage_section
    from dplinked.simulate import review_links, two_files

    out.mkdir(parents=True, exist_ok=True)
    with _progress.status("Generating two files with typos, missing values and swapped fields …"):
        files = two_files(rows, seed, errors=2.0)
        pyarrow.csv.write_csv(files.left, out / "incomes.csv")
        pyarrow.csv.write_csv(files.right, out / "spending.csv")
    with _progress.status("Linking them without a common id …"):
        linked = dpl.link(
            out / "incomes.csv", out / "spending.csv", fields=DEMO_FIELDS, id="id", block="state", method="splink"
        )
        linked = linked.audited(review_links(linked.audit_sample(1000), files))
    with _progress.status("Releasing the linkage accuracy, then the regression …"):
        unit = dpl.PrivacyUnit(moves_block=False, displaced_links=0)
        accuracy = dpl.release_accuracy(linked, epsilon=0.3, delta=1e-6, unit=unit)
        linked.save(out, linkage=accuracy.linkage)
        (out / "study.toml").write_text(DEMO_STUDY + linkage_section(accuracy.linkage), encoding="utf-8")
        study = dpl.Study.from_toml(out / "study.toml")
        release = dpl.fit_study(study, study.data)
    release.save(out / "release.json")
    (out / "report.md").write_text(release.to_markdown() + "\n", encoding="utf-8")
    typer.echo(release.summary())
    naive = dpl.baseline.ols(linked.rows, study.formula, levels=study.levels).coef["income"]
    right = float((linked.links.right == files.truth).mean())
    typer.echo(
        f"\nThis data is generated, so the truth is known: {100 * right:.1f} % of the links are right (a review of 1,000 links and "
        f"\nnoise said {100 * linked.overall(accuracy.linkage):.1f} %), and the slope of income is 0.55. Least squares on the linked "
        f"rows, \nignoring the wrong links and privacy, gives {naive:.3f}; the private, corrected fit gives "
        f"{release.coef['income']:.3f}."
    )
    typer.echo(
        f"Written to {out}/: both files, linked.parquet, quality.html, study.toml, release.json, report.md. "
        f"Next: dplinked plan {out}/study.toml --rows {rows}"
    )


@app.command()
def link(
    left: Annotated[Path, typer.Argument(help="The file whose rows all stay (Parquet or CSV).")],
    right: Annotated[Path, typer.Argument(help="The file to link to it.")],
    out: Annotated[Path, typer.Option(help="Folder for linked.parquet, linkage.toml and the quality report.")] = Path(
        "linked"
    ),
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to compare, like surname, dob:date or forename=given_name:name; repeat. Default: all common ones."
        ),
    ] = None,
    id: Annotated[str | None, typer.Option(help="Column that names a record in both files.")] = None,
    right_id: Annotated[str | None, typer.Option(help="The right file's id column, if it has another name.")] = None,
    block: Annotated[list[str] | None, typer.Option(help="Column to link within; repeat to combine.")] = None,
    method: Annotated[str, typer.Option(help="rules, splink or pairs.")] = "rules",
    threshold: Annotated[float | None, typer.Option(help="Score (rules) or probability (splink) of a link.")] = None,
    assignment: Annotated[str, typer.Option(help="optimal, or greedy with random links for the rest.")] = "optimal",
    pairs: Annotated[Path | None, typer.Option(help="Links made elsewhere (with --method pairs).")] = None,
    settings: Annotated[Path | None, typer.Option(help="Splink's own settings (JSON).")] = None,
    engine: Annotated[str, typer.Option(help="Where Splink runs: duckdb or spark.")] = "duckdb",
    memory: Annotated[float, typer.Option(help="Gigabytes that the pairs of one block may take.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Of ties, random links and samples.")] = 0,
    audit_sample: Annotated[
        int | None, typer.Option(min=1, help="Write this many links to check into audit.csv.")
    ] = None,
    audited: Annotated[Path | None, typer.Option(help="The checked audit.csv, its column 'right' filled in.")] = None,
    release_accuracy: Annotated[
        float | None, typer.Option(help="Epsilon to release the audited accuracies with.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of --release-accuracy.")] = None,
    displaced_links: Annotated[
        int | None, typer.Option(min=0, help="With --release-accuracy: links one person may displace.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger to charge --release-accuracy to; both files are registered in it.")
    ] = None,
    population: Annotated[str | None, typer.Option(help="The population in the ledger.")] = None,
) -> None:
    """Steward: link two files one to one, and say how good the links are. NOT FOR PUBLICATION."""
    import dplinked as dpl
    from dplinked.linkage.fields import parse_field

    if release_accuracy is not None and (audited is None or delta is None or displaced_links is None):
        raise StudyError("--release-accuracy needs --audited, --delta and --displaced-links (0 holds links fixed).")
    _check_folder(out)
    inputs = {path.resolve() for path in (left, right, pairs, audited) if path is not None}
    if clash := inputs & {
        (out / name).resolve() for name in ("linked.parquet", "linkage.toml", "quality.txt", "quality.html")
    }:
        raise StudyError(f"{clash.pop().name!r} is read and would be overwritten. Choose another folder with --out.")
    audit_sample = audit_sample if audited is None else None  # the answers must not be overwritten
    with _progress.status("Linking …"):
        linked = dpl.link(
            left, right, fields=[parse_field(text) for text in field] if field else None,
            id=None if id is None else (id, right_id or id), block=block or None, method=method, threshold=threshold,
            assignment=assignment, pairs=pairs, settings=settings, engine=engine, memory=memory * 1e9, seed=seed,
        )  # fmt: skip
        linked = linked if audited is None else linked.audited(audited)
        paid: Any = None
        if release_accuracy is not None:
            unit = dpl.PrivacyUnit(displaced_links=displaced_links)
            paid = dpl.release_accuracy(
                linked, epsilon=release_accuracy, delta=delta or 0.0, unit=unit, ledger=ledger, population=population
            )
        written = linked.save(out, audit_sample=audit_sample, seed=seed, linkage=None if paid is None else paid.linkage)
        if paid is not None:
            paid.save(out / "accuracy.json")
            written.append("accuracy.json")
    typer.echo(linked.summary())
    typer.echo(f"\nWritten to {out}/: {', '.join(written)}.")
    if audit_sample is not None:
        typer.echo(
            f"Fill in the column 'right' of {out}/audit.csv (yes or no), then run the same command with --audited {out}/audit.csv."
        )


@app.command()
def check(study: StudyFile) -> None:
    """Steward: look at the data for what would stop or bias a release. NOT FOR PUBLICATION."""
    from dplinked.check import WARNING, check_study
    from dplinked.study import Study

    declared = Study.from_toml(study)
    findings = check_study(declared, _data_of(declared))
    typer.echo(WARNING)
    for finding in findings:
        typer.echo(f"{'FAULT ' if finding.fault else '      '}{finding.text}")
    if any(finding.fault for finding in findings):
        raise typer.Exit(StudyError.exit_code)


@app.command()
def plan(
    study: StudyFile,
    rows: Annotated[list[int], typer.Option(min=1, help="Number of rows, public; repeat to compare.")],
    epsilon: Annotated[list[float] | None, typer.Option(help="Budgets to compare; repeat the option.")] = None,
    r_squared: Annotated[float, typer.Option(min=0.0, max=1.0, help="Guessed R² of the model.")] = 0.5,
    half_width: Annotated[
        list[str] | None, typer.Option(help="Wanted half-width of a 95 % interval, like income=0.01.")
    ] = None,
) -> None:
    """Expected intervals over budgets and numbers of rows, from public values only. No data is opened."""
    from dplinked.estimate.planning import plan_study
    from dplinked.study import Study

    wanted = {}
    for text in half_width or []:
        name, _, value = text.rpartition("=")
        try:
            wanted[name] = float(value)
        except ValueError:
            raise StudyError(f"--half-width {text!r} must look like income=0.01.") from None
    typer.echo(str(plan_study(Study.from_toml(study), rows, epsilon or [0.1, 0.3, 1.0, 3.0], r_squared, wanted)))


@app.command()
def fit(
    study: StudyFile,
    out: Annotated[Path, typer.Option(help="Where to write the release (JSON).")] = Path("release.json"),
    id: Annotated[
        str | None,
        typer.Option(help="The release's name in the ledger; the same request under it again costs nothing."),
    ] = None,
) -> None:
    """Run a study: spend its budget and write the release."""
    from dplinked.fit import fit_study
    from dplinked.study import Study

    declared = Study.from_toml(study)
    if id is not None and declared.ledger is None:
        raise StudyError("--id names a release in a ledger, and the study has no [ledger].")
    _check_writable(out, study, declared.data, declared.ledger)
    with _progress.status("Fitting privately …"):
        release = fit_study(declared, _data_of(declared), release_id=id)
    try:
        release.save(out)
    except OSError:
        again = (
            "" if release.ledger is None else f" It is stored: run again with --id {release.ledger['id']}, at no cost."
        )
        raise_alone(ReleaseError(f"The release was made, but {str(out)!r} could not be written.{again}"))
    typer.echo(release.summary())
    typer.echo(f"\nWritten to {out}. Next: dplinked report {out}")


@app.command()
def report(
    release: Annotated[Path, typer.Argument(help="A release (JSON).")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to a file (.md or .txt).")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of text.")] = False,
) -> None:
    """Show a release as text or Markdown."""
    from dplinked.release import Release

    loaded = Release.load(release)
    text = loaded.to_markdown() if markdown or (out is not None and out.suffix == ".md") else loaded.summary()
    if out is None:
        typer.echo(text)
    else:
        _check_writable(out, release)
        _write(out, text + "\n")


budget = typer.Typer(help="Budgets: who may still spend how much on whom.", no_args_is_help=True)
app.add_typer(budget, name="budget")
_STEWARD, _EVERYBODY = "Steward's commands", "Everybody's commands"


@budget.command(rich_help_panel=_STEWARD)
def init(
    study: StudyFile,
    epsilon: Annotated[float, typer.Option(help="Epsilon of the whole budget.")],
    delta: Annotated[float, typer.Option(help="Delta of the whole budget.")],
    register: Annotated[list[Path] | None, typer.Option(help="Further files about the same people; repeat.")] = None,
) -> None:
    """Open a budget for the study's population, once, and register its data."""
    from dplinked.privacy.ledger import Ledger
    from dplinked.study import Study

    declared = Study.from_toml(study)
    if declared.ledger is None:
        raise StudyError("The study names no ledger: add [ledger] with url = 'budget.db' and population = '…'.")
    files = [*([declared.data] if declared.data is not None else []), *(register or [])]
    for file in files:
        if not file.is_file():
            raise StudyError(f"There is no file {file.name!r} to register.")
    opened = Ledger.create(declared.ledger, declared.population or "everybody", epsilon=epsilon, delta=delta)
    for file in files:
        opened.register(file)
    typer.echo(
        f"Opened a budget of ({epsilon:g}, {delta:g}) for {opened.population!r}; {len(files)} file(s) registered."
    )


@budget.command("register", rich_help_panel=_STEWARD)
def register_files(
    study: StudyFile, files: Annotated[list[Path], typer.Argument(help="Files about the same people.")]
) -> None:
    """Register further files, or changed ones, about the study's population."""
    ledger = _ledger_of(study)
    for file in files:
        ledger.register(file)
    typer.echo(f"Registered {len(files)} file(s) for {ledger.population!r}: they draw on the same budget.")


@budget.command(rich_help_panel=_STEWARD)
def book(
    study: StudyFile,
    epsilon: Annotated[float, typer.Option(help="Epsilon that was spent elsewhere.")],
    delta: Annotated[
        float, typer.Option(help="Delta that was spent elsewhere: of a Gaussian release; 0 for any pure epsilon.")
    ],
    note: Annotated[str, typer.Option(help="What it was.")],
) -> None:
    """Book spending that happened outside the ledger."""
    ledger = _ledger_of(study)
    ledger.book(epsilon=epsilon, delta=delta, note=note)
    _show_balance(ledger.balance())


@budget.command(rich_help_panel=_STEWARD)
def verify(
    study: StudyFile,
    head: Annotated[str | None, typer.Option(help="The ledger head that a release printed.")] = None,
) -> None:
    """Check the ledger's chain and balance; with --head, that it was not rolled back since that release."""
    _show_balance(_ledger_of(study).verify(head))
    typer.echo("The chain holds.")


@budget.command(rich_help_panel=_STEWARD)
def export(
    study: StudyFile,
    out: Annotated[Path, typer.Option(help="Where to write the events (JSON lines).")] = Path("ledger.jsonl"),
) -> None:
    """Write all events of the study's population, releases included, as JSON lines."""
    import json

    from dplinked.study import Study

    declared = Study.from_toml(study)
    _check_writable(out, study, declared.data, declared.ledger)
    events = _ledger_of(study).events()
    hidden = {"request", "nonce"}  # fingerprints, and what masks them
    lines = [
        json.dumps({k: v for k, v in event.__dict__.items() if k not in hidden}, ensure_ascii=False) for event in events
    ]
    _write(out, "\n".join(lines) + "\n")
    typer.echo(f"{len(events)} events written to {out}.")


@budget.command(rich_help_panel=_EVERYBODY)
def show(study: StudyFile) -> None:
    """What was spent, and what is left."""
    ledger = _ledger_of(study)
    _show_balance(ledger.balance())
    for event in ledger.events():
        if event.kind in ("charge", "booked", "failed"):
            typer.echo(f"  {event.time}  {event.kind:<7} {event.release or '':<20} {event.units / 1e15:.3g} of rho")


def _ledger_of(study: Path) -> Any:
    from dplinked.privacy.ledger import Ledger
    from dplinked.study import Study

    declared = Study.from_toml(study)
    if declared.ledger is None:
        raise StudyError("The study names no ledger: add [ledger] with url = 'budget.db' and population = '…'.")
    return Ledger(declared.ledger, declared.population)


def _show_balance(balance: Any) -> None:
    from dplinked.privacy.calibration import round_down

    share = 100.0 * balance.spent / balance.total if balance.total else 100.0
    typer.echo(
        f"Budget of {balance.population!r}: ({balance.epsilon:g}, {balance.delta:g}); {share:.2f} % of rho spent. Left: one release of "
        f"epsilon = {round_down(balance.epsilon_left)} at delta = {balance.delta:g}.\nLedger head {balance.head}"
    )


@app.command()
def reproduce(
    parts: Annotated[list[str], typer.Argument(help="setting1, setting2, setting3, application, toy or all.")],
    repetitions: Annotated[int, typer.Option(min=2, help="Repetitions of each point.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of data and simulated noise.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and the page.")] = Path("reproduction"),
    data: Annotated[
        Path | None, typer.Option(help="SHIW 2012 (columns y and c, or income and consumption), for the application.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Run the paper's numerical section: tables, figures, and its claims beside what was measured."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from dplinked.paper.reproduce import reproduce as run
    from dplinked.paper.reproduce import verdict

    _check_folder(out)
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*bars, console=_progress) as shown:
        task = shown.add_task("reproducing", total=None)
        found = run(
            parts, out, repetitions=repetitions, seed=seed, data=data, jobs=jobs,
            progress=lambda part, done, total: shown.update(task, description=part, completed=done, total=total),
        )  # fmt: skip
    for claim in found.claims:
        typer.echo(f"{verdict(claim):<14} {claim.setting:<12} {claim.text}: {claim.measured}")
    typer.echo(f"\nWritten to {out}/: tables (CSV), figures (PNG, SVG), reproduction.html.")


def _data_of(study: object) -> Path:
    from dplinked.study import Study

    assert isinstance(study, Study)
    if study.data is None:
        raise StudyError("The study names no data: add [data] with path = '…'.")
    return study.data


def _check_writable(path: Path, *read: str | Path | None) -> None:
    """Refuse an output that cannot be written, or that something is read from, before anything is spent."""
    try:
        folder, whole = path.resolve().parent, path.resolve()
        fine = not path.is_dir() and folder.is_dir() and os.access(path if path.exists() else folder, os.W_OK)
        clash = whole in {Path(name).resolve() for name in read if name is not None}
    except (OSError, ValueError):
        fine, clash = False, False
    if clash:
        raise StudyError(f"{path.name!r} is read and would be overwritten. Choose another file with --out.")
    if not fine:
        raise StudyError(f"{str(path)!r} cannot be written. Choose a file in an existing folder with --out.")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        raise_alone(StudyError(f"{str(path)!r} could not be written. Choose another file with --out."))


def _check_folder(path: Path) -> None:
    """Refuse a folder that cannot be written before any work is done."""
    parent = path if path.is_dir() else path.resolve().parent
    if (path.exists() and not path.is_dir()) or not parent.is_dir() or not os.access(parent, os.W_OK):
        raise StudyError(f"{str(path)!r} cannot be written. Name a folder in an existing one with --out.")


def main() -> None:
    """Run the command line; every error of ours becomes one line and its exit code."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except DplinkedError as error:
        typer.echo(f"dplinked: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("dplinked: interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's own usage errors
        typer.echo(f"dplinked: {usage() if usage else 'unexpected error; please report it'}", err=True)
        sys.exit(getattr(error, "exit_code", 1))


if __name__ == "__main__":
    main()
