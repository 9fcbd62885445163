"""``dplinked demo`` generates two files, links them, fits a regression privately and reports it.

Where nothing is installed that links files, its rows come linked.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dplinked.cli.terminal import progress
from dplinked.linkage import ELE

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
_WRITTEN = (
    "incomes.csv", "spending.csv", "linked.parquet", "quality.html", "study.toml", "release.json", "report.html", "report.md",
)  # fmt: skip
DEMO_FIELDS = ("given_name", "surname", "date_of_birth", "postcode", "address")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's files.")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=1_000, help="Number of generated people.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Seed of the generated data (never of the noise).")] = 1,
) -> None:
    """Generate two files about the same people, link them, fit privately, and report."""
    import dplinked as dpl
    from dplinked.linker.files import linkage_section

    out.mkdir(parents=True, exist_ok=True)
    linkage, said = _link_files(out, rows, seed) if find_spec("splink") else _take_linked_rows(out, rows, seed)
    with progress.status("Releasing the regression …"):
        (out / "study.toml").write_text(DEMO_STUDY + linkage_section(linkage), encoding="utf-8")
        study = dpl.Study.from_toml(out / "study.toml")
        release = dpl.fit_study(study, study.data)
        assert isinstance(release, dpl.Release)
    release.save(out / "release.json")
    (out / "report.md").write_text(release.to_markdown() + "\n", encoding="utf-8")
    release.to_html(out / "report.html")
    typer.echo(release.summary())
    naive = dpl.baseline.ols(out / "linked.parquet", study.formula, levels=study.levels).coef["income"]
    typer.echo(
        f"\nThis data is generated, so the truth is known: {said}, and the slope of income is 0.55."
        f"\nLeast squares on the linked rows, ignoring the wrong links and privacy, gives {naive:.3f};"
        f"\nthe private, corrected fit gives {release.coef['income']:.3f}."
    )
    written = [name for name in _WRITTEN if (out / name).exists()]
    typer.echo(f"Written to {out}/: {', '.join(written)}. Next: dplinked plan {out}/study.toml --rows {rows}")


def _link_files(out: Path, rows: int, seed: int) -> tuple[ELE, str]:
    """Write two files and link them. Returns the linkage, and what is known of it."""
    import pyarrow.csv

    import dplinked as dpl
    from dplinked.not_private.simulate.people import review_links, two_files

    with progress.status("Generating two files with typos, missing values and swapped fields …"):
        files = two_files(rows, seed, errors=2.0)
        pyarrow.csv.write_csv(files.left, out / "incomes.csv")
        pyarrow.csv.write_csv(files.right, out / "spending.csv")
    with progress.status("Linking them without a common id …"):
        linked = dpl.link(
            out / "incomes.csv", out / "spending.csv", fields=DEMO_FIELDS, id="id", block="state", method="splink"
        )
        linked = linked.audited(review_links(linked.audit_sample(1000), files))
        linkage = linked.linkage_by_identifiers()
        linked.save(out, linkage=linkage)
    correct, found = float((linked.links.right == files.truth).mean()), linked.overall(linkage)
    return linkage, (
        f"{100 * correct:.1f} % of the links are correct\n(a review of 1,000 links said {100 * found:.1f} %)"
    )


def _take_linked_rows(out: Path, rows: int, seed: int) -> tuple[ELE, str]:
    """Write rows that come linked. Returns the linkage, and what is known of it."""
    import pyarrow as pa
    import pyarrow.parquet

    import dplinked as dpl
    from dplinked.not_private.simulate.households import linked_households

    typer.echo(
        "Splink is not installed, so the demo's rows come linked. To see two files linked: pip install 'dplinked[linkage]'.\n"
    )
    pyarrow.parquet.write_table(pa.table(linked_households(rows, seed=seed)), out / "linked.parquet")
    linkage = dpl.ELE(accuracy=0.91, block="state", checked=1000, source="public")
    return linkage, "91 % of the links are correct"
