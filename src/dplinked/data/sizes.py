"""How many rows are read at once. The bound on rounding rests on these sizes, see :mod:`dplinked.sums.rounding`."""

from __future__ import annotations

PART = 1 << 18  # rows of a part; small row groups of Parquet files are read together up to so many
BATCH = 1 << 16  # rows at a time of a row group that is larger: what they are decoded into stays in the cache
