"""Link two files: read them, compare their records, link one to one. For the steward, not for publication."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import column_texts, to_arrow
from dplinked.data.fingerprint import source_state
from dplinked.data.format import File, split_file
from dplinked.data.keys import number
from dplinked.data.look import tell_format
from dplinked.data.sources import Progress
from dplinked.errors import StudyError, plain_faults, plain_number, shown, suggest
from dplinked.linker.assignment import Candidates
from dplinked.linker.checks import check_fields, check_file, require_column
from dplinked.linker.encodings.encode import PSEUDONYM, is_encoded
from dplinked.linker.encodings.link import link_encodings
from dplinked.linker.evidence import Evidence
from dplinked.linker.fields import MOST_NAMES, Comparer, Field, make_comparers, read_fields
from dplinked.linker.joined import id_column
from dplinked.linker.linked import Linked
from dplinked.linker.matches import find_matches, find_matches_of_rows
from dplinked.linker.model import ASSIGNMENTS, LinkageModel, load_model
from dplinked.linker.passes import BlockingPass
from dplinked.linker.rules import LATE, MEMORY, NO_KEY, Links, link_by_rules, tell_nobody
from dplinked.linker.scored import Scored, link_scored
from dplinked.linker.splink import link_by_splink, own_columns, score_by_settings

if TYPE_CHECKING:
    import pyarrow as pa

METHODS = ("rules", "splink", "pairs")
ALL, OTHER = "(all)", "(other)"  # names of groups that are not blocks of the files
_THRESHOLD_SHARE = 0.6  # the default threshold as a share of the largest possible score; with 6 fields, 4 must agree
_FEW = 20  # fewer than one record in twenty with a candidate is too few to be true
_RARE = 500  # a block key that fewer than one row in 500 has is taken for a typing error
_MOST_CARRIERS = 100
_RESERVED = {ALL, OTHER, NO_KEY, "(linked)", *LATE}


@plain_faults
def link(
    left: Any,
    right: Any,
    *,
    fields: Any = None,
    id: str | Sequence[str] | None = None,
    block: str | Sequence[str] | None = None,
    method: str = "rules",
    threshold: float | None = None,
    assignment: str = "optimal",
    pairs: Any = None,
    settings: Any = None,
    engine: Any = "duckdb",
    memory: float = MEMORY,
    seed: int = 0,
    overlap: float | None = None,
    duplicates: bool = True,
    model: str | Path | LinkageModel | None = None,
    links: str = "one-to-one",
    carriers: int | None = None,
    progress: Progress | None = None,
) -> Linked:
    """Link two files about the same people one to one, or several rows of the left file to one record of the right file.

    Parameters
    ----------
    left, right
        Tables (pandas, polars, pyarrow, mappings of arrays) or paths of files (Parquet, CSV, Excel, Stata, SPSS, SAS), as :class:`File` where they are not written with commas,
        decimal points and UTF-8. Every row of the left file is kept.
    fields
        Columns to compare, given as names, as ``{name: kind}`` or as :class:`Field` objects. By default all columns that both
        files have, except ids and blocks. Not needed with `pairs`.
    id
        Column that identifies a record, if it has the same name in both files; otherwise the two columns. By default row numbers.
    block
        Column whose values divide the records into blocks; several columns together do so too. ``rules`` compares records within blocks first, and
        across blocks only those that are left over. With every method, each of up to fifty blocks gets its own accuracy.
    method
        ``"rules"``: a pair's score is the sum of its fields' scores, as in the application of [LPK24], and the best assignment is chosen.
        ``"splink"``: probabilistic linkage with Splink, for files whose pairs are too many to compare them all; where they fit, rules lose less. ``"pairs"``: the links were made elsewhere, and are given in `pairs`.
    threshold
        With ``rules``, the least score of a link within a block (by default 60 % of the largest possible score). Otherwise the
        least match probability (by default .5). Records that stay below are linked by what evidence there is: within their block, or among the pairs that Splink
        compared, and stay in its group if that has ten rows; ``(further)`` across blocks, by further passes. The rest is linked at random, ``(last)``. Each group has its own accuracy.
    assignment
        With ``rules`` only: ``"optimal"``, or ``"greedy"``, which takes the best scores first and links the rest at random within
        blocks, as in [LPK24].
    pairs
        A table or file of pairs. It has a column for each file's ids (``left`` and ``right``, or Splink's ``…_l`` and ``…_r``) and, if
        known, a column ``match_probability``, ``probability`` or ``match_weight``.
    settings, engine
        With ``splink``: Splink's own settings, which get fields and block columns in the types they have, and where it runs (``"duckdb"``, ``"spark"`` or a Spark session).
    memory
        With ``rules``: how many bytes the pairs of one block may take.
    seed
        Seed of everything that is random: ties between equal scores, and random links.
    overlap
        Share of the smaller file's people who are in the other file too, if that is known: 1 if all of them are. By default it is estimated, which asks more of the
        evidence. It affects the links' probabilities and the accuracy estimated from them, not the links.
    duplicates
        False declares that nobody has two records in one file. By default that is estimated, too.
    model
        A model that was kept, ``linked.save_model("model.json")``: its fields, method, threshold and weights are used, so that nothing is trained again. Its blocks are, unless `block` names others.
    links, carriers
        ``"many-to-one"``: up to `carriers` rows of the left file may be linked to the same record of the right file, such as the members of a household to its record. The privacy unit then covers a
        response on so many rows. Rows of the left file are different people's, with regressors on one row each, unless the unit says how many rows one has (``PrivacyUnit(rows=…, id=…)``), such as transactions. By default links are ``"one-to-one"``.
    progress
        Function that is called with what is being done, the parts of it that are done, and their number. If it raises an error, linking stops.

    Returns
    -------
    Linked

    Privacy
    -------
    None. Everything is read without noise, for the steward; so are refusals of files that hardly have records in common. How many links one changed record may move does not follow from
    the linkage, so `fit` asks for the privacy unit.
    """
    if method == "dedupe":
        raise StudyError(
            "Records of one file are told apart by dpl.dedupe(file, fields=…), which takes that file alone."
        )
    if not isinstance(method, str) or method not in METHODS:
        raise StudyError(f"method must be one of {list(METHODS)}, not {shown(method)}.{suggest(method, METHODS)}")
    if not isinstance(assignment, str) or assignment not in ASSIGNMENTS:
        raise StudyError(f"assignment must be one of {list(ASSIGNMENTS)}, not {shown(assignment)}.")
    kept = None if model is None else load_model(model)
    if kept is not None:
        if any(given is not None for given in (fields, threshold, settings, pairs)) or method not in (
            "rules",
            kept.method,
        ):
            raise StudyError(
                "A model that was kept has its own fields, method, threshold and settings: leave them out, or link without model=…."
            )
        method, fields, threshold, assignment = kept.method, list(kept.fields), kept.threshold, kept.assignment
        block = kept.blocks if block is None else block
        settings = kept.settings if kept.own else None
    many = check_kind(links, carriers, assignment)
    if (pairs is not None) != (method == "pairs"):
        raise StudyError("Links made elsewhere come with method='pairs' and pairs=…, both.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise StudyError(f"seed must be a whole number, 0 or more, not {shown(seed)}.")
    if not plain_number(memory) > 0.0:
        raise StudyError(f"memory must be a number of bytes above 0, not {shown(memory)}.")
    if overlap is not None and not 0.0 < plain_number(overlap) <= 1.0:
        raise StudyError(
            f"overlap must be the share of people who are in both files, above 0 and up to 1, not {shown(overlap)}."
        )
    if not isinstance(duplicates, bool):
        raise StudyError(f"duplicates must be True or False, not {shown(duplicates)}.")
    if is_encoded(left) or is_encoded(right):
        given = (fields, id, block, settings, pairs, model)
        return _link_encoded(
            left, right, any(value is not None for value in given), threshold, seed, overlap, duplicates, many
        )
    sources = _source(left), _source(right)
    states = source_state(sources[0]), source_state(sources[1])  # taken before anything is read
    tell = progress or tell_nobody
    tell("Reading the files", 0, 0)
    for file in (left, right):
        tell_format(file)
    a, b = to_arrow(left, "left"), to_arrow(right, "right")
    ids = (id, id) if id is None or isinstance(id, str) else _two_names(id)
    for table, name, where in ((a, ids[0], "left"), (b, ids[1], "right")):
        check_file(table, name, where)
    if method != "pairs" and a.equals(b):
        raise StudyError(
            "The left and the right file are the same: every record would be linked to itself. Give two files."
        )
    listed = _block_names(block)
    if fields is None:
        fields = () if method == "pairs" else _common_fields(a, b, ids, listed)
    chosen = read_fields(fields) if method != "pairs" or fields else ()
    for table, where in ((a, "left"), (b, "right")):
        check_fields(table, chosen, where, typed=settings is not None)
    if settings is not None and method != "splink":
        raise StudyError("settings=… are Splink's: give them with method='splink'.")
    comparers = [] if method == "pairs" or settings is not None else make_comparers(a, b, chosen)
    if method == "rules":
        evidence = None if kept is None else kept.evidence
        made = _link_rules(a, b, comparers, listed, threshold, assignment, memory, seed, evidence, many, tell)
    elif method == "splink":
        trained = None if kept is None else kept.settings
        tell("Comparing with Splink", 0, 0)
        made = _link_splink(a, b, chosen, comparers, listed, threshold, settings, engine, seed, trained, many)
    else:
        made = _link_pairs(a, b, _read_pairs(pairs, a, b, ids, many), listed, threshold, seed, many)
    if method != "pairs":
        _check_found(made, overlap, least=1 if settings is not None else None)
    read = tuple(comparer.readable() for comparer in comparers)
    return Linked(
        a, b, made, chosen, method, ids, (sources[0] or a, sources[1] or b), states, tuple(listed), overlap=overlap, duplicates=duplicates,
        readable=read, engine=engine, model=_kept_model(made, method, chosen, listed, threshold, assignment, own=settings is not None, before=() if kept is None else kept.looked_at),
    )  # fmt: skip


def _link_encoded(
    left: Any, right: Any, more: bool, threshold: float | None, seed: int, overlap: float | None, duplicates: bool, carriers: int
) -> Linked:  # fmt: skip
    """Link two files of encodings; all that is compared was decided when they were encoded."""
    if more or not (is_encoded(left) and is_encoded(right)):
        raise StudyError(
            "Encoded files (.clk) are linked with each other, by what their schema says: leave out fields, id, block, settings, pairs and model."
        )
    a, b, links, encoded = link_encodings(
        left, right, threshold=_least_probability(threshold), seed=seed, carriers=carriers, everyone=ALL, other=OTHER, rare=_RARE
    )  # fmt: skip
    _check_found(links, overlap, least=None)
    sources = _source(left), _source(right)
    return Linked(
        a, b, links, (), "encodings", (PSEUDONYM, PSEUDONYM), (sources[0] or a, sources[1] or b), (source_state(sources[0]), source_state(sources[1])),
        overlap=overlap, duplicates=duplicates, encoded=encoded,
    )  # fmt: skip


def check_kind(links: Any, carriers: Any, assignment: str) -> int:
    """How many rows of the left file may be linked to one record of the right file, refusing kinds of links that no privacy unit covers."""
    if links in ("one-to-many", "many-to-many"):
        raise StudyError(
            f"links={links!r} would give one row several records, and a row has one response. Make one record of each person's first: dpl.dedupe(file) finds them, and sums or means of theirs are then one "
            "response. Several rows for one record of the right file are links='many-to-one'."
        )
    if links not in ("one-to-one", "many-to-one"):
        raise StudyError(f"links must be 'one-to-one' or 'many-to-one', not {shown(links)}.")
    if links == "one-to-one":
        if carriers not in (None, 1):
            raise StudyError(
                "One-to-one links have carriers=1. Say links='many-to-one' if several rows may share a record."
            )
        return 1
    if isinstance(carriers, bool) or not isinstance(carriers, int) or not 2 <= carriers <= _MOST_CARRIERS:
        raise StudyError(
            f"links='many-to-one' needs carriers=…, a whole number from 2 to {_MOST_CARRIERS}: how many rows of the left file may share a record of the right file. Choose it by what the files are, not by "
            "what is in them; the noise grows with it."
        )
    if assignment == "greedy":
        raise StudyError(
            "assignment='greedy' is the paper's, which is one to one. Leave it out with links='many-to-one'."
        )
    return carriers


def _kept_model(
    links: Links, method: str, fields: Sequence[Field], block: list[str], threshold: float | None, assignment: str, *, own: bool, before: Sequence[str] = ()
) -> LinkageModel | None:  # fmt: skip
    """What linking new records takes from this linkage; None for links made elsewhere."""
    settings = tuple(fields), tuple(block), threshold, assignment
    named = [name for field in fields for name in (field.name, field.right or field.name)]
    looked_at = tuple(dict.fromkeys([*named, *block, *before]))
    if isinstance(links.model, Evidence):
        return LinkageModel(method, *settings, evidence=links.model, looked_at=looked_at)
    return (
        None
        if links.model is None
        else LinkageModel(method, *settings, settings=links.model, own=own, looked_at=looked_at)
    )


def _link_rules(
    a: pa.Table, b: pa.Table, comparers: list[Comparer], block: list[str], threshold: float | None, assignment: str,
    memory: float, seed: int, evidence: Evidence | None, carriers: int, progress: Progress,
) -> Links:  # fmt: skip
    """Check the threshold, read the block keys, and link by rule."""
    largest = sum(comparer.field.weight for comparer in comparers)
    limit = _THRESHOLD_SHARE * largest if threshold is None else threshold
    if not 0.0 < plain_number(limit) <= largest:
        raise StudyError(f"threshold must lie between 0 and the largest score {largest:g}, not {shown(limit)}.")
    try:
        left, right = both_block_keys(a, b, block)
        apart = set(block) - {comparer.field.name for comparer in comparers}
        return link_by_rules(
            comparers, left, right, limit, assignment=assignment, memory=memory, seed=seed,
            block_comparers=make_comparers(a, b, [Field(name) for name in block if name in apart]), evidence=evidence,
            carriers=carriers, progress=progress,
        )  # fmt: skip
    except ImportError:
        raise StudyError("Linking needs rapidfuzz: pip install 'dplinked[linkage]'.") from None


def _link_splink(
    a: pa.Table, b: pa.Table, fields: Sequence[Field], comparers: list[Comparer], block: list[str], threshold: float | None,
    settings: Any, engine: Any, seed: int, trained: dict[str, Any] | None, carriers: int,
) -> Links:  # fmt: skip
    """Link with Splink: by a model that follows from the fields, or by the settings given, which take columns in their own types."""
    limit, blocks = _least_probability(threshold), _model_blocks(a, b, block)
    if settings is not None:
        tables = [own_columns(table, fields, block, where) for table, where in ((a, "left"), (b, "right"))]
        scored = score_by_settings(tables[0], tables[1], settings, engine)
        return link_scored(scored, None, limit, blocks, seed, carriers)
    return link_by_splink(
        comparers, engine=engine, threshold=limit, blocks=blocks, seed=seed, trained=trained, carriers=carriers
    )


def _check_found(links: Links, overlap: float | None, *, least: int | None) -> None:
    """Refuse a linkage that found too few candidates to be true. That is read from the files, like the report: it is for the steward, who links them.

    A declared overlap stands for what evidence says of it, and a small one for few candidates too.
    """
    candidates = links.candidates
    smaller = min(candidates.left_count, candidates.right_count)
    if smaller < _FEW or (overlap is not None and overlap * _FEW < 1.0):
        return
    enough = smaller / _FEW if least is None else least
    few = _records_with(candidates, 1.0) < enough
    if not few and least is None and overlap is None and _records_with(candidates, _likely(candidates)) < enough:
        find = find_matches if links.carriers == 1 else find_matches_of_rows
        few = find(candidates).overlap * _FEW < 1.0
    if few:
        raise StudyError(
            "Hardly any records of the two files look like the same person, so the links would be random. Check that the fields hold the same things in both files, written "
            "the same way, and tell people apart: their names (dpl.Field(…, right=…)), their kinds (kind=…), the block columns. If really so few people are in both files, declare how many, overlap=…; or say "
            "how to find them: method='splink' with settings=…, or links made elsewhere (pairs=…)."
        )


def _likely(candidates: Candidates) -> float:
    """The evidence that makes a pair as likely a match as not, if everybody were in both files."""
    return float(max(candidates.left_count, candidates.right_count))


def _records_with(candidates: Candidates, least: float) -> int:
    """How many records have a candidate with more evidence than `least`, in the file that has fewer of them."""
    alike = candidates.evidence > least
    return min(np.unique(side[alike]).size for side in (candidates.left, candidates.right))


def _link_pairs(
    a: pa.Table,
    b: pa.Table,
    candidates: Candidates,
    block: list[str],
    threshold: float | None,
    seed: int,
    carriers: int,
) -> Links:
    """Link candidates that were scored, or linked, elsewhere."""
    made_by = np.zeros(candidates.left.size, dtype=np.int64)
    made = Scored(candidates, made_by, (BlockingPass("the pairs given", None, candidates.left.size),), None)
    links = link_scored(made, None, _least_probability(threshold), _model_blocks(a, b, block), seed, carriers)
    if not np.isfinite(candidates.evidence).all():  # the pairs came without probabilities
        links = replace(links, candidates=_no_candidates(a.num_rows, b.num_rows))
    return links


def _least_probability(threshold: float | None) -> float:
    """The least match probability of a link that counts as one within its block."""
    limit = 0.5 if threshold is None else threshold
    if not 0.0 < plain_number(limit) < 1.0:
        raise StudyError(f"threshold must be a probability between 0 and 1, not {shown(threshold)}.")
    return limit


def _source(data: Any) -> Path | File | None:
    """The file that a path leads to, symlinks resolved, with how it is declared to be written: other options make other data. None for tables; missing files are refused later, on reading."""
    if not isinstance(data, (str, Path, File)) or not os.path.isfile(split_file(data)[0]):
        return None
    path, format = split_file(data)
    options = format.options()
    return File(path.resolve(), **options) if options else path.resolve()


def _two_names(id: Sequence[str]) -> tuple[str, str]:
    if not isinstance(id, (list, tuple)) or len(id) != 2 or not all(isinstance(name, str) for name in id):
        raise StudyError("id must be one column's name, or two: the left file's and the right file's.")
    return id[0], id[1]


def _block_names(block: str | Sequence[str] | None) -> list[str]:
    names = [] if block is None else [block] if isinstance(block, str) else block
    if not isinstance(names, (list, tuple)) or len(names) > MOST_NAMES or not all(isinstance(n, str) for n in names):
        raise StudyError(f"block must be a column's name, or a list of at most {MOST_NAMES} names.")
    return list(names)


def _common_fields(a: pa.Table, b: pa.Table, ids: tuple[str | None, str | None], block: list[str]) -> list[str]:
    """Names of the columns that both files have, apart from ids and blocks."""
    common = [name for name in a.column_names if name in b.column_names and name not in (*ids, *block)]
    if not common:
        raise StudyError(
            "The two files have no column in common to compare. Name fields: fields=[dpl.Field('name_a', right='name_b'), …]."
        )
    return common


def _block_keys(table: pa.Table, names: Sequence[str], where: str) -> NDArray[np.object_]:
    """The block key of each record. Several columns are joined to one key, which is None if any of them is missing."""
    for name in names:
        require_column(table, name, where)
    columns = [column_texts(table, name, where).to_pylist() for name in names]
    keys = np.empty(table.num_rows, dtype=object)
    keys[:] = [None if any(not part for part in parts) else " · ".join(parts) for parts in zip(*columns, strict=True)]
    if _RESERVED & set(keys.tolist()):
        raise StudyError(f"Block keys may not be called any of {sorted(_RESERVED)}: these names are ours. Rename them.")
    return keys


def both_block_keys(a: pa.Table, b: pa.Table, names: Sequence[str]) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """The block keys of both files. Refuses keys that divide nothing: missing in all of a file, or never the same in both."""
    if not names:
        return np.full(a.num_rows, ALL, dtype=object), np.full(b.num_rows, ALL, dtype=object)
    left, right = _block_keys(a, names, "left"), _block_keys(b, names, "right")
    known = set(left.tolist()) - {None}, set(right.tolist()) - {None}
    for keys, where in zip(known, ("left", "right"), strict=True):
        if not keys:
            raise StudyError(
                f"All block keys ({', '.join(names)}) are missing in the {where} file. Leave block out, or name another column."
            )
    if not known[0] & known[1]:
        raise StudyError(
            f"No block key ({', '.join(names)}) is in both files, so no records would be compared. Write the keys alike in both, or leave block out."
        )
    return left, right


def _model_blocks(a: pa.Table, b: pa.Table, names: Sequence[str]) -> NDArray[np.object_]:
    """The block of each left record, for methods that also compare records of different blocks.

    Such blocks serve only to estimate accuracies. Keys that are missing, rare or not in both files share one block.
    """
    keys, others = both_block_keys(a, b, names)
    common, counts = set(others.tolist()), Counter(keys.tolist())
    blocks = np.empty(keys.size, dtype=object)
    blocks[:] = [
        OTHER if key is None or key not in common or counts[key] * _RARE < keys.size else key for key in keys.tolist()
    ]
    return blocks


def _read_pairs(data: Any, a: pa.Table, b: pa.Table, ids: tuple[str | None, str | None], carriers: int) -> Candidates:
    """Read pairs made elsewhere as candidates. If they have no probabilities, their evidence is infinite."""
    table = to_arrow(data, "pairs")
    names = table.column_names
    found = [
        next((name for name in options if name in names), None)
        for options in (
            ("left", "left_id", f"{ids[0]}_l", "unique_id_l"),
            ("right", "right_id", f"{ids[1]}_r", "unique_id_r"),
        )
    ]
    if None in found:
        raise StudyError("The pairs need both ids, in columns 'left' and 'right' (or Splink's …_l and …_r).")
    if table.num_rows == 0:
        raise StudyError("There are no pairs, so all links would be random. Give the pairs that were linked.")
    positions = []
    for column, file, id in zip(found, (a, b), ids, strict=True):
        place = {key: i for i, key in enumerate(id_column(file, id).to_pylist())}
        at = [place.get(key, -1) for key in column_texts(table, str(column), "pairs").to_pylist()]
        if -1 in at:
            raise StudyError(
                f"Some ids in column {column!r} of the pairs are not in the file. Name the id columns: id=…."
            )
        positions.append(np.array(at, dtype=np.int64))
    left, right = positions
    if len(set(zip(left.tolist(), right.tolist(), strict=True))) != left.size:
        raise StudyError("The pairs name a pair twice.")
    n, m = a.num_rows, b.num_rows
    probability = next((name for name in ("match_probability", "probability") if name in names), None)
    if "match_weight" in names:
        weight = _numbers(table, "match_weight")
        if np.isnan(weight).any():
            raise StudyError("Column 'match_weight' of the pairs must hold numbers.")
        weight = np.clip(weight, -60.0, 60.0)
    elif probability is not None:
        p = _numbers(table, probability)
        if not ((p >= 0.0) & (p <= 1.0)).all():
            raise StudyError(f"Column {probability!r} of the pairs must hold probabilities between 0 and 1.")
        p = np.clip(p, 1e-12, 1.0 - 1e-12)
        weight = np.log2(p / (1.0 - p))
    else:
        if len(set(left.tolist())) != left.size or np.bincount(right).max(initial=0) > carriers:
            raise StudyError(
                "The pairs link a record twice, or more often than links may, and have no probabilities to choose by. Give a column 'probability', or say how often: links='many-to-one', carriers=…."
            )
        return Candidates(left, right, np.full(left.size, 60.0), np.full(left.size, np.inf), n, m)
    odds = np.exp2(weight)
    # The share of matches among all pairs that these probabilities imply.
    prior = max(float((odds / (1.0 + odds)).sum()), 1e-9) / (n * m)
    return Candidates(left, right, weight, odds * (1.0 - prior) / prior, n, m)


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    """A column as numbers, each cell read on its own; NaN for cells that hold no number."""
    values = table.column(name).to_pylist()
    return np.fromiter(map(number, values), np.float64, len(values))


def _no_candidates(n: int, m: int) -> Candidates:
    none = np.zeros(0, dtype=np.int64)
    return Candidates(none, none, np.zeros(0), np.zeros(0), n, m)
