"""The command line: ``dplinked demo | check | plan | fit | report``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dplinked.errors import DplinkedError, StudyError

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

[linkage]
block = "state"
accuracy = 0.91

[unit]
moves_block = false
displaced_links = 0

[privacy]
epsilon = 1.0
delta = 1e-6
"""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's files.")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=1_000, help="Number of generated households.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Seed of the generated data (never of the noise).")] = 1,
) -> None:
    """Generate linked households, fit them privately, and report."""
    import pyarrow as pa
    import pyarrow.parquet

    import dplinked as dpl
    from dplinked.simulate import linked_households

    out.mkdir(parents=True, exist_ok=True)
    with _progress.status("Generating households with wrong links …"):
        table = pa.table(linked_households(rows, seed))
        pyarrow.parquet.write_table(table.drop_columns(["true_consumption"]), out / "linked.parquet")
        (out / "study.toml").write_text(DEMO_STUDY, encoding="utf-8")
    study = dpl.Study.from_toml(out / "study.toml")
    with _progress.status("Fitting privately …"):
        release = dpl.fit_study(study, study.data)
    release.save(out / "release.json")
    (out / "report.md").write_text(release.to_markdown() + "\n", encoding="utf-8")
    typer.echo(release.summary())
    naive = dpl.baseline.ols(table, study.formula, levels=study.levels).coef["income"]
    typer.echo(
        f"\nThis data is generated, so the truth is known: the slope of income is 0.55. Least squares on the linked rows, "
        f"\nignoring the wrong links and privacy, gives {naive:.3f}; the private, corrected fit gives "
        f"{release.coef['income']:.3f}."
    )
    typer.echo(
        f"Written to {out}/: linked.parquet, study.toml, release.json, report.md. Next: dplinked plan {out}/study.toml --rows {rows}"
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
) -> None:
    """Run a study: spend its budget and write the release."""
    from dplinked.fit import fit_study
    from dplinked.study import Study

    declared = Study.from_toml(study)
    _check_writable(out)
    with _progress.status("Fitting privately …"):
        release = fit_study(declared, _data_of(declared))
    release.save(out)
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
        _check_writable(out)
        out.write_text(text + "\n", encoding="utf-8")


def _data_of(study: object) -> Path:
    from dplinked.study import Study

    assert isinstance(study, Study)
    if study.data is None:
        raise StudyError("The study names no data: add [data] with path = '…'.")
    return study.data


def _check_writable(path: Path) -> None:
    """Refuse an output that cannot be written before anything is spent."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise StudyError(f"{str(path)!r} cannot be written. Choose a file in an existing folder with --out.")


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
