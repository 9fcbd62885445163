"""The linked rows of two files, and how good their links are. For the steward, not for publication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.table import check_columns
from dplinked.errors import StudyError, plain_faults, shown
from dplinked.linkage import ELE, Matching
from dplinked.linker.accuracies import hidden_linkage, linkage_by_identifiers
from dplinked.linker.assignment import matching_matrix
from dplinked.linker.audit import LEAST_CHECKED
from dplinked.linker.describe_quality import describe_answer
from dplinked.linker.document import quality_document
from dplinked.linker.duplicates import count_duplicates
from dplinked.linker.explain import Explanation
from dplinked.linker.facts import LinkageFacts
from dplinked.linker.fields import Field
from dplinked.linker.files import check_kept, linkage_section, save_linked
from dplinked.linker.joined import join_pairs, join_rows
from dplinked.linker.matches import Matches, find_matches, find_matches_of_rows
from dplinked.linker.model import LinkageModel
from dplinked.linker.passes import BlockingPass
from dplinked.linker.quality import (
    AccuracyEstimate,
    describe_matches,
    estimate_from_probabilities,
    link_probabilities,
    simulate_if_small,
)
from dplinked.linker.reasons import choose_examples, tell_why
from dplinked.linker.resemblance import Resemblance, comparable_columns, measure_resemblance
from dplinked.linker.review import draw_list, read_list
from dplinked.linker.rules import LATE, UNLINKED, Links, encode_names
from dplinked.linker.strata import MOST_STRATA, Strata, band_links, check_bands, choose_cuts, make_strata
from dplinked.linker.subgroups import LevelQuality, judge_levels, levels_of
from dplinked.report.document import Document
from dplinked.report.files import HTML, check_ending
from dplinked.report.html import write_page
from dplinked.report.text import write_text

if TYPE_CHECKING:
    import pyarrow as pa

FileState = tuple[int, ...]
# How far evidence may be off: that of rules is fitted to all pairs, that of a linker to the candidates it made, or nobody knows to what.
_MISJUDGED = {"rules": 10.0, "splink": 30.0, "pairs": 30.0, "encodings": 30.0}
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
        Where the two files were read from (paths, as :class:`File` where it was declared how they are written, or the tables themselves), and the state of each file at that time.
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
    encoded
        The columns that holders encoded, by their names; the tables here have pseudonyms alone.
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
    audit: AccuracyEstimate | None = None
    least_checked: int = LEAST_CHECKED
    overlap: float | None = None
    duplicates: bool = True
    readable: tuple[tuple[float, float], ...] = ()
    engine: Any = "duckdb"
    model: LinkageModel | None = None
    encoded: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Linked({self.left.num_rows:,} rows, method={self.method!r}, {len(self.strata.names)} groups of links)"

    # --- the links -----------------------------------------------------------------------------

    @cached_property
    def strata(self) -> Strata:
        """Groups of rows that share an accuracy."""
        return make_strata(self.links.block, self.links.band)

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
        return count_duplicates(self.left, self.right, self.fields)

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
        return link_probabilities(self.links, self._pair_probability)

    @cached_property
    def _tried(self) -> list[NDArray[np.float64]]:
        """The same if all evidence were stronger or weaker, the overlap being estimated, if many further records were namesakes', or with the probabilities that pairs were given elsewhere."""
        factor = _MISJUDGED[self.method]
        tried = [self._found_matches(None, strength).probability for strength in (factor, 1.0 / factor)]
        if self.matches.otherwise is not None:
            tried.append(self.matches.otherwise)
        if self.method == "pairs":  # who made them may know how many people are in both files
            tried.append(1.0 / (1.0 + np.exp2(-self.links.candidates.score)))
        return [link_probabilities(self.links, probability) for probability in tried]

    def _changed(self, kept: Sequence[str], **changes: Any) -> Linked:
        """The same linkage with some attributes changed; what was computed and is `kept` need not be computed again."""
        changed = replace(self, **changes)
        changed.__dict__.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        return changed

    @cached_property
    def pairs(self) -> pa.Table:
        """The ids of both records of each link, with block, score and one-to-one probability (n rows; null if there is no partner)."""
        return join_pairs(self, self._own_probability)

    @cached_property
    def rows(self) -> pa.Table:
        """The joined table: the left file's columns, the right file's columns, and each link's block, score and probability.

        A column of the right file whose name the left file has too gets ``_right`` at the end of its name. Each column's metadata says
        which file it comes from: `fit` takes regressors from one file only. Columns of text files that hold numbers are numbers here; ids, blocks and fields stay texts.
        """
        return join_rows(self, self._own_probability)

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
        return tell_why(self, row)

    @cached_property
    def _examples(self) -> tuple[list[str], Explanation] | None:
        """Links that the report explains: of those made first a typical one and the weakest, of those made later the strongest and a typical one."""
        return choose_examples(self)

    # --- how good they are ---------------------------------------------------------------------

    @cached_property
    def estimates(self) -> tuple[AccuracyEstimate, ...]:
        """Accuracy per group, by every method that applies. `linkage` uses the first one."""
        found = [] if self.audit is None else [self.audit]
        return (*found, *self._modelled)

    @cached_property
    def _modelled(self) -> tuple[AccuracyEstimate, ...]:
        """The estimates that follow from the evidence of pairs."""
        if not self.links.candidates.left.size:
            return ()
        said = describe_matches(self.matches, self.overlap, self.carriers)
        one = estimate_from_probabilities(self.strata, self._own_probability, self._tried, said)
        return (
            replace(one, unopposed=self.carriers > 1),
            *simulate_if_small(self.strata, self.links, self._pair_probability),
        )

    @property
    def _open_estimates(self) -> list[AccuracyEstimate]:
        """The estimates that may be used and shown: all but an audit of links that were drawn in secret."""
        return [found for found in self.estimates if found.secret is None]

    @property
    def linkage(self) -> ELE:
        """The linkage model for `fit`: exchangeable errors within groups, with accuracies estimated from these very files.

        An audit of links that were drawn in secret does not enter: :func:`dplinked.release_accuracy` alone may use it. Nor does one whose links were drawn by the levels of a variable, since one
        answer then moves accuracies further than is bounded.
        """
        return hidden_linkage(self, self._open_estimates)

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
        return linkage_by_identifiers(self, fields)

    @property
    def compared(self) -> list[str]:
        """Names of the columns that records were linked by, of both files."""
        named = [name for field in self.fields for name in (field.name, field.right or field.name)]
        before = () if self.model is None else self.model.looked_at
        return list(dict.fromkeys([*named, *self.encoded, *self.blocks, *before]))

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
        check_bands(bands)
        own, divided = self._own_probability, ~np.isin(self.links.block.astype(str), LATE)
        cuts = choose_cuts(own[divided], bands) if isinstance(bands, int) else list(bands)
        block, band = band_links(self.links.block, own, cuts)
        banded = self._changed(
            ("matches", "_own_probability", "_tried"), links=replace(self.links, block=block, band=band)
        )
        if not banded.strata.per_block:
            raise StudyError(
                f"These are more than {MOST_STRATA} groups, too many for an accuracy each. Ask for fewer bands, or link within fewer blocks."
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
        return draw_list(self, size, seed, key=key, by=by)

    @plain_faults
    def audited(
        self,
        answers: Any,
        *,
        least_checked: int = LEAST_CHECKED,
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
        audit = read_list(self, answers, key, size)
        return self._changed((*_OF_FILES, "strata", "_modelled"), audit=audit, least_checked=least_checked)

    @plain_faults
    def quality_by(self, column: str) -> dict[str, LevelQuality]:
        """Say how good links are on each level of a column of the left file: as estimated and, after an audit, as checked, with intervals.

        Numbers with many values are divided into four classes. What an audit of links that were drawn in secret found is not told. FOR THE STEWARD, not for publication.
        """
        own, tried = (self._own_probability, self._tried) if self.links.candidates.left.size else (None, [])
        audit = None if self.audit is None or self.audit.secret is not None else self.audit
        linkable = self.links.block != UNLINKED
        return {one.level: one for one in judge_levels(levels_of(self.left, column), own, tried, audit, linkable)}

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
            columns = comparable_columns(self.left, used)
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

    @property
    def answer(self) -> str:
        """How good the links are, in a few sentences: the first ones of the report. FOR THE STEWARD, not for publication."""
        return " ".join(describe_answer(self._facts(())))

    def _document(self, by: Sequence[str]) -> Document:
        return quality_document(self._facts(by))

    def _facts(self, by: Sequence[str]) -> LinkageFacts:
        if isinstance(by, str):
            raise StudyError("by must be a list of names, like by=['sex', 'region'].")
        rows = self.left.num_rows, self.right.num_rows
        found = list(self._resemblance.values()) if self.links.candidates.left.size and self.carriers == 1 else []
        secret = self.audit is not None and self.audit.secret is not None
        return LinkageFacts(
            rows, self.links, self.fields, self.method, self.strata, self._open_estimates, found, secret, self.readable,
            {name: list(self.quality_by(name).values()) for name in by}, self._examples, self.likely_duplicates,
        )  # fmt: skip

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

        Only their owner can read the files. With `audit_sample`, about so many links to check are written to audit.csv, drawn with `seed` or, in secret, with `key`. A text in it that a spreadsheet would take for a formula
        stands behind an apostrophe, which reading takes away again. `linkage` is the model for
        linkage.toml, for instance with released accuracies; by default the one estimated from the files. The reports tell quality on the levels of the columns in `by`, and `audit_by` draws as many links
        of each level of a column. Returns the names of the files.
        """
        if isinstance(key, (str, Path)):
            check_kept(Path(folder), Path(key))
        sample = None
        if audit_sample is not None:
            sample = self.audit_sample(audit_sample, seed if key is None else 0, key=key, by=audit_by)
        return save_linked(self, Path(folder), sample=sample, linkage=linkage, by=by)
