"""``dplinked demo`` generates two files, links them, fits a regression privately and reports it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dplinked.cli.terminal import progress

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


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's files.")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=1_000, help="Number of generated people.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Seed of the generated data (never of the noise).")] = 1,
) -> None:
    """Generate two files about the same people, link them, fit privately, and report."""
    import pyarrow.csv

    import dplinked as dpl
    from dplinked.linker.files import linkage_section
    from dplinked.not_private.simulate.people import review_links, two_files

    out.mkdir(parents=True, exist_ok=True)
    with progress.status("Generating two files with typos, missing values and swapped fields …"):
        files = two_files(rows, seed, errors=2.0)
        pyarrow.csv.write_csv(files.left, out / "incomes.csv")
        pyarrow.csv.write_csv(files.right, out / "spending.csv")
    with progress.status("Linking them without a common id …"):
        linked = dpl.link(
            out / "incomes.csv", out / "spending.csv", fields=DEMO_FIELDS, id="id", block="state", method="splink"
        )
        linked = linked.audited(review_links(linked.audit_sample(1000), files))
    with progress.status("Releasing the regression …"):
        linkage = linked.linkage_by_identifiers()
        linked.save(out, linkage=linkage)
        (out / "study.toml").write_text(DEMO_STUDY + linkage_section(linkage), encoding="utf-8")
        study = dpl.Study.from_toml(out / "study.toml")
        release = dpl.fit_study(study, study.data)
        assert isinstance(release, dpl.Release)
    release.save(out / "release.json")
    (out / "report.md").write_text(release.to_markdown() + "\n", encoding="utf-8")
    release.to_html(out / "report.html")
    typer.echo(release.summary())
    naive = dpl.baseline.ols(linked.rows, study.formula, levels=study.levels).coef["income"]
    correct = float((linked.links.right == files.truth).mean())
    typer.echo(
        f"\nThis data is generated, so the truth is known: {100 * correct:.1f} % of the links are correct (a review of 1,000 links "
        f"\nsaid {100 * linked.overall(linkage):.1f} %), and the slope of income is 0.55. Least squares on the linked "
        f"rows, \nignoring the wrong links and privacy, gives {naive:.3f}; the private, corrected fit gives "
        f"{release.coef['income']:.3f}."
    )
    typer.echo(
        f"Written to {out}/: both files, linked.parquet, quality.html, study.toml, release.json, report.html, report.md. "
        f"Next: dplinked plan {out}/study.toml --rows {rows}"
    )
