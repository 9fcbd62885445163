"""The command line: ``dplinked demo | link | dedupe | check | plan | fit | report | budget | reproduce | studio``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dplinked.cli import budget, encodings
from dplinked.cli.demo import demo
from dplinked.cli.limit import limit_rows
from dplinked.cli.terminal import (
    Decimal,
    Encoding,
    Separator,
    Sheet,
    StudyFile,
    Thousands,
    as_written,
    check_folder,
    check_writable,
    files_of,
    progress,
    progress_bar,
    reserved,
    run_app,
    told_warnings,
    write_text,
)
from dplinked.errors import ReleaseError, StudyError, raise_alone
from dplinked.report.files import HTML, check_ending

if TYPE_CHECKING:
    from dplinked.data.format import File
    from dplinked.data.sources import Query, SparkTable
    from dplinked.release.release import Release
    from dplinked.study.study import Study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    """Print the version and stop, if it was asked for."""
    if asked:
        from dplinked import __version__

        typer.echo(f"dplinked {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Differentially private linear, logistic and Poisson regression on data joined by imperfect record linkage."""


app.command()(demo)
app.add_typer(budget.app, name="budget")
for command in (encodings.encode, encodings.answer, encodings.judge, encodings.join):
    app.command()(command)


@app.command()
def link(
    left: Annotated[
        Path, typer.Argument(help="The file whose rows all stay (Parquet, CSV, Excel, Stata, SPSS or SAS).")
    ],
    right: Annotated[Path, typer.Argument(help="The file to link to it.")],
    out: Annotated[Path, typer.Option(help="Folder for linked.parquet, linkage.toml and the quality report.")] = Path(
        "linked"
    ),
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
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
    model: Annotated[
        Path | None, typer.Option(help="Link by this model, which --save-model wrote; nothing is trained again.")
    ] = None,
    save_model: Annotated[
        Path | None, typer.Option(help="Write the model (JSON), to link new records by. It is for the steward.")
    ] = None,
    overlap: Annotated[
        float | None, typer.Option(help="Share of the smaller file's people who are in the other file, if known.")
    ] = None,
    bands: Annotated[
        int | None, typer.Option(help="Divide groups into so many bands of like probabilities; fits hold links fixed.")
    ] = None,
    links: Annotated[
        str, typer.Option(help="one-to-one, or many-to-one: several rows may share a record of the right file.")
    ] = "one-to-one",
    carriers: Annotated[
        int | None, typer.Option(help="With --links many-to-one: how many rows may share a record.")
    ] = None,
    audit_sample: Annotated[
        int | None, typer.Option(min=1, help="Write about this many links to check into audit.csv.")
    ] = None,
    audit_key: Annotated[
        Path | None,
        typer.Option(
            help="Draw the links to check in secret, by the key in this file (made if it is not there). Keep it and audit.csv like the data, show them to nobody, and "
            "release from them once, however few were drawn. Give it and --audit-sample again with --audited."
        ),
    ] = None,
    audit_by: Annotated[
        str | None,
        typer.Option(
            help="Draw as many links to check of each level of this column; then nothing is released of them."
        ),
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(help="Tell in the report how good links are by this column; repeat.")
    ] = None,
    audited: Annotated[Path | None, typer.Option(help="The checked audit.csv, its column 'correct' filled in.")] = None,
    by_identifiers: Annotated[
        bool,
        typer.Option(
            "--by-identifiers",
            help="With --audited: take the accuracies as the check found them. Links were made and checked by identifiers alone, and fits hold links fixed.",
        ),
    ] = False,
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
    ledger_key: Annotated[
        Path | None, typer.Option(help="The file with the ledger's key, if it is not beside it.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Pay anew for accuracies that the ledger has stored.")] = False,
) -> None:
    """Steward: link two files, and say how good the links are. NOT FOR PUBLICATION."""
    import dplinked as dpl
    from dplinked.linker.fields import parse_field
    from dplinked.linker.files import ACCURACY, AUDIT, check_kept

    if release_accuracy is not None and (audited is None or delta is None or displaced_links is None):
        raise StudyError("--release-accuracy needs --audited, --delta and --displaced-links (0 holds links fixed).")
    if by_identifiers and (audited is None or release_accuracy is not None):
        raise StudyError(
            "--by-identifiers needs --audited, and does not go with --release-accuracy: choose one of them."
        )
    if audit_by is not None and audit_sample is None:
        raise StudyError("--audit-by needs --audit-sample: how many links are to be drawn.")
    if audit_key is not None and audit_sample is None:
        raise StudyError("--audit-key needs --audit-sample, also with --audited: how many links were to be drawn.")
    check_folder(out)
    filled_in = audited is not None and audited.resolve() == (out / AUDIT).resolve()  # with answers, none is written
    check_kept(out, left, right, pairs, audit_key, model, save_model, None if filled_in else audited)
    size = None if audit_key is None else audit_sample
    audit_sample = audit_sample if audited is None else None  # a new sample must not overwrite the answers
    files = as_written(
        [left, right], separator=separator, decimal=decimal, thousands=thousands, encoding=encoding, sheet=sheet
    )
    with progress.status("Linking …"), told_warnings():
        linked = dpl.link(
            *files, fields=[parse_field(text) for text in field] if field else None,
            id=None if id is None else (id, right_id or id), block=block or None, method=method, threshold=threshold,
            assignment=assignment, pairs=pairs, settings=settings, engine=engine, memory=memory * 1e9, seed=seed, overlap=overlap, model=model, links=links, carriers=carriers,
        )  # fmt: skip
        if save_model is not None:
            linked.save_model(save_model)
        linked = linked if bands is None else linked.banded(bands)
        linked = linked if audited is None else linked.audited(audited, key=audit_key, size=size)
        paid: Any = None
        if release_accuracy is not None:
            unit = dpl.PrivacyUnit(displaced_links=displaced_links)
            paid = dpl.release_accuracy(
                linked, epsilon=release_accuracy, delta=delta or 0.0, unit=unit, ledger=ledger, population=population,
                ledger_key=ledger_key, again=again,
            )  # fmt: skip
        known = linked.linkage_by_identifiers() if by_identifiers else None if paid is None else paid.linkage
        written = linked.save(
            out, audit_sample=audit_sample, seed=seed, key=audit_key, linkage=known, by=by or (), audit_by=audit_by
        )
        if paid is not None:
            paid.save(out / ACCURACY)
            written.append(ACCURACY)
    typer.echo(linked.summary(by or ()))
    typer.echo(f"\nWritten to {out}/: {', '.join(written)}.")
    if audit_sample is not None and linked.method == "encodings":
        typer.echo(
            f"Send {out}/audit-left.csv and {out}/audit-right.csv to the holders, who answer with 'dplinked answer'. Then: dplinked judge {out}/audit.csv LEFT RIGHT, and the same command "
            f"with --audited {out}/audit.csv."
        )
    elif audit_sample is not None:
        typer.echo(
            f"Fill in the column 'correct' of {out}/audit.csv (yes, no, or unsure, which counts as no), then run the same command with --audited {out}/audit.csv."
        )
        if audit_key is not None:
            typer.echo(
                f"Who was drawn is secret, and the promise rests on it: keep {out}/audit.csv and {audit_key.name} like the data, show them to nobody but the reviewers, and destroy "
                "them once the accuracies are released."
            )


@app.command()
def dedupe(
    data: Annotated[Path, typer.Argument(help="The file (Parquet, CSV, Excel, Stata, SPSS or SAS).")],
    field: Annotated[list[str], typer.Option(help="Column to compare, like surname or dob:date; repeat.")],
    out: Annotated[Path, typer.Option(help="Where to write one record of each person (Parquet).")] = Path(
        "unique.parquet"
    ),
    clusters: Annotated[
        Path | None,
        typer.Option(help="Where to write all records, with the person of each in the column 'cluster' (Parquet)."),
    ] = None,
    id: Annotated[str | None, typer.Option(help="Column that names a record.")] = None,
    least: Annotated[float, typer.Option(help="Least probability of two records that are joined.")] = 0.5,
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
) -> None:
    """Steward: find the records of one file that are the same person's. NOT FOR PUBLICATION."""
    import pyarrow.parquet

    import dplinked as dpl
    from dplinked.linker.fields import parse_field

    wanted = [path for path in (out, clusters) if path is not None]
    for path in wanted:
        check_writable(path, data)
        check_ending(path, (".parquet",))
    (file,) = as_written(
        [data], separator=separator, decimal=decimal, thousands=thousands, encoding=encoding, sheet=sheet
    )
    with progress.status("Comparing …"), told_warnings():
        found = dpl.dedupe(file, fields=[parse_field(text) for text in field], id=id, least=least)
        for path, table in zip(wanted, (found.unique, found.rows), strict=False):
            pyarrow.parquet.write_table(table, path)
    typer.echo(found.summary())
    typer.echo(f"\nWritten: {', '.join(map(str, wanted))}.")


app.command()(limit_rows)


@app.command()
def check(
    study: StudyFile,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write it as a page, too (.html). It is for the steward alone.")
    ] = None,
) -> None:
    """Steward: look at the data for what would stop or bend a release; ready is exit code 0, look again 10, not usable 11. NOT FOR PUBLICATION."""
    from dplinked.check import check_study
    from dplinked.check.findings import EXIT_CODES
    from dplinked.check.receipt import keep_receipt
    from dplinked.study.study import Study

    declared = Study.from_toml(study)
    if out is not None:
        check_writable(out, study, *files_of(declared))
        check_ending(out, HTML)
    seen = check_study(declared, _data_of(declared))
    keep_receipt(study, _data_of(declared))
    typer.echo(seen.summary())
    if out is not None:
        seen.to_html(out)
        typer.echo(f"\nWritten to {out}, for the steward alone.")
    raise typer.Exit(EXIT_CODES[seen.verdict])


@app.command()
def plan(
    study: StudyFile,
    rows: Annotated[list[int], typer.Option(min=10, help="Number of rows, public; repeat to compare.")],
    epsilon: Annotated[list[float] | None, typer.Option(help="Budgets to compare; repeat the option.")] = None,
    r_squared: Annotated[float, typer.Option(min=0.0, max=1.0, help="Guessed R² of the model.")] = 0.5,
    response_mean: Annotated[
        float | None, typer.Option(help="Guessed mean of events or counts: 0.02 for events on 2 % of the rows.")
    ] = None,
    subgroup: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Guessed share of rows for which the study's condition (where) holds."),
    ] = 0.1,
    half_width: Annotated[
        list[str] | None, typer.Option(help="Wanted half-width of a 95 % interval, like income=0.01.")
    ] = None,
    links: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Number of links that might be checked; repeat. Divides the study's budget between their accuracy and the fit.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a page with curves (HTML).")] = None,
) -> None:
    """Expected intervals over budgets and numbers of rows, from public values only. No data is opened."""
    from dplinked.plan.planning import plan_study
    from dplinked.plan.split import plan_split
    from dplinked.study.study import Study

    if out is not None:
        check_writable(out, study)
        check_ending(out, HTML)
    wanted = {}
    for text in half_width or []:
        name, _, value = text.rpartition("=")
        try:
            wanted[name] = float(value)
        except ValueError:
            raise StudyError(f"--half-width {text!r} must look like income=0.01.") from None
    declared = Study.from_toml(study)
    found = plan_study(declared, rows, epsilon or [0.1, 0.3, 1.0, 3.0], r_squared, wanted, response_mean, subgroup)
    typer.echo(str(found))
    if links:
        typer.echo(f"\n{plan_split(declared, rows[0], links, r_squared, response_mean)}")
    if out is not None:
        write_text(out, found.to_html())
        typer.echo(f"\nWritten to {out}.")


@app.command()
def fit(
    study: StudyFile,
    out: Annotated[Path, typer.Option(help="Where to write the release (JSON).")] = Path("release.json"),
    id: Annotated[str | None, typer.Option(help="The release's name in the ledger.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Pay anew, even if the ledger has the release of the same request.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there already.")] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Say nothing if the data was not looked at by 'dplinked check'.")
    ] = False,
) -> None:
    """Run a study: spend its budget and write the release. A request that the ledger has seen costs nothing."""
    from dplinked.check.receipt import was_checked
    from dplinked.fitting import fit_study
    from dplinked.study.study import Study

    declared = Study.from_toml(study)
    if (id is not None or again) and declared.ledger is None:
        raise StudyError("--id and --again concern a release in a ledger, and the study has no [ledger].")
    check_writable(out, study, *files_of(declared))
    check_ending(out, (".json",))  # `save` would refuse it, after the charge
    remind = not unchecked and not was_checked(study, _data_of(declared))  # a refusal is one message, so it comes after
    with reserved(out, force=force):
        with progress_bar("Fitting privately") as shown, told_warnings():
            release = fit_study(declared, _data_of(declared), release_id=id, again=again, progress=shown)
        try:
            release.save(out)
        except StudyError:
            stored = "" if release.ledger is None else " It is stored: run again with another --out, at no cost."
            raise_alone(ReleaseError(f"The release was made, but {str(out)!r} could not be written.{stored}"))
    if remind:
        typer.echo(
            f"dplinked: nobody has looked at this data with this study. Run: dplinked check {study} (--unchecked leaves this reminder out)",
            err=True,
        )
    typer.echo(release.summary())
    typer.echo(f"\nWritten to {out}. Next: dplinked report {out}")


@app.command()
def report(
    release: Annotated[Path, typer.Argument(help="A release (JSON).")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to a file: .html, .htm, .md, .tex, .csv or .txt.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of text.")] = False,
    board: Annotated[
        bool,
        typer.Option("--board", help="A text for an ethics board, filled in from the release: Markdown, or a page."),
    ] = False,
) -> None:
    """Show a release as text or Markdown; write it as a page, a LaTeX table or CSV, or as a text for an ethics board."""
    from dplinked.release.release import Release, no_release
    from dplinked.release.releases import forms_of, load_release

    loaded = load_release(release)
    kinds = {ending: write for ending, write in forms_of(loaded).items() if ending != ".json"}  # which it is already
    if board:
        if not isinstance(loaded, Release):
            loaded.for_the_board()  # refuses, and says what to write
        kinds = {".md": loaded.for_the_board, **dict.fromkeys(HTML, partial(_board_page, loaded))}
    if out is not None:
        check_writable(out, release)
        check_ending(out, [".md", ".txt"] if markdown and not board else list(kinds))
    ending = out.suffix.lower() if out else ""
    try:
        text = kinds[".md" if markdown or (board and not ending) else ending or ".txt"]()
    except Exception:  # values that are no release's, though they have its form
        raise_alone(no_release(release))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
        typer.echo(f"Written to {out}.")


def _board_page(release: Release) -> str:
    from dplinked.release.board import board_document
    from dplinked.report.html import write_page

    return write_page(board_document(release))


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
    radius: Annotated[
        float, typer.Option(min=1.0, help="C of the simulations, which the paper does not give; 1 is the smallest.")
    ] = 2.0,
    tight: Annotated[bool, typer.Option(help="Draw the tight mechanisms beside the paper's methods.")] = False,
) -> None:
    """Run the paper's numerical section: tables, figures, and its claims beside what was measured."""
    from dplinked.not_private.paper.claim import verdict
    from dplinked.not_private.paper.reproduce import reproduce as run

    check_folder(out)
    with progress_bar("reproducing") as shown:
        found = run(
            parts,
            out,
            repetitions=repetitions,
            seed=seed,
            data=data,
            radius=radius,
            tight=tight,
            jobs=jobs,
            progress=shown,
        )
    for claim in found.claims:
        typer.echo(f"{verdict(claim):<14} {claim.setting:<12} {claim.text}: {claim.measured}")
    typer.echo(f"\nWritten to {out}/: tables (CSV), figures (PNG, SVG), reproduction.html.")


@app.command()
def studio(
    study: Annotated[Path | None, typer.Argument(help="The study file to open; without one, a new study.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Open the studio, a web app on this machine only: write a study, check, plan, release, see the budget."""
    from dplinked.studio.serve import run_studio

    run_studio(study, port=port, browser=not no_browser, say=typer.echo)


def _data_of(study: Study) -> Path | File | Query | SparkTable:
    """Where the study's rows are. A study that does not say so is refused."""
    if study.data is None:
        raise StudyError("The study names no data: add [data] with path = '…', query = '…' or spark = '…'.")
    return study.data


def main() -> None:
    """Run the command line."""
    run_app(app)
