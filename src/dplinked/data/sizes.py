"""How many rows are read at once. The bound on rounding rests on these sizes, see :mod:`dplinked.sums.rounding`."""

from __future__ import annotations

PART = 1 << 18  # rows of a part; small row groups of Parquet files are read together up to so many
LARGEST_PIECE = 1 << 18  # rows of a row group beyond which it is read in batches of so many
