"""The linked rows of two files, and how good their links are. For the steward, not for publication."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import LEFT, RIGHT, column_texts, mark_origin, to_arrow, with_numbers
from dplinked.data.table import check_columns
from dplinked.errors import StudyError, plain_faults, plain_number, shown
from dplinked.ledger.key import audit_key
from dplinked.linkage import ELE, Matching
from dplinked.linkage.ele import RESULTS_OF_LINKING
from dplinked.linker import quality
from dplinked.linker.assignment import matching_matrix
from dplinked.linker.document import LinkageFacts, quality_document
from dplinked.linker.duplicates import START_SHARE, comparers_within, find_duplicates
from dplinked.linker.explain import Explanation, explain_by_rule
from dplinked.linker.fields import Field, make_comparers
from dplinked.linker.files import check_kept, linkage_section, save_linked
from dplinked.linker.matches import Matches, find_matches, find_matches_of_rows
from dplinked.linker.model import LinkageModel
from dplinked.linker.passes import BlockingPass, pair_budget
from dplinked.linker.resemblance import Resemblance, is_comparable, measure_resemblance
from dplinked.linker.rules import LATE, UNLINKED, Links, encode_names
from dplinked.linker.splink import explain_by_splink, named_tables, own_columns
from dplinked.linker.subgroups import LevelQuality, Levels, judge_levels, level_rates, read_levels
from dplinked.report.document import Document
from dplinked.report.files import HTML, check_ending
from dplinked.report.html import write_page
from dplinked.report.text import write_text

if TYPE_CHECKING:
    import pyarrow as pa

FileState = tuple[int, ...]
WHY = "why"  # the column of a reviewer's list that says what each field adds to the score
BLOCK, SCORE, PROBABILITY = RESULTS_OF_LINKING
# How far evidence may be off: that of rules is fitted to all pairs, that of a linker to the candidates it made, or nobody knows to what.
_MISJUDGED = {"rules": 10.0, "splink": 30.0, "pairs": 30.0}
_OF_FILES = (
    "pairs",
    "rows",
    "_own_probability",
    "_tried",
    "matches",
    "_resemblance",
    "_examples",
    "likely_duplicates",
)  # what an audit does not change
_FEW_PAIRS = 200_000  # within a file that are always worth comparing, to count duplicates
_MOST_COMPARED = 20  # columns that the report compares between rows and their wrong partners


@dataclass(frozen=True, repr=False)
class Linked:
    """Two files, linked one to one or many to one. Every row of the left file is kept.

    Attributes
    ----------
    left, right
        The two files (Arrow tables).
    links
        Which right record each left row is linked to, with the link's score and block.
    fields, method, ids
        The fields that were compared, the method of linking, and the id columns of both files.
    sources, states
        Where the two files were read from (paths, or the tables themselves), and the state of each file at that time.
    blocks
        The columns whose values divided the records into blocks.
    audit
        The accuracies that a clerical audit found, if one was read back.
    least_checked
        A public number of links that count as checked in every group, for accuracies that stay hidden; see :meth:`audited`.
    overlap, duplicates
        What was declared about the files: see :func:`dplinked.link`.
    readable
        For each field, the share of the left and of the right records whose value could be compared.
    engine, model
        Where Splink ran, and what tells matches from others, to link new records by; None for links made elsewhere.
    """

    left: pa.Table
    right: pa.Table
    links: Links
    fields: tuple[Field, ...]
    method: str
    ids: tuple[str | None, str | None]
    sources: tuple[Any, Any]
    states: tuple[FileState | None, FileState | None]
    blocks: tuple[str, ...] = ()
    audit: quality.AccuracyEstimate | None = None
    least_checked: int = quality.LEAST_CHECKED
    overlap: float | None = None
    duplicates: bool = True
    readable: tuple[tuple[float, float], ...] = ()
    engine: Any = "duckdb"
    model: LinkageModel | None = None

    def __repr__(self) -> str:
        return f"Linked({self.left.num_rows:,} rows, method={self.method!r}, {len(self.strata.names)} groups of links)"

    # --- the links -----------------------------------------------------------------------------

    @cached_property
    def strata(self) -> quality.Strata:
        """Groups of rows that share an accuracy."""
        return quality.make_strata(self.links.block, self.links.band)

    @property
    def passes(self) -> tuple[BlockingPass, ...]:
        """What was compared, pass by pass: how many pairs that took, how many might be links, and how many are. FOR THE STEWARD, not for publication."""
        return self.links.passes

    @cached_property
    def matches(self) -> Matches:
        """How probable candidate pairs are, how many people both files have, and how many further records of them. FOR THE STEWARD, not for publication."""
        return self._found_matches(self.overlap)

    def _found_matches(self, overlap: float | None, strength: float = 1.0) -> Matches:
        """What evidence says, or says if it is stronger or weaker, given what was declared about the files."""
        if self.carriers > 1:
            return find_matches_of_rows(self.links.candidates, overlap=overlap, strength=strength)
        return find_matches(self.links.candidates, overlap=overlap, duplicates=self.duplicates, strength=strength)

    @cached_property
    def likely_duplicates(self) -> tuple[int, int] | None:
        """About how many records of the left and of the right file are further records of somebody in it; None where fields are not compared as texts. FOR THE STEWARD, not for publication."""
        if self.model is None or self.model.own:
            return None
        found = (
            find_duplicates(
                comparers_within(table, self.fields, right=right), pair_budget(table.num_rows, table.num_rows, _FEW_PAIRS), START_SHARE
            ).clusters()
            for table, right in ((self.left, False), (self.right, True))
        )  # fmt: skip
        left, right = (int(clusters.size - np.unique(clusters).size) for clusters in found)
        return left, right

    @property
    def carriers(self) -> int:
        """How many rows may be linked to one record of the right file."""
        return self.links.carriers

    @property
    def _pair_probability(self) -> NDArray[np.float64]:
        """One-to-one probability of each candidate pair."""
        return self.matches.probability

    @cached_property
    def _own_probability(self) -> NDArray[np.float64]:
        """One-to-one probability of the link of each row."""
        return quality.link_probabilities(self.links, self._pair_probability)

    @cached_property
    def _tried(self) -> list[NDArray[np.float64]]:
        """The same if all evidence were stronger or weaker, the overlap being estimated."""
        factor = _MISJUDGED[self.method]
        return [
            quality.link_probabilities(self.links, found.probability)
            for strength in (factor, 1.0 / factor)
            for found in [self._found_matches(None, strength)]
        ]

    def _changed(self, kept: Sequence[str], **changes: Any) -> Linked:
        """The same linkage with some attributes changed; what was computed and is `kept` need not be computed again."""
        changed = replace(self, **changes)
        changed.__dict__.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        return changed

    @cached_property
    def pairs(self) -> pa.Table:
        """The ids of both records of each link, with block, score and one-to-one probability (n rows; null if there is no partner)."""
        import pyarrow as pa

        left_ids, right_ids = (
            id_column(table, name) for table, name in zip((self.left, self.right), self.ids, strict=True)
        )
        return pa.table({"left": left_ids, "right": right_ids.take(self._positions), **self._about_links()})

    @cached_property
    def rows(self) -> pa.Table:
        """The joined table: the left file's columns, the right file's columns, and each link's block, score and probability.

        A column of the right file whose name the left file has too gets ``_right`` at the end of its name. Each column's metadata says
        which file it comes from: `fit` takes regressors from one file only. Columns of text files that hold numbers are numbers here; ids, blocks and fields stay texts.
        """
        import pyarrow as pa

        named = {*self.blocks, *(field.name for field in self.fields)}, {*self.blocks, *(f.right for f in self.fields)}
        left = with_numbers(self.left, {*named[0], self.ids[0]})
        right = with_numbers(self.right, {*named[1], self.ids[1]})
        columns = list(left.columns)
        fields = [mark_origin(field, LEFT, compared=field.name in named[0]) for field in left.schema]
        taken, names = right.take(self._positions), set(left.column_names)
        about = self._about_links()
        for column, field in zip(taken.columns, taken.schema, strict=True):
            marked = mark_origin(
                field.with_nullable(True), RIGHT, compared=field.name in named[1], carriers=self.carriers
            )
            columns.append(column)
            fields.append(marked.with_name(f"{field.name}_right" if field.name in names else field.name))
        known = [field.name for field in fields] + list(about)
        if len(set(known)) < len(known):
            raise StudyError(
                f"Linked rows would have two columns of one name (…_right, or {list(about)}). Rename them first."
            )
        schema = pa.schema([*fields, *(pa.field(name, array.type) for name, array in about.items())])
        return pa.table([*columns, *about.values()], schema=schema)

    @property
    def _positions(self) -> pa.Array:
        """Position of each row's partner in the right file, null if it has none."""
        import pyarrow as pa

        return pa.array(self.links.right, pa.int64(), mask=self.links.right < 0)

    def _about_links(self) -> dict[str, pa.Array]:
        """Block, score and probability of each link, as columns."""
        import pyarrow as pa

        block = self.links.block
        if not self.strata.per_block:  # all blocks share one accuracy; a null key gets the accuracy `other`
            block = block.copy()
            block[np.isin(block.astype(str), LATE)] = None
        score = self.links.score
        return {
            BLOCK: pa.array(block.tolist(), pa.string()),
            SCORE: pa.array(score, mask=np.isnan(score)),
            PROBABILITY: pa.array(self._own_probability),
        }

    # --- why they are links --------------------------------------------------------------------

    @plain_faults
    def save_model(self, path: str | Path) -> None:
        """Write what tells matches from others to a JSON file, with all settings: ``dpl.link(…, model=path)`` links new records by it, and trains nothing.

        How often fields agree was read from identifiers, so the file is FOR THE STEWARD, not for publication.
        """
        if self.model is None:
            raise StudyError("These links were made elsewhere, so there is no model to keep.")
        check_ending(path, (".json",))
        self.model.save(path)

    @plain_faults
    def explain(self, row: int | str) -> pa.Table:
        """Say why a row of the left file, given by its position from 0 or by its id, is linked to its partner: how each field agrees, and what that adds to the score.

        The weights add up to ``link_score``. By rule they are the fields' scores, and the column ``evidence`` tells how much likelier the agreement is for a match (log2 of m/u). With Splink
        they are match weights, those of frequent values included; the first line is what any pair starts from. FOR THE STEWARD, not for publication.
        """
        import pyarrow as pa

        place = self._place(row)
        if self.links.right[place] < 0:
            raise StudyError("This row has no partner, so there is no link to explain.")
        told = self._explained(np.array([place]))
        values = {
            field.name: [
                table.column(name)[int(at)].as_py()
                for table, name, at in (
                    (self.left, field.name, place),
                    (self.right, str(field.right), self.links.right[place]),
                )
            ]
            for field in self.fields
        }
        cells = [
            [None if cell is None else str(cell) for cell in values.get(part, [None, None])] for part in told.parts
        ]
        table = {
            "field": list(told.parts),
            "left": [pair[0] for pair in cells],
            "right": [pair[1] for pair in cells],
            "agreement": told.agreement[0],
            "weight": told.weights[0],
        }
        if told.evidence is not None:
            table["evidence"] = np.append(told.evidence[0], np.zeros(len(told.parts) - told.evidence.shape[1]))
        return pa.table(table)

    def _place(self, row: int | str) -> int:
        """The position of a row of the left file that is given by position or by id."""
        if isinstance(row, str):
            ids = id_column(self.left, self.ids[0]).to_pylist()
            if self.ids[0] is None or row not in ids:
                raise StudyError("No record of the left file has this id.")
            return int(ids.index(row))
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < self.left.num_rows:
            raise StudyError("row must be the position of a row of the left file, from 0, or its id.")
        return int(row)

    def _explained(self, rows: NDArray[np.int64]) -> Explanation:
        """What the scores of the links of some rows, which have partners, are made of."""
        if self.model is None or not self.fields:
            raise StudyError("These links were made elsewhere, so what they were made by is not known here.")
        pairs, score = (rows, self.links.right[rows]), self.links.score[rows]
        if self.model.settings is None:
            taken = self.left.take(pairs[0]), self.right.take(pairs[1])
            return explain_by_rule(make_comparers(*taken, self.fields), self.model.evidence).completed(score)
        if self.model.own:
            names = dict[str, str]()
            left, right = (
                own_columns(table, self.fields, self.blocks, where)
                for table, where in ((self.left, "left"), (self.right, "right"))
            )
        else:
            left, right, names = named_tables(make_comparers(self.left, self.right, self.fields))
        return explain_by_splink(left, right, pairs, self.model.settings, names, self.engine).completed(score)

    @cached_property
    def _examples(self) -> tuple[list[str], Explanation] | None:
        """Links that the report explains: of those made first a typical one and the weakest, of those made later the strongest and a typical one."""
        late, score = np.isin(self.links.block.astype(str), LATE), self.links.score
        late |= False if self.links.below is None else self.links.below
        chosen = dict[int, str]()
        for some, end, names in (
            (~late, 0, ("a typical link over the threshold", "the weakest link over the threshold")),
            (late, -1, ("a typical link made later", "the strongest link made later")),
        ):
            known = np.flatnonzero(some & np.isfinite(score) & (self.links.right >= 0))
            if known.size:
                ordered = known[np.argsort(score[known], kind="stable")]
                chosen[int(ordered[end])] = names[1]
                chosen[int(ordered[ordered.size // 2])] = names[0]
        if self.model is None or not chosen:
            return None
        return list(chosen.values()), self._explained(np.array(list(chosen)))

    # --- how good they are ---------------------------------------------------------------------

    @cached_property
    def estimates(self) -> tuple[quality.AccuracyEstimate, ...]:
        """Accuracy per group, by every method that applies. `linkage` uses the first one."""
        found = [] if self.audit is None else [self.audit]
        return (*found, *self._modelled)

    @cached_property
    def _modelled(self) -> tuple[quality.AccuracyEstimate, ...]:
        """The estimates that follow from the evidence of pairs."""
        count = self.links.candidates.left.size
        if not count:
            return ()
        said = quality.describe_matches(self.matches, self.overlap, self.carriers)
        one = quality.estimate_from_probabilities(self.strata, self._own_probability, self._tried, said)
        one = replace(one, unopposed=self.carriers > 1)
        if count > quality.MOST_SIMULATED:
            return (one,)
        return one, quality.estimate_by_simulation(self.strata, self.links, self._pair_probability)

    @property
    def _open_estimates(self) -> list[quality.AccuracyEstimate]:
        """The estimates that may be used and shown: all but an audit of links that were drawn in secret."""
        return [found for found in self.estimates if found.secret is None]

    @property
    def linkage(self) -> ELE:
        """The linkage model for `fit`: exchangeable errors within groups, with accuracies estimated from these very files.

        An audit of links that were drawn in secret does not enter: :func:`dplinked.release_accuracy` alone may use it. Nor does one whose links were drawn by the levels of a variable, since one
        answer then moves accuracies further than is bounded.
        """
        usable = [found for found in self._open_estimates if found.by is None]
        if not usable:
            raise StudyError(
                "Nothing tells how good these links are: the pairs came without probabilities. Check some of them "
                "(audit_sample, without by=…), or declare dpl.ELE(accuracy=…, block='link_block') yourself."
            )
        best = usable[0]
        hidden = quality.hidden_accuracies(self.strata, best, self.least_checked)
        accuracy, other = quality.accuracy_table(self.strata, hidden)
        checked = None if best.checked is None else self.least_checked
        return ELE(
            accuracy, BLOCK, other=other, checked=checked, source="estimated", fields=self.compared or None, carriers=self.carriers
        )  # fmt: skip

    @plain_faults
    def linkage_by_identifiers(self, fields: Sequence[str] | None = None) -> ELE:
        """The linkage model for a `fit` that holds links fixed, with the accuracies that an audit of identifiers found.

        Privacy
        -------
        With ``unit=dpl.PrivacyUnit()`` the promise covers regressors and responses. Who links and who checks links sees identifiers alone, so that what they find is no
        function of these, and no noise is needed. That holds only if linking, choosing and checking links, and ending the check looked at no column
        of the formula and at nothing it was made of. `fit` refuses formulas with a linking field, and any unit that protects identifiers. Groups with fewer than ten checked
        links share one accuracy, so that none tells of few links. `fields` names further columns that somebody looked at; for links made elsewhere it must be
        said.
        """
        if self.audit is None:
            raise StudyError("No links were checked. Check some (audit_sample), then read them back with audited(…).")
        if self.audit.secret is not None:
            raise StudyError(
                "These links were drawn in secret, and accuracies as they were found would tell of who was drawn. Release them "
                "(dpl.release_accuracy), or draw links without a key."
            )
        counts = quality.pool_small_strata(self.strata, self.audit)
        if not counts[1].any():
            raise StudyError(f"Too few links were checked to show an accuracy: check {quality.LEAST_SHOWN} or more.")
        known = quality.known_accuracies(self.strata, *counts, scale=0.0)
        if self.method == "pairs" and not fields:
            raise StudyError(
                "These links were made elsewhere: say by which columns, linkage_by_identifiers(fields=[…])."
            )
        if self.audit.by is not None and self.audit.by not in self.compared:
            raise StudyError(
                f"These links were drawn by the levels of {shown(self.audit.by)}, by which records were not linked, so the accuracies would tell of it without noise. Check links that were drawn without by=…."
            )
        looked_at = list(dict.fromkeys([*self.compared, *(fields or ())]))
        return ELE(block=BLOCK, **known, source="identifiers", fields=looked_at, carriers=self.carriers)

    @property
    def compared(self) -> list[str]:
        """Names of the columns that records were linked by, of both files."""
        named = [name for field in self.fields for name in (field.name, field.right or field.name)]
        before = () if self.model is None else self.model.looked_at
        return list(dict.fromkeys([*named, *self.blocks, *before]))

    @plain_faults
    def matching(self, *, seed: int = 0, tolerance: float = 1e-6) -> Matching:
        """The matching matrix Q from the one-to-one probabilities. Its rows and columns sum to one within `tolerance`.

        Q comes from these very files, so `fit` asks for PrivacyUnit(linkage_change=…, displaced_links=…) with it.
        """
        if not self.links.candidates.left.size:
            raise StudyError("These links came without probabilities, so there is no matching matrix.")
        if self.carriers > 1:
            raise StudyError("The matching matrix is that of one-to-one links. Use the accuracies of groups: linkage.")
        single = find_matches(self.links.candidates, overlap=self.overlap, duplicates=False).probability
        return Matching(
            matching_matrix(self.links.right, self.links.candidates, single, seed=seed, tolerance=tolerance)
        )

    @plain_faults
    def banded(self, bands: int | Sequence[float] = 5) -> Linked:
        """Divide groups of links by how probable each link is, so that every band has an accuracy of its own.

        Wrong links are corrected as if every link of a group were wrong with the same probability. Where that differs with a regressor, it holds far better within bands, if wrong links stay within them. `bands` are
        cut points between 0 and 1, or how many bands there are to be, each with about as many wrong links. A band of a block with fewer than fifty rows joins the next one.
        Divide links before an audit is read back.

        Privacy
        -------
        Which band a row is in follows from many people's identifiers, like the rest of ``link_block``. So bands go with links and groups that are held fixed,
        ``PrivacyUnit()``; a unit that lets links change must cover what that does to bands with `linkage_change`.
        """
        if not self.links.candidates.left.size:
            raise StudyError("These links came without probabilities, so there are no bands of them.")
        if self.audit is not None or self.links.band is not None:
            raise StudyError(
                "Divide links into bands once, and before the answers of an audit are read back: linked.banded(…).audited(…)."
            )
        _check_bands(bands)
        own, divided = self._own_probability, ~np.isin(self.links.block.astype(str), LATE)
        cuts = quality.choose_cuts(own[divided], bands) if isinstance(bands, int) else list(bands)
        block, band = quality.band_links(self.links.block, own, cuts)
        banded = self._changed(
            ("matches", "_own_probability", "_tried"), links=replace(self.links, block=block, band=band)
        )
        if not banded.strata.per_block:
            raise StudyError(
                f"These are more than {quality.MOST_STRATA} groups, too many for an accuracy each. Ask for fewer bands, or link within fewer blocks."
            )
        return banded

    @plain_faults
    def audit_sample(
        self, size: int = 400, seed: int = 0, *, key: str | Path | bytes | None = None, by: str | None = None
    ) -> pa.Table:
        """Draw about `size` links for a person to check. Both records stand side by side; the answer, yes or no, goes into the column ``correct``.

        With `key`, random bytes or a file that holds them (it is made if it is not there), the sample is secret: nobody without the key knows who was drawn, and releasing
        what was found takes far less noise. That holds as long as key and sample stay secret: keep both like the data, or destroy them, show the reviewers' lists to nobody, and
        release from them once. The first sample is kept, however small it is, be it empty, and unclear links are decided and not drawn anew: who knows which samples are thrown away knows more of those
        that are kept. A column marks its list. Without a key, whoever knows the seed knows who was drawn.

        Every row of the left file is drawn with the same chance, which follows from its position, the seed or key, the size and the number of
        rows alone, so who is checked does not depend on the links. A row without a partner is answered already: it has no right link.

        With `by`, a column of the left file, as many links of each of its levels are drawn, so that rare ones can be told of as well (:meth:`quality_by`); estimates weigh links by their chances. Who is
        drawn then depends on that column, so that such an audit is for the steward and for :meth:`linkage_by_identifiers`, with a formula without that column. It cannot be secret, and its
        accuracies cannot be released.
        """
        import pyarrow as pa

        if key is not None and seed:
            raise StudyError("A sample is drawn by a public seed or by a secret key, not by both. Leave out seed=….")
        if key is not None and by is not None:
            raise StudyError(
                "In a secret sample every row has the same chance to be drawn, by which its noise is reckoned. Draw links by the levels of a variable with a seed, without key=…."
            )
        rates = None if by is None else level_rates(self._levels(by), size)
        secret = quality.seed_key(seed) if key is None else audit_key(key, create=True)
        rows = quality.draw_audit(self.links, self.strata, size, secret, rates)
        pairs = self.pairs.take(rows)
        table = {"left_id": pairs["left"], "right_id": pairs["right"], "block": pairs[BLOCK], "score": pairs[SCORE]}
        for field in self.fields:
            table[f"{field.name} (left)"] = self.left.column(field.name).take(rows)
            table[f"{field.right} (right)"] = self.right.column(field.right).take(self._positions.take(pa.array(rows)))
        if self.model is not None:
            linked = np.flatnonzero(self.links.right[rows] >= 0)
            told = self._explained(rows[linked]) if linked.size else None
            why = {int(k): told.line(place) for place, k in enumerate(linked)} if told is not None else {}
            table[WHY] = pa.array([why.get(k) for k in range(rows.size)], pa.string())
        table[quality.ANSWER] = pa.array(["no" if right < 0 else None for right in self.links.right[rows]], pa.string())
        if rates is not None:
            table[quality.DRAWN_BY], table[quality.CHANCE] = pa.array([by] * rows.size), pa.array(rates[rows])
        if key is not None:
            table[quality.SECRET] = pa.array(["show to nobody"] * rows.size, pa.string())
        return pa.table(table)

    @plain_faults
    def audited(
        self,
        answers: Any,
        *,
        least_checked: int = quality.LEAST_CHECKED,
        key: str | Path | bytes | None = None,
        size: int | None = None,
    ) -> Linked:
        """Read a checked sample back, given as a table or as the path of a CSV or Parquet file.

        A secret sample needs the `key` and the `size` it was drawn with, and an answer for every link of it; its list is refused without them.

        `least_checked` matters only if the accuracies are to stay hidden (:attr:`linkage`). It is public, so choose it before the audit: groups with fewer
        checked links are estimated as if the links that lack were half right, and one person moves no accuracy by more than one over it.
        """
        if isinstance(least_checked, bool) or not isinstance(least_checked, int) or least_checked < 1:
            raise StudyError(f"least_checked must be a whole number, 1 or more, not {shown(least_checked)}.")
        table = to_arrow(answers, "audit")
        answered = quality.answer_column(table.column_names)
        missing = {"left_id", "right_id", answered or quality.ANSWER} - set(table.column_names)
        if answered is None or missing:
            raise StudyError(f"The audit lacks the column(s) {sorted(missing)}. Fill in what audit_sample wrote.")
        if (key is not None) != (quality.SECRET in table.column_names):
            raise StudyError(
                f"The list of a secret sample has the column {quality.SECRET!r}, and no other list has it. Read a secret one back with its key and its size, and any other without them."
            )
        left_id, right_id = (column_texts(table, name, "audit").to_pylist() for name in ("left_id", "right_id"))
        known = dict(zip(self.pairs["left"].to_pylist(), range(self.left.num_rows), strict=True))
        partner = self.pairs["right"].to_pylist()
        rows = [known.get(one, -1) for one in left_id]
        if not rows and key is None:
            raise StudyError("The audit has no answers.")
        if any(row < 0 or partner[row] != other for row, other in zip(rows, right_id, strict=True)):
            raise StudyError(
                "The audit belongs to other links: link the same files with the same settings as when it was drawn."
            )
        if len(set(rows)) != len(rows):
            raise StudyError("The audit names a link twice.")
        correct = quality.read_answers(table.column(answered).to_pylist(), answered)
        checked = np.array(rows, dtype=np.int64)
        found = quality.estimate_from_audit(self.strata, checked, correct, *quality.read_chances(table))
        audit = replace(found, secret=self._secret_audit(checked, key, size))
        return self._changed((*_OF_FILES, "strata", "_modelled"), audit=audit, least_checked=least_checked)

    def _secret_audit(
        self, checked: NDArray[np.int64], key: str | Path | bytes | None, size: int | None
    ) -> quality.SecretAudit | None:
        """How the checked rows were drawn in secret. Rows that the key does not draw are refused: who else chose them may have told of it, or looked at them."""
        if (key is None) != (size is None):
            raise StudyError(
                "A secret sample is known by its key and its size: give both, as in audit_sample(size, key=…)."
            )
        if key is None or size is None:
            return None
        secret = audit_key(key)
        if not np.array_equal(np.sort(checked), quality.draw_audit(self.links, self.strata, size, secret)):
            raise StudyError(
                "These are not all the links that the key draws, and no others. Give the size and the key that they were drawn with, and answer every line; "
                "links drawn by a seed have no key."
            )
        return quality.SecretAudit(
            quality.sampling_rate(size, self.left.num_rows), hashlib.sha256(b"tag" + secret).hexdigest()
        )

    @plain_faults
    def quality_by(self, column: str) -> dict[str, LevelQuality]:
        """Say how good links are on each level of a column of the left file: as estimated and, after an audit, as checked, with intervals.

        Numbers with many values are divided into four classes. What an audit of links that were drawn in secret found is not told. FOR THE STEWARD, not for publication.
        """
        own, tried = (self._own_probability, self._tried) if self.links.candidates.left.size else (None, [])
        audit = None if self.audit is None or self.audit.secret is not None else self.audit
        linkable = self.links.block != UNLINKED
        return {one.level: one for one in judge_levels(self._levels(column), own, tried, audit, linkable)}

    def _levels(self, column: str) -> Levels:
        """The levels of a column of the left file."""
        if not isinstance(column, str):
            raise StudyError("by must be the name of a column of the left file, like by='sex'.")
        check_columns([column], self.left.column_names)
        return read_levels(self.left.column(column), column)

    @plain_faults
    def resemblance(self, columns: Sequence[str] | None = None) -> dict[str, Resemblance]:
        """Say of columns of the left file how alike wrong links are to the rows they fall on, from the records that compete for a partner.

        By default these are the first twenty columns that hold numbers, dates or few levels, apart from ids and what was compared. The correction of wrong links is right where none of the
        regressors is flagged; `advice` says what to do otherwise. FOR THE STEWARD, not for publication.
        """
        if not self.links.candidates.left.size:
            raise StudyError("These links came without probabilities, so it is not known which records competed.")
        if self.carriers > 1:
            raise StudyError(
                "Rows that may share a record do not compete for it, so their likeness tells nothing. Read quality_by(…)."
            )
        if columns is None:
            used = {self.ids[0], *self.blocks, *(field.name for field in self.fields)}
            named = [name for name in self.left.column_names if name not in used]
            columns = [name for name in named if is_comparable(self.left.column(name))][:_MOST_COMPARED]
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise StudyError("columns must be a list of names, like ['income', 'age'].")
        check_columns(columns, self.left.column_names)
        groups = encode_names(self.links.block)[1]
        evidence = self.links, groups, self._pair_probability, self._own_probability
        return {name: measure_resemblance(self.left.column(name), name, *evidence) for name in columns}

    @cached_property
    def _resemblance(self) -> dict[str, Resemblance]:
        """What the report says of resemblance."""
        return self.resemblance()

    def overall(self, linkage: ELE) -> float:
        """The mean accuracy of all rows under a linkage model."""

        def of(name: str) -> float:
            found = linkage.accuracy_of(None if name in LATE and not self.strata.per_block else name)
            return found if found is not None else linkage.other_accuracy or 0.0

        return float(np.average([of(name) for name in self.strata.names], weights=self.strata.rows))

    # --- for people ----------------------------------------------------------------------------

    def summary(self, by: Sequence[str] = ()) -> str:
        """The quality report as text; with quality on the levels of the columns in `by`."""
        return write_text(self._document(by))

    def to_html(self, path: str | Path | None = None, *, by: Sequence[str] = ()) -> str:
        """The quality report as an HTML page, also written to a file if a path is given; with quality on the levels of the columns in `by`."""
        page = write_page(self._document(by))
        if path is not None:
            check_ending(path, HTML)
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _document(self, by: Sequence[str]) -> Document:
        if isinstance(by, str):
            raise StudyError("by must be a list of names, like by=['sex', 'region'].")
        rows = self.left.num_rows, self.right.num_rows
        found = list(self._resemblance.values()) if self.links.candidates.left.size and self.carriers == 1 else []
        secret = self.audit is not None and self.audit.secret is not None
        return quality_document(
            LinkageFacts(
                rows,
                self.links,
                self.fields,
                self.method,
                self.strata,
                self._open_estimates,
                found,
                secret,
                self.readable,
                {name: list(self.quality_by(name).values()) for name in by},
                self._examples,
                self.likely_duplicates,
            )
        )

    def linkage_toml(self) -> str:
        """The study's ``[linkage]`` section."""
        return linkage_section(self.linkage)

    def save(
        self,
        folder: str | Path,
        *,
        audit_sample: int | None = None,
        seed: int = 0,
        key: str | Path | bytes | None = None,
        linkage: ELE | None = None,
        by: Sequence[str] = (),
        audit_by: str | None = None,
    ) -> list[str]:
        """Write linked.parquet, linkage.toml, quality.txt and quality.html into a folder: all of them, or none if one fails.

        With `audit_sample`, about so many links to check are written to audit.csv, drawn with `seed` or, in secret, with `key`; then only their owner can read audit.csv and the reports. `linkage` is the model for
        linkage.toml, for instance with released accuracies; by default the one estimated from the files. The reports tell quality on the levels of the columns in `by`, and `audit_by` draws as many links
        of each level of a column. Returns the names of the files.
        """
        if isinstance(key, (str, Path)):
            check_kept(Path(folder), Path(key))
        sample = None
        if audit_sample is not None:
            sample = self.audit_sample(audit_sample, seed if key is None else 0, key=key, by=audit_by)
        return save_linked(self, Path(folder), sample=sample, linkage=linkage, by=by)


def _check_bands(bands: Any) -> None:
    """Refuse what is neither a number of bands nor a list of cut points."""
    if isinstance(bands, int) and not isinstance(bands, bool):
        fine = 2 <= bands <= quality.MOST_STRATA
    else:
        edges = [0.0, *map(plain_number, bands), 1.0] if isinstance(bands, (list, tuple)) and bands else []
        fine = bool(edges) and all(low < high for low, high in pairwise(edges))
    if not fine:
        raise StudyError(
            f"bands must be a number of bands from 2 to {quality.MOST_STRATA}, or a list of cut points between 0 and 1 in ascending order, not {shown(bands)}."
        )


def id_column(table: pa.Table, name: str | None) -> pa.Array:
    """The ids of a file's records as texts; row numbers from 1 on if there is no id column."""
    import pyarrow as pa

    if name is None:
        return pa.array(np.arange(1, table.num_rows + 1)).cast(pa.string())
    return column_texts(table, name, "").combine_chunks()
