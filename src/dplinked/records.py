"""From two files to linked rows: read, link one to one, say how good the links are. For the steward, not for publication."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, raise_alone, suggest
from dplinked.keys import number
from dplinked.linkage import ELE, Matching
from dplinked.linkage import quality as judged
from dplinked.linkage.fields import Field, make_comparer, read_fields
from dplinked.linkage.model import LINK_BLOCK
from dplinked.linkage.one_to_one import Candidates, match_probabilities, matching_matrix
from dplinked.linkage.probabilistic import link_candidates, score_pairs
from dplinked.linkage.rules import LAST, NO_KEY, UNLINKED, Links, link_by_rules
from dplinked.report.linkage import quality_page, quality_text
from dplinked.tables import column_texts, read_file, to_arrow

Integers = NDArray[np.int64]

METHODS = ("rules", "splink", "pairs")
BLOCK, SCORE, PROBABILITY = LINK_BLOCK, "link_score", "link_probability"
_ASSIGNMENTS = ("optimal", "greedy")
_THRESHOLD_SHARE = 0.6  # of the largest possible score, by default: 4 of 6 fields
_MEMORY = 2e9
_KNOWN = 1e12  # "links checked" where the accuracy is a public number: rows without a partner
_STALE = {"linkage.toml", "accuracy.json"}
_RARE = 500  # a key that fewer than one row in this many has is taken for a typing error
ALL, OTHER = "(all)", "(other)"
_RESERVED = {ALL, OTHER, LAST, UNLINKED, NO_KEY, "(linked)"}


@dataclass(frozen=True, repr=False)
class Linked:
    """Two files, linked one to one. Every row of the left file is there.

    Attributes
    ----------
    left, right
        The two files (Arrow tables).
    links
        Which right record each left row got, with score and block.
    fields, method, ids
        What was compared, how, and the id columns of both files.
    sources
        The two files as they were given.
    audit
        Accuracy from a clerical audit, if one was read back.
    """

    left: Any
    right: Any
    links: Links
    fields: tuple[Field, ...]
    method: str
    ids: tuple[str | None, str | None]
    sources: tuple[Any, Any]
    audit: judged.Estimate | None = None

    def __repr__(self) -> str:
        return f"Linked({self.left.num_rows:,} rows, method={self.method!r}, {len(self.strata.names)} groups of links)"

    # --- the links -----------------------------------------------------------------------------

    @cached_property
    def strata(self) -> judged.Strata:
        """Groups of rows that share an accuracy."""
        return judged.make_strata(self.links.block)

    @cached_property
    def _pair_probability(self) -> NDArray[np.float64]:
        return match_probabilities(self.links.candidates)

    @cached_property
    def _own_probability(self) -> NDArray[np.float64]:
        return judged.link_probabilities(self.links, self._pair_probability)

    @cached_property
    def pairs(self) -> Any:
        """Ids of both records of each link, with block, score and one-to-one probability (n rows; null for no partner)."""
        import pyarrow as pa

        left_ids, right_ids = (
            _id_column(table, name) for table, name in zip((self.left, self.right), self.ids, strict=True)
        )
        return pa.table({"left": left_ids, "right": right_ids.take(self._positions), **self._about_links()})

    @cached_property
    def rows(self) -> Any:
        """The joined table: left columns, right columns (``_right`` after names both files have), block, score, probability."""
        import pyarrow as pa

        columns, fields = list(self.left.columns), list(self.left.schema)
        taken, names = self.right.take(self._positions), set(self.left.column_names)
        about = self._about_links()
        for column, field in zip(taken.columns, taken.schema, strict=True):
            field = field.with_name(f"{field.name}_right" if field.name in names else field.name)
            columns.append(column)
            fields.append(field.with_nullable(True))
        known = [field.name for field in fields] + list(about)
        if len(set(known)) < len(known):
            raise StudyError(
                f"Linked rows would have two columns of one name (…_right, or {list(about)}). Rename them first."
            )
        schema = pa.schema([*fields, *(pa.field(name, array.type) for name, array in about.items())])
        return pa.table([*columns, *about.values()], schema=schema)

    @property
    def _positions(self) -> Any:
        import pyarrow as pa

        return pa.array(self.links.right, pa.int64(), mask=self.links.right < 0)

    def _about_links(self) -> dict[str, Any]:
        import pyarrow as pa

        block = self.links.block
        if not self.strata.per_block:  # one accuracy for all blocks, `other` for what has none
            block = block.copy()
            block[np.isin(block.astype(str), [LAST, UNLINKED])] = None
        score = self.links.score
        return {
            BLOCK: pa.array(block.tolist(), pa.string()),
            SCORE: pa.array(score, mask=np.isnan(score)),
            PROBABILITY: pa.array(self._own_probability),
        }

    # --- how good they are ---------------------------------------------------------------------

    @cached_property
    def estimates(self) -> tuple[judged.Estimate, ...]:
        """Accuracy per group by every method that applies, the one that `linkage` uses first."""
        found = [] if self.audit is None else [self.audit]
        if self.links.candidates.left.size:
            found.append(judged.estimate_from_probabilities(self.strata, self._own_probability))
            found.append(judged.estimate_by_simulation(self.strata, self.links, self._pair_probability))
        return tuple(found)

    @property
    def linkage(self) -> ELE:
        """The linkage model for `fit`: exchangeable errors per group, accuracies as estimated from these very files."""
        if not self.estimates:
            raise StudyError(
                "Nothing tells how good these links are: the pairs came without probabilities. Check some of them "
                "(audit_sample), or declare dpl.ELE(accuracy=…, block='link_block') yourself."
            )
        best = self.estimates[0]
        accuracy, other = judged.accuracy_table(self.strata, best.accuracy)
        checked: Any = None
        if best.checked is not None:
            least = np.where(np.array(self.strata.names) == UNLINKED, _KNOWN, np.maximum(best.checked, 1))
            checked = dict(zip(self.strata.names, map(float, least), strict=True))
            if not self.strata.per_block:
                checked = float(best.checked.sum())
        return ELE(accuracy, BLOCK, other=other, checked=checked, source="estimated")

    def matching(self, *, seed: int = 0, tolerance: float = 1e-6) -> Matching:
        """The matching matrix Q from the one-to-one probabilities, doubly stochastic within `tolerance`.

        It comes from these very files: `fit` asks for PrivacyUnit(linkage_change=…, displaced_links=…) with it.
        """
        if not self.links.candidates.left.size:
            raise StudyError("These links came without probabilities, so there is no matching matrix.")
        return Matching(
            matching_matrix(
                self.links.right, self.links.candidates, self._pair_probability, seed=seed, tolerance=tolerance
            )
        )

    def audit_sample(self, size: int = 400, seed: int = 0) -> Any:
        """Links for a person to check, both records side by side; the answer goes into the column ``right`` (yes or no)."""
        import pyarrow as pa

        rows = judged.draw_audit(self.links, self.strata, size, seed)
        pairs = self.pairs.take(rows)
        table = {"left_id": pairs["left"], "right_id": pairs["right"], "block": pairs[BLOCK], "score": pairs[SCORE]}
        for field in self.fields:
            table[f"{field.name} (left)"] = self.left.column(field.name).take(rows)
            table[f"{field.right} (right)"] = self.right.column(field.right).take(pa.array(self.links.right[rows]))
        return pa.table({**table, "right": pa.array([None] * len(rows), pa.string())})

    def audited(self, answers: Any) -> Linked:
        """Read a checked sample back (a table, or the path of a CSV or Parquet file)."""
        table = to_arrow(answers, "audit")
        missing = {"left_id", "right_id", "right"} - set(table.column_names)
        if missing:
            raise StudyError(f"The audit lacks the column(s) {sorted(missing)}. Fill in what audit_sample wrote.")
        left_id, right_id = (column_texts(table, name, "audit").to_pylist() for name in ("left_id", "right_id"))
        known = dict(zip(self.pairs["left"].to_pylist(), range(self.left.num_rows), strict=True))
        partner = self.pairs["right"].to_pylist()
        rows = [known.get(key, -1) for key in left_id]
        if not rows:
            raise StudyError("The audit has no answers.")
        if any(row < 0 or other is None or partner[row] != other for row, other in zip(rows, right_id, strict=True)):
            raise StudyError(
                "The audit belongs to other links: link the same files with the same settings as when it was drawn."
            )
        if len(set(rows)) != len(rows):
            raise StudyError("The audit names a link twice.")
        right = judged.read_answers(table.column("right").to_pylist())
        found = judged.estimate_from_audit(self.strata, np.array(rows, dtype=np.int64), right)
        return replace(self, audit=found)

    def overall(self, linkage: ELE) -> float:
        """A model's accuracy over all rows."""

        def of(name: str) -> float:
            found = linkage.accuracy_of(None if name in (LAST, UNLINKED) and not self.strata.per_block else name)
            return found if found is not None else linkage.other_accuracy or 0.0

        return float(np.average([of(name) for name in self.strata.names], weights=self.strata.rows))

    # --- for people ----------------------------------------------------------------------------

    def summary(self) -> str:
        """The quality report as text."""
        return quality_text(self)

    def to_html(self, path: str | Path | None = None) -> str:
        """The quality report as one page, written to a file if a path is given."""
        page = quality_page(self)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def linkage_toml(self) -> str:
        """The study's ``[linkage]`` section."""
        return linkage_section(self.linkage)

    def save(
        self, folder: str | Path, *, audit_sample: int | None = None, seed: int = 0, linkage: ELE | None = None
    ) -> list[str]:
        """Write linked.parquet, linkage.toml, quality.txt, quality.html (and audit.csv) into a folder: all of them or none."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise StudyError(f"{folder.name!r} is a file. Name a folder to write to.")
        parent = folder if folder.is_dir() else folder.resolve().parent
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise StudyError(f"{str(folder)!r} cannot be written. Name a folder in an existing one.")
        if audit_sample is not None and _has_answers(folder / "audit.csv"):
            raise StudyError(
                f"{str(folder / 'audit.csv')!r} holds a reviewer's answers. Move it, or read it back with --audited."
            )
        try:
            return self._write(folder, parent, audit_sample, seed, linkage)
        except OSError:
            raise_alone(StudyError(f"{str(folder)!r} could not be written; nothing in it was changed."))

    def _write(self, folder: Path, parent: Path, audit_sample: int | None, seed: int, linkage: ELE | None) -> list[str]:
        import pyarrow.csv
        import pyarrow.parquet

        with tempfile.TemporaryDirectory(dir=parent, prefix=".dplinked-") as name:
            work = Path(name)
            pyarrow.parquet.write_table(self.rows, work / "linked.parquet")
            if self.estimates or linkage is not None:
                (work / "linkage.toml").write_text(linkage_section(linkage or self.linkage), encoding="utf-8")
            (work / "quality.txt").write_text(self.summary() + "\n", encoding="utf-8")
            self.to_html(work / "quality.html")
            if audit_sample is not None:
                pyarrow.csv.write_csv(self.audit_sample(audit_sample, seed), work / "audit.csv")
            folder.mkdir(exist_ok=True)
            written = sorted(path.name for path in work.iterdir())
            for file in written:
                (work / file).replace(folder / file)
            for file in _STALE - set(written):  # of another linkage
                (folder / file).unlink(missing_ok=True)
        return written


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
    memory: float = _MEMORY,
    seed: int = 0,
) -> Linked:
    """Link two files about the same people one to one.

    Parameters
    ----------
    left, right
        Tables (pandas, polars, pyarrow, mappings of arrays) or paths of Parquet or CSV files. Every left row stays.
    fields
        Columns to compare: names, ``{name: kind}``, or :class:`Field` objects. Not needed with `pairs`.
    id
        Column that names a record in both files, or the two columns; row numbers unless given.
    block
        Column (or columns, together) within which records are compared (``rules``), and which the accuracies go by.
    method
        ``"rules"``: sums of field scores and the best assignment, as in the application of [LPK24]. ``"splink"``: probabilistic, with
        Splink. ``"pairs"``: links made elsewhere, in `pairs`.
    threshold
        ``rules``: score from which a pair counts as linked in its block (60 % of the largest by default). ``splink``: match
        probability (.5). What stays below is linked last, across blocks, as a group with an accuracy of its own.
    assignment
        ``rules`` only: ``"optimal"``, or ``"greedy"`` with random links within blocks for the rest, as in [LPK24].
    pairs
        A table or file of pairs: both ids (``left``/``right``, or Splink's ``…_l``/``…_r``), and if known
        ``match_probability``, ``probability`` or ``match_weight``.
    settings, engine
        Splink's own settings; ``"duckdb"``, ``"spark"`` or a Spark session.
    memory
        Bytes that the pairs of one block may take (``rules``).
    seed
        Of ties, random links and samples.

    Returns
    -------
    Linked

    Privacy
    -------
    None: everything is read without noise, for the steward. One changed record may move many links, so linking
    gives no privacy unit: `fit` asks for it.
    """
    if method not in METHODS:
        raise StudyError(f"method must be one of {list(METHODS)}, not {method!r}.{suggest(str(method), METHODS)}")
    if assignment not in _ASSIGNMENTS:
        raise StudyError(f"assignment must be one of {list(_ASSIGNMENTS)}, not {assignment!r}.")
    if (pairs is not None) != (method == "pairs"):
        raise StudyError("Links made elsewhere come with method='pairs' and pairs=…, both.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise StudyError(f"seed must be a whole number, 0 or more, not {seed!r}.")
    a, b = to_arrow(left, "left"), to_arrow(right, "right")
    ids = (id, id) if id is None or isinstance(id, str) else _two_names(id)
    for table, name, where in ((a, ids[0], "left"), (b, ids[1], "right")):
        _check_file(table, name, where)
    listed = [] if block is None else [block] if isinstance(block, str) else list(block)
    if fields is None:
        fields = () if method == "pairs" else _common_fields(a, b, ids, listed)
    chosen = read_fields(fields) if method != "pairs" or fields else ()
    texts = [_field_texts(table, chosen, where) for table, where in ((a, "left"), (b, "right"))]
    if method == "rules":
        links = _link_rules(a, b, texts, chosen, listed, threshold, assignment, memory, seed)
    else:
        candidates = (
            score_pairs(texts[0], texts[1], chosen, settings=settings, engine=engine)
            if method == "splink"
            else _read_pairs(pairs, a, b, ids)
        )
        limit = 0.5 if threshold is None else threshold
        if not 0.0 < limit < 1.0:
            raise StudyError(f"threshold must be a probability between 0 and 1, not {threshold!r}.")
        blocks = _model_blocks(a, b, listed)
        links = link_candidates(candidates, limit, blocks, seed)
        if not np.isfinite(candidates.evidence).all():  # pairs without probabilities
            links = replace(links, candidates=_no_candidates(a.num_rows, b.num_rows))
    return Linked(a, b, links, chosen, method, ids, (left, right))


def _link_rules(
    a: Any, b: Any, texts: list[Any], fields: tuple[Field, ...], block: list[str], threshold: float | None,
    assignment: str, memory: float, seed: int,
) -> Links:  # fmt: skip
    largest = sum(field.weight for field in fields)
    limit = _THRESHOLD_SHARE * largest if threshold is None else threshold
    if not 0.0 < limit <= largest:
        raise StudyError(f"threshold must lie between 0 and the largest score {largest:g}, not {limit!r}.")
    try:
        comparers = [make_comparer(field, texts[0].column(field.name), texts[1].column(field.name)) for field in fields]
        left, right = (
            _block_keys(table, block, where) if block else np.full(table.num_rows, ALL, dtype=object)
            for table, where in ((a, "left"), (b, "right"))
        )
        return link_by_rules(comparers, left, right, limit, assignment=assignment, memory=memory, seed=seed)
    except ImportError:
        raise StudyError("Linking needs rapidfuzz: pip install 'dplinked[linkage]'.") from None


def _two_names(id: Sequence[str]) -> tuple[str, str]:
    if not isinstance(id, (list, tuple)) or len(id) != 2 or not all(isinstance(name, str) for name in id):
        raise StudyError("id must be one column's name, or two: the left file's and the right file's.")
    return id[0], id[1]


def _check_file(table: Any, id: str | None, where: str) -> None:
    if table.num_rows == 0:
        raise StudyError(f"The {where} file has no rows.")
    if ours := {BLOCK, SCORE, PROBABILITY} & set(table.column_names):
        raise StudyError(f"The {where} file has the column(s) {sorted(ours)}, which linking adds. Rename them.")
    if len(set(table.column_names)) != len(table.column_names):
        raise StudyError(f"The {where} file has two columns of the same name.")
    if id is None:
        return
    _require(table, id, where)
    texts = column_texts(table, id, where)
    if texts.null_count or len(texts.unique()) != len(texts):
        raise StudyError(
            f"The ids in column {id!r} of the {where} file must be there and differ. Remove duplicates first, or leave id out."
        )


def _require(table: Any, name: str, where: str) -> None:
    if name not in table.column_names:
        raise StudyError(f"Column {name!r} is not in the {where} file.{suggest(name, table.column_names)}")


def _common_fields(a: Any, b: Any, ids: tuple[str | None, str | None], block: list[str]) -> list[str]:
    common = [name for name in a.column_names if name in b.column_names and name not in (*ids, *block)]
    if not common:
        raise StudyError(
            "The two files have no column in common to compare. Name fields: fields=[dpl.Field('name_a', right='name_b'), …]."
        )
    return common


def _field_texts(table: Any, fields: Sequence[Field], where: str) -> Any:
    """The fields of one file as texts, under the left file's names."""
    import pyarrow as pa

    columns = {}
    for field in fields:
        name = field.name if where == "left" else str(field.right)
        _require(table, name, where)
        texts = column_texts(table, name, where)
        if texts.null_count == len(texts):
            raise StudyError(f"Field {name!r} has no values in the {where} file. Leave it out.")
        columns[field.name] = texts
    return pa.table(columns)


def _block_keys(table: Any, names: Sequence[str], where: str) -> NDArray[np.object_]:
    """Each record's block key, several columns joined; None if one is missing."""
    for name in names:
        _require(table, name, where)
    columns = [column_texts(table, name, where).to_pylist() for name in names]
    keys = np.empty(table.num_rows, dtype=object)
    keys[:] = [None if any(not part for part in parts) else " · ".join(parts) for parts in zip(*columns, strict=True)]
    if _RESERVED & set(keys.tolist()):
        raise StudyError(f"Block keys may not be called any of {sorted(_RESERVED)}: these names are ours. Rename them.")
    return keys


def _model_blocks(a: Any, b: Any, names: Sequence[str]) -> NDArray[np.object_]:
    """Blocks that accuracies go by where comparing does not keep to them: keys that are missing, not in both files or rare share one."""
    if not names:
        return np.full(a.num_rows, ALL, dtype=object)
    keys = _block_keys(a, names, "left")
    common = set(_block_keys(b, names, "right").tolist())
    counts = Counter(keys.tolist())
    blocks = np.empty(keys.size, dtype=object)
    blocks[:] = [
        OTHER if key is None or key not in common or counts[key] * _RARE < keys.size else key for key in keys.tolist()
    ]
    return blocks


def _id_column(table: Any, name: str | None) -> Any:
    import pyarrow as pa

    if name is None:
        return pa.array(np.arange(1, table.num_rows + 1)).cast(pa.string())
    return column_texts(table, name, "").combine_chunks()


def _read_pairs(data: Any, a: Any, b: Any, ids: tuple[str | None, str | None]) -> Candidates:
    """Links made elsewhere as candidates; without probabilities their evidence is infinite."""
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
    positions = []
    for column, file, id in zip(found, (a, b), ids, strict=True):
        place = {key: i for i, key in enumerate(_id_column(file, id).to_pylist())}
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
        if len(set(left.tolist())) != left.size or len(set(right.tolist())) != right.size:
            raise StudyError(
                "The pairs link a record twice, and have no probabilities to choose by. Give a column 'probability'."
            )
        return Candidates(left, right, np.full(left.size, 60.0), np.full(left.size, np.inf), n, m)
    odds = np.exp2(weight)
    prior = max(float((odds / (1.0 + odds)).sum()), 1e-9) / (
        n * m
    )  # the share of matches these probabilities amount to
    return Candidates(left, right, weight, odds * (1.0 - prior) / prior, n, m)


def _numbers(table: Any, name: str) -> NDArray[np.float64]:
    """A column as numbers, cell by cell; NaN for what is none."""
    values = table.column(name).to_pylist()
    return np.fromiter(map(number, values), np.float64, len(values))


def _has_answers(path: Path) -> bool:
    """Whether a file is an audit that a reviewer has begun to fill in."""
    if not path.is_file():
        return False
    table = read_file(path, None)[0]
    return "right" in table.column_names and table.column("right").null_count < table.num_rows


def _no_candidates(n: int, m: int) -> Candidates:
    none = np.zeros(0, dtype=np.int64)
    return Candidates(none, none, np.zeros(0), np.zeros(0), n, m)


def linkage_section(linkage: ELE) -> str:
    """A linkage model as the study's ``[linkage]`` section (TOML)."""
    lines = [
        "# The linkage of a study. FOR THE STEWARD: accuracies estimated from the files are data, not public values."
    ]
    if linkage.source == "estimated":
        lines += [
            "# source says where the accuracies come from; `fit` refuses 'estimated' as it stands. Either release them",
            '# (dplinked link … --audited … --release-accuracy), or replace them by public ones and write source = "public",',
            "# or keep them and declare accuracy_min here and linkage_change in [unit].",
        ]
    lines.append("[linkage]")
    for key, value in linkage.describe_whole().items():
        if value is not None and key != "model":
            lines.append(f"{key} = {_toml(value)}")
    lines += [
        "",
        "# What one person's identifiers may change about the links has to be said in [unit]: linking does not tell.",
        "",
    ]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)
