"""The commands of holders and of the analysis unit, where files may not be shared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from dplinked.errors import StudyError

if TYPE_CHECKING:
    import pyarrow as pa

_LARGE_BLOCK = 0.02  # share of records from which on the holder is told

Key = Annotated[Path | None, typer.Option(help="The file of the key that both holders share.")]
SchemaFile = Annotated[Path | None, typer.Option(help="What is encoded and how (TOML); the same at both holders.")]


def encode(
    file: Annotated[Path | None, typer.Argument(help="The holder's file.")] = None,
    key: Key = None,
    schema: SchemaFile = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file, which ends in .clk.")] = None,
    id: Annotated[str | None, typer.Option(help="Column that names a record; it stays with the holder.")] = None,
    analysis: Annotated[
        list[str] | None, typer.Option(help="Column for the analysis unit, under pseudonyms; repeat for several.")
    ] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make the key, once, and nothing else.")] = False,
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
) -> None:
    """Encode the fields by which people are known, so that a linkage unit can link files without seeing them."""
    from dplinked.linker.encodings import encode as holder

    if key is None:
        raise StudyError(
            "Name the key that both holders share: --key secret.key. One of them makes it once: dplinked encode --new-key --key secret.key."
        )
    if new_key:
        holder.new_key(key)
        typer.echo(
            f"Wrote {key}, which only you can read. Hand it to the other holder in person, and never to the linkage unit."
        )
        return
    if file is None or schema is None or out is None:
        raise StudyError(
            "Name the file, the schema and the output: dplinked encode persons.csv --key secret.key --schema fields.toml --out persons.clk."
        )
    for path in (file, key, schema):
        check_writable(out, path)
    holder.check_unwritten(out)
    (data,) = as_written(
        [file], separator=separator, decimal=decimal, thousands=thousands, encoding=encoding, sheet=sheet
    )
    with progress.status("Encoding …"), told_warnings():
        made = holder.encode(data, key=key, schema=schema, id=id, analysis=analysis or ())
        written = made.save(out)
    typer.echo(f"For the linkage unit: {written[0]}. Stays here: {written[1]}.")
    if len(written) > 2:
        typer.echo(f"For the analysis unit, under the same pseudonyms: {written[2]}.")
    for number, share in enumerate(made.largest_blocks(), 1):
        if share > _LARGE_BLOCK:
            typer.echo(
                f"Block key {number}: one block has {100 * share:.0f} % of the records. Whoever knows how common values are may tell whose it is: add a column to the key, at both holders."
            )


def answer(
    asked: Annotated[
        Path, typer.Argument(help="The list that the linkage unit sent (audit-left.csv or audit-right.csv).")
    ],
    file: Annotated[Path, typer.Argument(help="The holder's file, as it was encoded.")],
    own: Annotated[Path, typer.Option(help="The ….own.parquet that stayed with the holder.")],
    key: Annotated[Path, typer.Option(help="The file of the key that both holders share.")],
    schema: Annotated[Path, typer.Option(help="What is encoded and how (TOML); the same at both holders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The answer (CSV), for the linkage unit.")],
    id: Annotated[str | None, typer.Option(help="Column that names a record.")] = None,
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
) -> None:
    """Answer which records of an audit are alike, with keyed hashes that tell nothing else."""
    from dplinked.linker.encodings.audit import answer_audit

    (data,) = as_written(
        [file], separator=separator, decimal=decimal, thousands=thousands, encoding=encoding, sheet=sheet
    )
    answers = answer_audit(asked, data, own, key=key, schema=schema, id=id)
    count = answers.num_rows
    _write(answers, out)
    typer.echo(f"For the linkage unit: {out}, which answers for {count:,} links.")


def judge(
    sample: Annotated[Path, typer.Argument(help="The linkage unit's audit.csv.")],
    left: Annotated[Path, typer.Argument(help="The left holder's answer.")],
    right: Annotated[Path, typer.Argument(help="The right holder's answer.")],
) -> None:
    """Fill in an audit by what both holders answered. Then: dplinked link … --audited audit.csv."""
    from dplinked.linker.encodings.audit import compare_answers

    table = compare_answers(sample, left, right)
    _write(table, sample)
    right_ones = table["correct"].to_pylist().count("yes")
    typer.echo(
        f"{right_ones:,} of {table.num_rows:,} links are right, by the holders' answers. For the steward, not for publication."
    )


def join(
    links: Annotated[Path, typer.Argument(help="linked.parquet of the linkage unit.")],
    left: Annotated[Path, typer.Argument(help="The left holder's ….rows.parquet.")],
    right: Annotated[Path, typer.Argument(help="The right holder's ….rows.parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The joined rows (Parquet), for fit.")],
) -> None:
    """Join what holders handed over under pseudonyms, for a fit."""
    import pyarrow.parquet

    from dplinked.linker.encodings.link import join_encoded

    for path in (links, left, right):
        check_writable(out, path)
    pyarrow.parquet.write_table(join_encoded(links, left, right), out)
    typer.echo(
        f'Wrote {out}. Next: a study with [data] path = "{out.name}" and the [linkage] section that the linkage unit wrote.'
    )


def _write(table: pa.Table, path: Path) -> None:
    from dplinked.linker.audit import write_audit

    try:
        write_audit(table, path)
    except OSError:
        raise StudyError(f"{path.name!r} cannot be written. Name a file in an existing folder.") from None
