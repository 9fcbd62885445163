"""``dplinked limit-rows`` keeps at most so many rows of each person or household, before files are linked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dplinked.cli.terminal import (
    Decimal,
    Encoding,
    Separator,
    Sheet,
    Thousands,
    as_written,
    check_writable,
    progress,
    told_warnings,
)
from dplinked.report.files import check_ending


def limit_rows(
    data: Annotated[Path, typer.Argument(help="The file (Parquet, CSV, Excel, Stata, SPSS or SAS).")],
    id: Annotated[str, typer.Option(help="Column that says which rows belong to one person, or one household.")],
    rows: Annotated[int, typer.Option(min=1, help="How many rows of each are kept.")],
    key: Annotated[
        str, typer.Option(help="Any text, chosen before the rows were seen: which rows are kept follows from its hash.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the rows that are kept (Parquet).")],
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
) -> None:
    """Steward: keep at most so many rows of each person, by a rule that depends on nobody's cells. NOT FOR PUBLICATION."""
    import pyarrow.parquet

    import dplinked as dpl
    from dplinked.data.arrow import to_arrow
    from dplinked.data.look import tell_format

    check_writable(out, data)
    check_ending(out, (".parquet",))
    (file,) = as_written(
        [data], separator=separator, decimal=decimal, thousands=thousands, encoding=encoding, sheet=sheet
    )
    with progress.status("Reading …"), told_warnings():
        tell_format(file)
        table = to_arrow(file, "data")
        kept = dpl.limit_rows(table, id=id, rows=rows, key=key)
        pyarrow.parquet.write_table(kept, out)
    typer.echo(f"Kept {kept.num_rows:,} of {table.num_rows:,} rows, at most {rows} of each {id}: {out}.")
