"""What a release promises, to whom, and what it took as public: in words."""

from __future__ import annotations

from dplinked.linkage import ELE, Linkage, Matching
from dplinked.linkage.secret_sample import SecretSample
from dplinked.privacy.calibration import round_up
from dplinked.privacy.secret_sample import add_payment, secret_epsilon
from dplinked.release.contents import Privacy
from dplinked.study.study import Study


def describe_privacy(study: Study, mu: float) -> Privacy:
    """State what is promised, to whom, and what was taken as public."""
    public = ["the number of rows", "the schema", "bounds, levels and all other settings", *_accuracy_is(study.linkage)]
    if study.linkage.block is not None and study.unit.fixes_blocks:
        public.append(f"the block keys ({study.linkage.block})")
    if study.unit.rows > 1:
        public.append(f"which rows belong to one person ({', '.join(study.unit.ids)})")
    carriers = study.linkage.exposure(study.unit).carriers
    statement = (
        f"({round_up(study.epsilon, 10)}, {round_up(study.delta, 10)})-differentially private. {study.unit.describe(carriers)} "
        "Files that are compared have the same number of rows."
    )
    paid = study.linkage.paid if isinstance(study.linkage, ELE) else None
    if paid is not None:
        samples, total = add_payment(paid, mu)
        statement += (
            f" The linkage accuracy was released before, {_price(paid)}; both releases together are "
            f"({round_up(secret_epsilon(samples, study.delta, total))}, {round_up(study.delta, 10)})-differentially private."
        )
    return Privacy(study.epsilon, study.delta, mu, study.unit, statement, tuple(public))


def _price(paid: float | SecretSample) -> str:
    """What the release of the accuracies cost, and what that rests on."""
    if isinstance(paid, SecretSample):
        return "from links that were drawn in secret, which rests on that: who was checked, and the key they were drawn by, stay secret, and nothing else was released from what the check found"
    return f"at mu = {round_up(paid)}"


def _accuracy_is(linkage: Linkage) -> list[str]:
    """What is taken as public about the accuracy."""
    if not isinstance(linkage, ELE):
        return ["the linkage model's declarations"] if isinstance(linkage, Matching) else []
    return {
        "public": ["the linkage accuracy (declared)"],
        "released": [
            "the linkage accuracy (released before)",
            *(["the chance of each link to be checked"] if isinstance(linkage.paid, SecretSample) else []),
        ],
        "identifiers": [
            "the links, and their accuracy as a check of identifiers found it (no column of the formula took part in linking, in checking, or in when checking stopped)"
        ],
        "estimated": [
            f"that no block's linkage accuracy is below {linkage.accuracy_min:g} (the accuracies themselves are not shown)"
        ]
        if linkage.accuracy_min is not None
        else [],
    }[linkage.source]
