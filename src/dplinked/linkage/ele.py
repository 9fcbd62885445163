"""Exchangeable linkage errors: within a block, a wrong link is equally likely to fall on any other row."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import StudyError, plain_faults, plain_number, shown
from dplinked.linkage.accuracies import checked_accuracies, checked_accuracy, checked_per_block
from dplinked.linkage.compared import find_compared
from dplinked.linkage.declared import DeclaredLinkage
from dplinked.linkage.secret_sample import SecretSample
from dplinked.linkage.unit import LinkageExposure, PrivacyUnit, checked_carriers

Floats = NDArray[np.float64]

SOURCES = ("public", "released", "estimated", "identifiers")
UNSTATED_SOURCE = "unstated"
LINK_BLOCK = "link_block"  # column of the groups that linking found: a result of the linkage, not a key of the files
LAST = "(last)"  # group of the rows that were linked last, at random
RESULTS_OF_LINKING = (LINK_BLOCK, "link_score", "link_probability")  # columns that linking adds to the rows

SAY_SOURCE = (
    "An accuracy that was found by checking links (checked=…, accuracy_error=…) needs its source: ELE(…, source=…). Write 'public' if the "
    "links were those of other files or other people. If they were links of these very files: 'identifiers' if linking and checking looked at "
    "identifiers alone and links are held fixed. Else the accuracy is data: let dpl.release_accuracy pay for it ('released'), or keep it hidden "
    "('estimated', with accuracy_min)."
)


def _as_plain(value: Any) -> Any:
    """A setting of the model as JSON and TOML write it."""
    if isinstance(value, SecretSample):
        return asdict(value)
    if isinstance(value, tuple) and isinstance(value[0], Mapping):
        return tuple(dict(part) for part in value)
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, init=False, repr=False)
class ELE:
    """Exchangeable linkage errors within blocks.

    In a block of m rows with accuracy γ, a link is correct with probability γ and falls on each of the other rows
    with probability ``(1-γ)/(m-1)``. The link in a block of one row is always correct.

    Parameters
    ----------
    accuracy
        One number for all blocks, a mapping ``{block: number}``, or a table with the block column and
        a column ``accuracy``. `source` says whether these numbers are public, released or data.
    block
        Name of the block column. Without it all rows form one block.
    other
        Rows whose key is null, or not in the mapping, form one further block; this is its accuracy. If `accuracy` is a
        single number, the rows with null keys form one block with that accuracy, unless `other` is given.
    checked
        How many links were checked to find the accuracy. For a single accuracy this is the total. For accuracies per block it is
        the number per block: one number that holds for every block, or a mapping; with ``source="estimated"`` one public number. Intervals then
        include the accuracy's own error. It asks for `source`, and so does `accuracy_error`: links of these very files do not make a public accuracy.
    accuracy_error
        Instead of `checked`, the accuracy's standard error, in the same form; not with ``source="estimated"``.
    other_error
        With `accuracy_error`, the standard error of `other`. By default it is that of the block least well known, or that of the single accuracy.
    shared_error
        With `accuracy_error` per block, the parts of these errors that blocks have in common, as one mapping ``{block: error}`` for each thing that moves
        several accuracies at once, such as a mean that they were drawn towards. Whatever is not shared is taken as independent.
    source
        Where the accuracies come from. ``"public"`` declares that they are known without these people's data. It is the
        default where nothing is said about checked links, except for the groups found by linking (``link_block``). ``"released"``: they
        come from :func:`dplinked.release_accuracy`, which paid for them. ``"estimated"``: they were estimated from these
        very files, so they are data. Then they enter only Q, the release does not show them, and `accuracy_min` and
        ``PrivacyUnit(linkage_change=…)`` above 0 must be declared: one person always moves them. ``"identifiers"``: links of these very
        files were checked by identifiers alone. Where links are held fixed, that tells nothing of what is protected, so the accuracies are used and shown as they
        are. It needs `fields`, how well they are known (`checked` or `accuracy_error`), and a unit that protects no identifiers.
    accuracy_min
        Only with ``source="estimated"``: a public lower limit of the accuracies. Smaller ones are raised to it.
    paid, displaced_links
        Only with ``source="released"``: what releasing the accuracies cost, as its μ or as the numbers of its secret sample, and the number of
        displaced links in the privacy unit of that release.
    carriers
        How many rows may hold one person's response: 1 for one-to-one links. If links are one to many, all of these rows change with
        the person, and a number that is too small breaks the promise.
    fields
        The columns that records were linked by. With ``source="identifiers"`` they must be named, with those that checking looked at: none of them, and nothing made of them,
        may be in the formula. Otherwise a formula that names one is fitted, and the release says what that does to slopes.
    """

    accuracy: float | Mapping[str, float]
    block: str | None
    other: float | None
    checked: float | Mapping[str, float] | None
    accuracy_error: float | Mapping[str, float] | None
    other_error: float | None
    shared_error: tuple[Mapping[str, float], ...] | None
    source: str
    accuracy_min: float | None
    paid: float | SecretSample | None
    displaced_links: int | None
    carriers: int
    fields: tuple[str, ...] | None

    @plain_faults
    def __init__(
        self,
        accuracy: Any,
        block: str | None = None,
        *,
        other: float | None = None,
        checked: float | Mapping[Hashable, float] | None = None,
        accuracy_error: float | Mapping[Hashable, float] | None = None,
        other_error: float | None = None,
        shared_error: Sequence[Mapping[Hashable, float]] | None = None,
        source: str | None = None,
        accuracy_min: float | None = None,
        paid: float | SecretSample | Mapping[str, Any] | None = None,
        displaced_links: int | None = None,
        carriers: int = 1,
        fields: Sequence[str] | None = None,
    ) -> None:
        if block is not None and not isinstance(block, str):
            raise StudyError(f"block must be a column's name, not {shown(block)}.")
        other = None if other is None else checked_accuracy(other, "accuracy of other blocks")
        object.__setattr__(self, "accuracy", checked_accuracies(accuracy, block))
        object.__setattr__(self, "block", block)
        object.__setattr__(self, "other", other)
        self._set_errors(checked, accuracy_error)
        self._set_other_error(other_error)
        self._set_shared_error(shared_error)
        self._set_source(source, accuracy_min)
        self._set_payment(paid, displaced_links)
        object.__setattr__(self, "carriers", checked_carriers(carriers))
        self._set_fields(fields)

    def _set_errors(self, checked: Any, accuracy_error: Any) -> None:
        """Set how well the accuracies are known, per block only for the blocks that have an accuracy."""
        if checked is not None and accuracy_error is not None:
            raise StudyError("Give checked or accuracy_error, not both.")
        object.__setattr__(self, "checked", checked_per_block(checked, "checked", 1.0, math.inf))
        object.__setattr__(self, "accuracy_error", checked_per_block(accuracy_error, "accuracy_error", 0.0, 0.5))
        blocks = set(self.accuracy) if isinstance(self.accuracy, Mapping) else set()
        for known in (self.checked, self.accuracy_error):
            if isinstance(known, Mapping) and set(known) != blocks:
                raise StudyError("checked and accuracy_error per block must name the same blocks as the accuracy.")

    def _set_other_error(self, other_error: Any) -> None:
        """Set how well the accuracy of the other block is known, where that differs from the rest."""
        if other_error is not None and (self.other is None or self.accuracy_error is None):
            raise StudyError("other_error is the error of other=…, and goes with accuracy_error=…: give all three.")
        if isinstance(other_error, Mapping):
            raise StudyError("other_error must be one number: other=… is the accuracy of one block.")
        object.__setattr__(self, "other_error", checked_per_block(other_error, "other_error", 0.0, 0.5))

    def _set_shared_error(self, shared_error: Any) -> None:
        """Set what errors of blocks have in common: no more than all of any block's error."""
        if not shared_error:
            object.__setattr__(self, "shared_error", None)
            return
        if not isinstance(shared_error, (list, tuple)) or not all(isinstance(part, Mapping) for part in shared_error):
            raise StudyError(
                "shared_error must be a list of mappings {block: error}, one for each thing that blocks share."
            )
        parts = tuple(checked_per_block(part, "shared_error", 0.0, 0.5) for part in shared_error)
        object.__setattr__(self, "shared_error", parts)
        errors = self.accuracy_error if isinstance(self.accuracy_error, Mapping) else {}
        if not {key for part in self.shared_error or () for key in part} <= set(errors):
            raise StudyError("shared_error needs accuracy_error={block: error}, and names no other blocks than it.")
        if any(self._shared_variance(key) > error**2 * (1.0 + 1e-9) for key, error in errors.items()):
            raise StudyError("shared_error is a part of accuracy_error, so no block's may be larger.")

    def _set_source(self, source: str | None, accuracy_min: float | None) -> None:
        """Set where the accuracies come from, and the lower limit that estimated ones need."""
        if source is None:
            if self.knows_error:
                raise StudyError(SAY_SOURCE)
            source = UNSTATED_SOURCE if self.block == LINK_BLOCK else "public"
        elif source not in SOURCES:
            raise StudyError(f"The accuracy's source must be one of {list(SOURCES)}, not {shown(source)}.")
        if accuracy_min is not None:
            accuracy_min = checked_accuracy(accuracy_min, "accuracy_min")
            if source != "estimated":
                raise StudyError(
                    "accuracy_min belongs to source='estimated'; elsewhere the accuracies are public themselves."
                )
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "accuracy_min", accuracy_min)

    def _set_payment(self, paid: Any, displaced_links: int | None) -> None:
        """Set what released accuracies cost, and for which unit; only these have a cost."""
        released = self.source == "released"
        if isinstance(paid, Mapping):
            paid = SecretSample(**paid)
        secret = isinstance(paid, SecretSample)
        if (paid is not None) != released or not (paid is None or secret or 0.0 < plain_number(paid) < math.inf):
            raise StudyError(
                "source='released' needs paid=…, what the release of the accuracies cost, and only it takes one."
            )
        whole = isinstance(displaced_links, int) and not isinstance(displaced_links, bool)
        if whole != released or (displaced_links is not None) != released:
            raise StudyError(
                "source='released' needs displaced_links=…, which its release was paid for, and only it takes one."
            )
        if isinstance(paid, SecretSample) and displaced_links is not None and paid.rows < 2 + displaced_links:
            raise StudyError(
                f"The accuracies were released for {paid.rows} rows per person, too few for {displaced_links} displaced link(s)."
            )
        object.__setattr__(self, "paid", paid)
        object.__setattr__(self, "displaced_links", displaced_links)

    def _set_fields(self, fields: Sequence[str] | None) -> None:
        """Set the columns that records were linked by, and that an audit of identifiers looked at."""
        listed = isinstance(fields, (list, tuple)) and len(fields) > 0 and all(isinstance(name, str) for name in fields)
        if self.source == "identifiers" and not listed:
            raise StudyError(
                "source='identifiers' needs fields=[…], the names of the columns by which links were made and checked."
            )
        if fields is not None and not listed:
            raise StudyError("fields must be a list of the names of columns, fields=['surname', 'date_of_birth'].")
        if self.source == "identifiers" and not self.knows_error:
            raise StudyError("source='identifiers' needs checked=…, how many links were checked, or accuracy_error=….")
        object.__setattr__(self, "fields", tuple(fields) if listed and fields is not None else None)

    def __repr__(self) -> str:
        if self.source == "estimated":
            accuracy = "withheld"
        else:
            accuracy = f"of {len(self.accuracy)} blocks" if isinstance(self.accuracy, Mapping) else f"{self.accuracy!r}"
        return f"ELE(accuracy={accuracy}, block={shown(self.block)}, source={self.source!r})"

    @property
    def public(self) -> ELE:
        """The part of the model that may be used outside the sums: all of it, unless the accuracies are data."""
        if self.source != "estimated" or self.accuracy_min is None:
            return self
        assert not isinstance(self.checked, Mapping)  # `check_source` refuses it
        return ELE(self.accuracy_min, self.block, checked=self.checked, source="public", carriers=self.carriers)

    def check_source(self, unit: PrivacyUnit) -> None:
        """Refuse accuracies that are data and neither paid for nor covered by declarations."""
        if self.source == UNSTATED_SOURCE:
            raise StudyError(
                "These groups were found by linking (link_block), so say where their accuracies come from: ELE(…, source=…). 'public' for "
                "accuracies known apart from these people, 'identifiers' for links that were checked by identifiers alone, 'released' for what dpl.release_accuracy "
                "paid for, 'estimated' otherwise."
            )
        if self.source == "released" and (
            not unit.fixes_blocks or (unit.displaced_links or 0) > (self.displaced_links or 0)
        ):
            raise StudyError(
                f"The accuracies were released for a person who displaces at most {self.displaced_links} link(s) and changes nobody's "
                "block: without moves_block and linkage_change. Use that unit here too, or declare public accuracies."
            )
        if self.source == "identifiers" and (not unit.fixes_blocks or unit.displaced_links):
            raise StudyError(
                "The accuracies were found by looking at identifiers, which this unit protects: they would have to be paid for. Hold links and groups "
                "fixed, unit=dpl.PrivacyUnit(), or let dpl.release_accuracy pay (source='released')."
            )
        if self.source == "released" and self.carriers > 1:
            raise StudyError("The accuracies were released for links that are one to one. Leave out carriers=….")
        if self.source == "estimated" and (isinstance(self.checked, Mapping) or self.accuracy_error is not None):
            raise StudyError(
                "How many links were checked in each block follows the blocks, which may change here, and accuracy_error follows the accuracies, "
                "which are data. Give one public number that holds for all blocks, checked=…, as linked.audited(…, least_checked=…) makes it."
            )
        if self.source == "estimated" and (self.accuracy_min is None or not unit.linkage_change):
            raise StudyError(
                "These accuracies were estimated from the same people, so they are data. Choose: release them for a part of "
                "the budget (dpl.release_accuracy); or replace them by public ones, ELE(…, source='public'); or keep them with "
                "ELE(…, accuracy_min=…) and PrivacyUnit(linkage_change=M), M above 0 and covering what one person does to them."
            )

    def looked_at(self, variables: Sequence[str]) -> list[str]:
        """Which of the variables an audit of identifiers looked at, or by their names may be made of what it looked at."""
        return sorted(find_compared(variables, self.fields or ())) if self.source == "identifiers" else []

    def audit_change(self, unit: PrivacyUnit, count: int) -> float:
        """How far one person can move Q through accuracies found by checking links, at most (entrywise l1 norm).

        A smaller ``linkage_change`` would be a false declaration. The bound holds if each group's accuracy comes from its own checked
        links alone, as their share of right ones or drawn towards a fixed value
        (:func:`dplinked.linker.accuracies.hidden_accuracies`); accuracies that were drawn towards each other move further.

        Proof. One person can change the answer to t = 1 + ν + k checked links: that of their own row, those of the ν rows that hold their
        response, and those of k displaced rows. If t_b of them lie in group b, its accuracy moves by at most ``t_b/m``, m the public number of
        links that count as checked in every group: raising accuracies to a fixed limit moves them closer. A change η of the accuracy of n_b rows
        changes their diagonal entries of Q by η, and the others, n_b - 1 in each row, by η/(n_b - 1): ``2 n_b η``. In all
        ``Σ 2 n_b t_b/m ≤ 2nt/m`` over n rows. The groups' own sizes and numbers of checked links are not used: they are not public where Q may change.
        """
        if self.source != "estimated" or self.checked is None:
            return 0.0
        links = 1 + self.carriers + (unit.displaced_links or 0)
        assert not isinstance(self.checked, Mapping)
        return 2.0 * count * links / self.checked

    def accuracy_variance(self, shares: Mapping[str | None, float] | None) -> float | None:
        """Relative variance of the mean accuracy over the rows, ``Var(γ̂)/γ²``; None if nothing was declared about it.

        `shares` gives each block's share of the rows, where these are public; of a single accuracy, that of the `other` block under None. Otherwise all
        blocks have the same weight, and of a single accuracy and `other` the larger error counts.
        """
        if not self.knows_error:
            return None
        if isinstance(self.accuracy, Mapping):
            blocks: dict[str | None, float] = dict(self.accuracy.items())
            if self.other is not None:
                blocks[None] = self.other
            return self._mean_variance(blocks, shares or dict.fromkeys(blocks, 1.0 / len(blocks)))
        if self.other is None or self.other_error is None:
            return self._variance("", self.accuracy) / self.accuracy**2
        if shares is None:
            return max(self._variance(key, self.accuracy) for key in ("", None)) / self.accuracy**2
        apart = shares.get(None, 0.0)
        return self._mean_variance({"": self.accuracy, None: self.other}, {"": 1.0 - apart, None: apart})

    def _mean_variance(self, blocks: Mapping[str | None, float], weights: Mapping[str | None, float]) -> float:
        """Relative variance of a weighted mean of accuracies, whose errors have parts in common."""
        mean = sum(weights.get(key, 0.0) * accuracy for key, accuracy in blocks.items())
        own = sum(
            weights.get(key, 0.0) ** 2 * max(0.0, self._variance(key, accuracy) - self._shared_variance(key))
            for key, accuracy in blocks.items()
        )
        shared = (
            sum(weights.get(key, 0.0) * error for key, error in part.items()) ** 2 for part in self.shared_error or ()
        )
        return (own + sum(shared)) / mean**2 if mean else 0.0

    def _shared_variance(self, key: str | None) -> float:
        """The part of the variance of one block's accuracy that it shares with others."""
        return sum(part.get(key, 0.0) ** 2 for part in self.shared_error or () if key is not None)

    def _variance(self, key: str | None, accuracy: float) -> float:
        """Variance of one block's accuracy. Without an error of its own, the `other` block gets the largest that was declared for any block."""
        if self.accuracy_error is not None:
            error: float | Mapping[str, float] = self.accuracy_error
            if key is None and self.other_error is not None:
                error = self.other_error
            elif isinstance(error, Mapping):
                error = max(error.values()) if key is None else error[key]
            return error**2
        checked = self.checked
        if isinstance(checked, Mapping):
            checked = min(checked.values()) if key is None else checked[key]
        assert checked is not None
        return accuracy * (1.0 - accuracy) / checked

    @property
    def knows_error(self) -> bool:
        """Whether it was declared how well the accuracies are known."""
        return self.checked is not None or self.accuracy_error is not None

    @property
    def declared(self) -> tuple[float, ...]:
        """All declared values that a block's accuracy may have."""
        if self.source == "estimated" and self.accuracy_min is not None:
            return (self.accuracy_min,)
        listed = tuple(self.accuracy.values()) if isinstance(self.accuracy, Mapping) else (self.accuracy,)
        return listed if self.other is None else (*listed, self.other)

    @property
    def mean_accuracy(self) -> float:
        """Mean of the declared accuracies."""
        return float(np.mean(self.declared))

    @property
    def planned_shares(self) -> dict[str | None, float]:
        """Shares of the rows that plans take groups to have: all the same, but none for rows that linking linked last, at random, which are few. Empty for a single accuracy."""
        if not isinstance(self.accuracy, Mapping) or self.source == "estimated":
            return {}
        keys: list[str | None] = [*self.accuracy, *([] if self.other is None else [None])]
        kept = [key for key in keys if not (self.block == LINK_BLOCK and key == LAST)] or keys
        return dict.fromkeys(kept, 1.0 / len(kept))

    def accuracy_of(self, key: str | None) -> float | None:
        """Return the accuracy of the block whose key has this text, None if the key belongs to the `other` block."""
        if key is None:
            return None
        return self._raised(self.accuracy.get(key) if isinstance(self.accuracy, Mapping) else self.accuracy)

    def _raised(self, accuracy: float | None) -> float | None:
        """Raise an accuracy to the declared lower limit."""
        return accuracy if accuracy is None or self.accuracy_min is None else max(accuracy, self.accuracy_min)

    @property
    def other_accuracy(self) -> float | None:
        """Accuracy of the block that null and undeclared keys form, if one is declared."""
        if self.other is not None or isinstance(self.accuracy, Mapping):
            return self._raised(self.other)
        return self._raised(self.accuracy)

    def complete(self, unit: PrivacyUnit) -> ELE:
        """The same model with an accuracy for every key that may turn up.

        Where Q may change, a row may change its group, and a key that an accuracy table does not list must not stop a release: such
        rows get the smallest accuracy that is declared.
        """
        if not unit.linkage_change or self.other_accuracy is not None:
            return self
        completed = copy(self)
        object.__setattr__(completed, "other", min(self.declared))
        return completed

    def exposure(self, unit: PrivacyUnit) -> LinkageExposure:
        """See :class:`LinkageExposure`.

        Notes
        -----
        A move from a block with accuracy γ to one with γ' changes Q by
        ``3(2-γ-γ') + |γ-γ'| ≤ 6(1-γ_min)`` whatever the block sizes, blocks of one included, and
        rewires ν further rows, ν the number of carriers: the rows that held the mover's response take others, and as many rows of the
        new block may take the mover's.
        """
        smallest = min(self.declared)
        move = 6.0 * (1.0 - smallest) if unit.moves_block else 0.0
        if unit.moves_block and self.block == LINK_BLOCK:
            raise StudyError(
                "The groups in link_block are results of linking: one person's key may change those of others, which no move covers. "
                "Use moves_block=False, and let linkage_change and displaced_links say what identifiers may do."
            )
        if unit.moves_block and self.block is None:
            raise StudyError("moves_block=True needs a block column: ELE(accuracy=…, block=…).")
        if unit.moves_block and self.other_accuracy is None:
            raise StudyError(
                "No accuracy for other blocks. With moves_block=True any key may turn up: "
                "declare ELE(…, other=…) for null and unlisted keys."
            )
        return LinkageExposure(
            exact=False,
            symmetric=True,
            accuracy_min=smallest,
            column_sum=1.0,
            matrix_change=(unit.linkage_change or 0.0) + move,
            displaced=(unit.displaced_links or 0) + self.carriers * int(unit.moves_block),
            carriers=self.carriers,
            moved_change=move,
            persons=unit.rows,
        )

    def describe(self) -> DeclaredLinkage:
        """Return what is declared, for the release: never accuracies that are data."""
        if self.source == "estimated":
            return DeclaredLinkage(
                "ELE", block=self.block, source=self.source, accuracy_min=self.accuracy_min, carriers=self._many, fields=self.fields
            )  # fmt: skip
        return DeclaredLinkage(**self.describe_whole())

    def identity(self) -> dict[str, Any]:
        """What distinguishes this model from others in a ledger's request."""
        return self.describe_whole()

    def describe_whole(self) -> dict[str, Any]:
        """Return the whole model. This is FOR THE STEWARD if the accuracies are estimated."""
        accuracy = dict(self.accuracy) if isinstance(self.accuracy, Mapping) else self.accuracy
        declared = {
            "model": "ELE",
            "accuracy": accuracy,
            "block": self.block,
            "other": self.other,
            "source": self.source,
        }
        for name in (
            "checked",
            "accuracy_error",
            "other_error",
            "shared_error",
            "accuracy_min",
            "paid",
            "displaced_links",
            "fields",
        ):
            value = getattr(self, name)
            if value is not None:
                declared[name] = _as_plain(value)
        return declared if self._many is None else {**declared, "carriers": self._many}

    @property
    def _many(self) -> int | None:
        """The number of carriers if links are one to many. One-to-one links are described as before there was such a number."""
        return self.carriers if self.carriers > 1 else None
