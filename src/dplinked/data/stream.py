"""Streams: their rows are kept in a temporary file, so that they can be read more than once."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dplinked.data.encoding import UNREADABLE
from dplinked.data.parquet import ParquetRows
from dplinked.data.sources import Stream
from dplinked.data.table import Rows, empty_rows
from dplinked.errors import DplinkedError, ReleaseError, raise_alone

_FILE = "rows.parquet"


class SpilledRows(ParquetRows):
    """A stream's rows in a temporary file. Only its owner can read the file, and it is deleted together with the object."""

    def __init__(self, folder: str, types: Any) -> None:
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        super().__init__([Path(folder) / _FILE])
        self._types, self.columns = types, tuple(types.names)


def spill(stream: Stream, columns: Sequence[str] | None) -> ParquetRows:
    """Write some columns of a stream to a temporary file, in a form that can hold any cell (see :meth:`Rows.kept`)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = stream.batches.schema
    empty, known = empty_rows(types), types.names
    wanted = [name for name in known if columns is None or name in columns] or known[:1]
    schema = pa.schema([types.field(name).with_type(empty.kept(name).type) for name in wanted])
    folder = tempfile.mkdtemp(prefix="dplinked-")
    path = Path(folder) / _FILE
    try:
        path.touch(mode=0o600)
        with pq.ParquetWriter(path, schema, compression="lz4", use_dictionary=False, write_statistics=False) as writer:
            for batch in stream.batches:
                rows = Rows(pa.Table.from_batches([batch], types))
                writer.write_table(pa.table([rows.kept(name) for name in wanted], schema=schema))
    except BaseException as fault:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(fault, DplinkedError) or not isinstance(fault, Exception):
            raise
        raise_alone(ReleaseError(UNREADABLE))
    return SpilledRows(folder, types)
