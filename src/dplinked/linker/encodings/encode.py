"""A holder's side: records become filters under pseudonyms, and nothing else leaves the house."""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import column_texts, to_arrow
from dplinked.data.look import tell_format
from dplinked.errors import StudyError, plain_faults, raise_alone, shown
from dplinked.ledger.key import create_key, read_key
from dplinked.linker.checks import check_file, require_column
from dplinked.linker.encodings.filters import Texts, block_keys, derive, make_filters
from dplinked.linker.encodings.schema import Schema, read_schema
from dplinked.linker.fields import guess_kind
from dplinked.report.words import list_names

if TYPE_CHECKING:
    import pyarrow as pa

ENCODING = "encoding"
PSEUDONYM, FILTER, BLOCK = "pseudonym", "filter", "block"
FORMAT = b"1"
_OWN = ".own.parquet"  # what stays with the holder
_ROWS = ".rows.parquet"  # what the analysis unit gets
_IDENTIFYING = ("name", "id", "date", "postcode")  # kinds of columns that tell who somebody is


@dataclass(frozen=True, repr=False)
class Encoded:
    """An encoded file.

    Attributes
    ----------
    table
        What the linkage unit gets: pseudonyms, filters and block keys, in random order.
    own
        What stays with the holder: the pseudonym of each record, in the file's order.
    rows
        What the analysis unit gets: pseudonyms and the columns of the analysis, in random order; None if no columns were named.
    """

    table: pa.Table
    own: pa.Table
    rows: pa.Table | None

    def __repr__(self) -> str:
        return f"Encoded({self.table.num_rows:,} records)"

    def largest_blocks(self) -> tuple[float, ...]:
        """For each block key the share of records in its largest block. FOR THE HOLDER: whoever knows how common values are may tell whose a large block is."""
        import pyarrow.compute as pc

        keys = [self.table[name] for name in self.table.column_names if name.startswith(BLOCK)]
        return tuple((pc.max(pc.value_counts(one.drop_null()).field("counts")).as_py() or 0) / len(one) for one in keys)

    @plain_faults
    def save(self, path: str | Path) -> list[Path]:
        """Write ``….clk`` for the linkage unit, ``….rows.parquet`` for the analysis unit, and ``….own.parquet``, which stays. Only their owner can read them.

        What is there already is not written over: pseudonyms are drawn anew, so that neither audits nor links of the files that were sent could be told any more, and two encodings of one file tell more than one.
        """
        import pyarrow.parquet

        path = Path(path)
        check_unwritten(path)
        written = [path, path.with_suffix(_OWN), *([path.with_suffix(_ROWS)] if self.rows is not None else [])]
        try:
            for target, table in zip(written, [self.table, self.own, self.rows], strict=False):
                with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    target.chmod(0o600)  # a file that was there keeps its rights else
                    pyarrow.parquet.write_table(table, file)
        except OSError:
            raise_alone(StudyError(f"{shown(path.name)} cannot be written. Name a file in an existing folder."))
        return written


@plain_faults
def check_unwritten(path: str | Path) -> None:
    """Refuse a name that no encodings can have, or under which there are some."""
    path = Path(path)
    if path.suffix != ".clk":
        raise StudyError(f"{shown(path.name)}: files of encodings end in .clk.")
    there = [one.name for one in (path, path.with_suffix(_OWN), path.with_suffix(_ROWS)) if one.exists()]
    if there:
        raise StudyError(
            f"{list_names([shown(name) for name in there])} {'are' if len(there) > 1 else 'is'} there already. Encode a file once: whoever gets two encodings of it learns more than from one, "
            "and only what was written with the one that was sent can answer an audit of it. If nothing of it was sent, delete it first; else name other files."
        )


@plain_faults
def new_key(path: str | Path) -> None:
    """Write a new key for both holders, which only its owner can read (0600). Hand it over in person, and never to the linkage unit."""
    if Path(path).exists():
        raise StudyError(f"{shown(Path(path).name)} is there already. A key is made once, and shared by both holders.")
    create_key(Path(path), ENCODING)


@plain_faults
def encode(data: Any, *, key: str | Path, schema: Any, id: str | None = None, analysis: Sequence[str] = ()) -> Encoded:
    """Encode a holder's records, so that a linkage unit can link them without seeing identifiers.

    Parameters
    ----------
    data
        A table, or the path of a file.
    key
        The file of the key that both holders share; :func:`dplinked.encodings.new_key` makes one.
    schema
        What is encoded and how: a TOML file, or a mapping of the same form. Both holders need the same.
    id
        Column that identifies a record for its holder; by default row numbers. It stays with the holder.
    analysis
        Columns that the analysis unit will need, under the same pseudonyms. None of them may be encoded: a value in the clear would tell what the encoding hides.

    Privacy
    -------
    Encodings are pseudonymous data, and not differentially private. They protect against those who do not have the key, as far as the page on files that may not be shared tells.
    """
    read = read_schema(schema)
    secret = read_key(Path(key), ENCODING)
    tell_format(data)
    table = to_arrow(data, "data")
    check_file(table, id, "data")
    if table.num_rows == 0:
        raise StudyError("The file has no records to encode.")
    for name in (*read.columns, *analysis):
        require_column(table, name, "data")
    for name in analysis:
        if name in read.columns or name == id:
            raise StudyError(
                f"Column {shown(name)} is encoded or identifies records, so it cannot be handed over in the clear. Leave it out of the analysis, or out of the schema."
            )
    if telling := [shown(name) for name in analysis if guess_kind(name) in _IDENTIFYING]:
        warnings.warn(
            f"{list_names(telling)} of the analysis {'sound' if len(telling) > 1 else 'sounds'} like an identifier by name, and would be handed to the analysis unit as it is.",
            stacklevel=3,
        )
    return _make(table, read, secret, id, list(analysis))


def _make(table: pa.Table, schema: Schema, key: bytes, id: str | None, analysis: list[str]) -> Encoded:
    """Encode records in a random order, so that the place of a record tells nothing."""
    import pyarrow as pa

    count = table.num_rows
    order = _shuffled(count)
    columns = {name: Texts.of(column_texts(table, name, "data")).take(order) for name in schema.columns}
    filters = make_filters(schema, columns, key)
    drawn = secrets.token_hex(16 * count)
    pseudonyms = pa.array([drawn[start : start + 32] for start in range(0, len(drawn), 32)])
    made = {
        PSEUDONYM: pseudonyms,
        FILTER: pa.FixedSizeBinaryArray.from_buffers(pa.binary(filters.shape[1]), count, [None, pa.py_buffer(filters)]),
        **{f"{BLOCK}{number}": keys for number, keys in enumerate(block_keys(schema, columns, key))},
    }
    about = {
        "dplinked.encodings": FORMAT,
        "dplinked.schema": schema.fingerprint(),
        "dplinked.key": derive(key, "which key").hex()[:16],
        "dplinked.columns": json.dumps(schema.columns),
    }
    ids = column_texts(table, id, "data") if id is not None else pa.array([str(i) for i in range(count)])
    own = pseudonyms.take(pa.array(np.argsort(order)))
    rows = None
    if analysis:
        another = pa.array(_shuffled(count))
        rows = pa.table({PSEUDONYM: own, **{name: _plain(table[name]) for name in analysis}}).take(another)
    return Encoded(pa.table(made).replace_schema_metadata(about), pa.table({PSEUDONYM: own, "id": ids}), rows)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without a dictionary, whose order and spare values would tell of the file."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _shuffled(count: int) -> NDArray[np.int64]:
    """A random order."""
    return np.random.default_rng(secrets.randbits(128)).permutation(count)


@dataclass(frozen=True, repr=False)
class Encodings:
    """What a linkage unit reads: pseudonyms (n), packed filters (n, bytes), block keys as whole numbers and which records have one (n and n for each key), and the names of the columns that were encoded."""

    pseudonyms: pa.Array
    filters: NDArray[np.uint8]
    blocks: tuple[tuple[NDArray[np.uint64], NDArray[np.bool_]], ...]
    schema: str
    key: str
    columns: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Encodings({len(self.pseudonyms):,} records)"


def is_encoded(data: Any) -> bool:
    """Whether what was given to be linked is an encoded file."""
    return isinstance(data, Encoded) or (isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".clk")


def read_encodings(data: Any, where: str) -> Encodings:
    """Read an encoded file. Refuses what is none, is damaged, or names a pseudonym twice."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    try:
        table = data.table if isinstance(data, Encoded) else pyarrow.parquet.read_table(Path(data))
        about = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        pseudonyms = table[PSEUDONYM].cast(pa.string()).combine_chunks()
        filters = _cells(table[FILTER])
        names = [name for name in table.column_names if name.startswith(BLOCK)]
        blocks = tuple((_keys(table[name]), table[name].is_valid().to_numpy()) for name in names)
        columns = tuple(map(str, json.loads(about["dplinked.columns"])))
        known = about["dplinked.encodings"], about["dplinked.schema"], about["dplinked.key"]
    except (OSError, KeyError, AttributeError, ValueError, IndexError, pa.ArrowException):
        raise_alone(
            StudyError(
                f"The {where} file is missing, damaged or holds no encodings. Ask its holder for the .clk file that 'dplinked encode' wrote."
            )
        )
    if known[0] != FORMAT.decode():
        raise StudyError(f"The {where} file was encoded by another version of dplinked. Encode it again.")
    if len(pseudonyms) == 0 or pseudonyms.null_count or pc.count_distinct(pseudonyms).as_py() != len(pseudonyms):
        raise StudyError(f"The {where} file names a pseudonym twice, or has none. Ask its holder to encode it again.")
    return Encodings(pseudonyms, filters, blocks, known[1], known[2], columns)


def _cells(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Cells of so many bytes each, as rows of bytes (n, bytes)."""
    cells = column.combine_chunks()
    width = cells.type.byte_width
    packed = np.frombuffer(cells.buffers()[1], dtype=np.uint8)[cells.offset * width :]
    return packed[: len(cells) * width].reshape(len(cells), width)


def _keys(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Block keys as whole numbers, any number where one is missing."""
    return np.ascontiguousarray(_cells(column)).view(np.uint64)[:, 0]


def check_alike(left: Encodings, right: Encodings) -> None:
    """Refuse files that were encoded with different keys or schemas: nothing of them could be compared."""
    if left.schema != right.schema:
        raise StudyError(
            "The two files were encoded by different schemas, so nothing of them can be compared. Both holders need the same one."
        )
    if left.key != right.key:
        raise StudyError(
            "The two files were encoded with different keys, so nothing of them can be compared. Both holders need the same one."
        )
