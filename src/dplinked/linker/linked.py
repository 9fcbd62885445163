"""Linked rows, and how good their links are. For the steward, not for publication."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import column_texts, to_arrow
from dplinked.data.files import read_file
from dplinked.errors import StudyError, raise_alone
from dplinked.linkage import ELE, Matching
from dplinked.linkage.ele import LINK_BLOCK
from dplinked.linker import quality as judged
from dplinked.linker.assignment import match_probabilities, matching_matrix
from dplinked.linker.document import LinkageFacts, quality_document
from dplinked.linker.fields import Field
from dplinked.linker.rules import LAST, UNLINKED, Links
from dplinked.report.document import Document
from dplinked.report.html import write_page
from dplinked.report.text import write_text

FileState = tuple[int, ...]
BLOCK, SCORE, PROBABILITY = LINK_BLOCK, "link_score", "link_probability"
_KNOWN = 1e12  # "links checked" where the accuracy is a public number: rows without a partner
_STALE = {"linkage.toml", "accuracy.json"}


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
    sources, states
        Where the two files were read from (paths, or the tables themselves), and the files' states when they were.
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
    states: tuple[FileState | None, FileState | None]
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
            id_column(table, name) for table, name in zip((self.left, self.right), self.ids, strict=True)
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
        return write_text(self._document())

    def to_html(self, path: str | Path | None = None) -> str:
        """The quality report as one page, written to a file if a path is given."""
        page = write_page(self._document())
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _document(self) -> Document:
        rows = self.left.num_rows, self.right.num_rows
        return quality_document(LinkageFacts(rows, self.links, self.fields, self.method, self.strata, self.estimates))

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


def _has_answers(path: Path) -> bool:
    """Whether a file is an audit that a reviewer has begun to fill in."""
    if not path.is_file():
        return False
    table = read_file(path, None)[0]
    return "right" in table.column_names and table.column("right").null_count < table.num_rows


def id_column(table: Any, name: str | None) -> Any:
    import pyarrow as pa

    if name is None:
        return pa.array(np.arange(1, table.num_rows + 1)).cast(pa.string())
    return column_texts(table, name, "").combine_chunks()
