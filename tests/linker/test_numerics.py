"""Comparing, assigning, and the probability of links: numerics on small cases that can be checked by hand."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import dplinked as dpl
from dplinked.linker import accuracies
from dplinked.linker.accuracies import (
    accuracy_table,
    count_together,
    hidden_accuracies,
    known_accuracies,
    name_counts,
    shrink_accuracies,
)
from dplinked.linker.assignment import Candidates, assign_sparse, matching_matrix
from dplinked.linker.audit import LEAST_CHECKED, draw_audit, estimate_from_audit, exact_interval, read_answers, seed_key
from dplinked.linker.fields import Field, guess_kind, make_comparer, parse_field, read_fields
from dplinked.linker.matches import find_matches
from dplinked.linker.quality import AccuracyEstimate, estimate_from_probabilities, link_probabilities
from dplinked.linker.rules import FURTHER, LAST, UNLINKED, Links, estimate_evidence, link_by_rules
from dplinked.linker.strata import Strata, make_strata
from dplinked.simulate import two_files


def compare(field: Field, left: list, right: list):
    texts = [pa.chunked_array([pa.array(values, pa.string())]) for values in (left, right)]
    comparer = make_comparer(field, *texts)
    return comparer.block(np.arange(len(left)), np.arange(len(right)))


# --- fields ----------------------------------------------------------------------------------------


def test_kinds_are_guessed_from_names_alone() -> None:
    assert [guess_kind(name) for name in ("given_name", "Surname", "date_of_birth", "postcode", "soc_sec_id", "address_1")] == [
        "name", "name", "date", "postcode", "id", "text",
    ]  # fmt: skip
    assert guess_kind("idle") == "text"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("birth_place", "text"), ("candidate_name", "name"), ("candidate", "text"), ("nationality", "text"), ("national_id", "id"), ("nhs number", "id"),
        ("birthDate", "date"), ("DOB", "date"), ("birth", "date"), ("birth_name", "name"), ("birth_year", "number"), ("update", "text"), ("zip-code", "postcode"),
        ("country_of_birth", "text"), ("village", "text"), ("age", "number"),
    ],
)  # fmt: skip
def test_whole_words_tell_the_kind(name: str, kind: str) -> None:
    assert guess_kind(name) == kind


def test_fields_from_the_command_line() -> None:
    field = parse_field("forename=given_name:name")
    assert (field.name, field.right, field.kind) == ("forename", "given_name", "name")
    assert parse_field("odd:name").kind == "name"
    assert parse_field("time:utc").name == "time:utc"
    assert [parse_field(name).name for name in ("name", "date", "id")] == ["name", "date", "id"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Field("x", "nam"), lambda: Field("x", compare="fuzzy"), lambda: Field("x", threshold=1.5),
        lambda: Field("x", weight=0.0), lambda: Field("x", tolerance=-1.0), lambda: read_fields("surname"),
        lambda: Field("x", "number", near=-1.0), lambda: Field("x", near=float("nan")), lambda: read_fields([]), lambda: read_fields(["a", "a"]), lambda: read_fields([3]),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(wrong) -> None:
    with pytest.raises(dpl.StudyError):
        wrong()


def test_jaro_winkler_scores_one_over_the_threshold_or_itself() -> None:
    levels, score = compare(Field("n", "name"), ["martha", "dwayne", None], ["marhta", "duane", " MARTHA ", ""])
    assert score.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]  # .961 and .84: only the first is over .85
    assert levels[2].tolist() == [-1] * 4
    assert levels[:, 3].tolist() == [-1] * 3
    _, score = compare(Field("n", "name", threshold=None), ["martha", "dwayne"], ["marhta", "duane"])
    assert score[0, 0] == pytest.approx(0.9611, abs=1e-4)
    assert score[1, 1] == pytest.approx(0.84, abs=1e-4)


def test_dates_count_partly_for_one_part_off_or_day_and_month_swapped() -> None:
    right = ["1980-03-07", "19800307", "1980-07-03", "1981-03-07", "1981-04-07", "gone", None]
    _, score = compare(Field("d", "date"), ["1980-03-07"], right)
    assert score[0].tolist() == [1, 1, 0.5, 0.5, 0, 0, 0]


def test_days_apart_count_half() -> None:
    _, score = compare(
        Field("d", "date"), ["1999-12-30"], ["2000-01-02", "2000-01-06", "2000-01-07", "30/12/1999", "none"]
    )
    assert score[0].tolist() == [0.5, 0.5, 0, 1, 0]
    assert compare(Field("d", "date", near=10), ["1999-12-30"], ["2000-01-07"])[1].tolist() == [[0.5]]
    assert compare(Field("d", "date", near=0), ["1999-12-30"], ["2000-01-02"])[1].tolist() == [[0]]


@pytest.mark.parametrize(
    ("field", "scores"),
    [
        (Field("n", "number"), [1, 0.5, 0, 0]),
        (Field("n", "number", near=0), [1, 0, 0, 0]),
        (Field("n", "number", near=20), [1, 0.5, 0.5, 0]),
        (Field("n", "number", tolerance=2), [1, 1, 0.5, 0]),
    ],
)
def test_near_numbers_count_half(field: Field, scores: list[float]) -> None:
    assert compare(field, ["100"], ["100.0", "101", "119", "-100"])[1][0].tolist() == scores


@pytest.mark.parametrize(
    "field",
    [Field("x", "name"), Field("x", "id"), Field("x", "date"), Field("x", "number"), Field("x", threshold=None)],
)
def test_single_pairs_are_compared_like_all_of_them(field: Field) -> None:
    texts = ["2001-02-03", "2001-03-02", "anna", "anne", "12", "13", "", None, "2001-02-04"]
    comparer = make_comparer(field, *(pa.chunked_array([pa.array(part, pa.string())]) for part in (texts, texts[::-1])))
    left, right = (part.ravel() for part in np.meshgrid(np.arange(9), np.arange(9), indexing="ij"))
    for every, single in zip(comparer.block(np.arange(9), np.arange(9)), comparer.pairs(left, right), strict=True):
        assert np.array_equal(every.ravel(), single)


def test_numbers_within_their_tolerance_and_exact_texts() -> None:
    _, score = compare(Field("n", "number", tolerance=1.0, weight=2.0), ["3"], ["4", "4.5", "x"])
    assert score[0].tolist() == [2, 1, 0]
    _, score = compare(Field("n", "id"), ["007"], ["007", "7"])
    assert score[0].tolist() == [1, 0]


# --- assignment --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000))
def test_sparse_assignment_is_the_best(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gain = np.round(rng.uniform(-2, 5, (n, m)), 1) * (rng.random((n, m)) < 0.6)
    i, j = np.nonzero(gain != 0)
    taken = assign_sparse(i, j, gain[i, j])
    assert len(set(i[taken])) == taken.sum() == len(set(j[taken]))
    rows, columns = linear_sum_assignment(np.maximum(gain, 0.0), maximize=True)
    assert gain[i, j][taken].sum() == pytest.approx(np.maximum(gain, 0.0)[rows, columns].sum())


GOOD_FIELDS = ["given_name", "surname", "date_of_birth", "postcode", "address"]


def one_to_one(candidates: Candidates) -> np.ndarray:
    """Probabilities if nobody has two records in a file."""
    return find_matches(candidates, duplicates=False).probability


def exact_marginals(weight: np.ndarray) -> np.ndarray:
    """Marginals of all partial matchings of a small weight matrix, by counting them."""
    n, m = weight.shape
    total, marginal = 0.0, np.zeros_like(weight)
    for k in range(min(n, m) + 1):
        for rows in itertools.combinations(range(n), k):
            for columns in itertools.permutations(range(m), k):
                value = float(np.prod(weight[list(rows), list(columns)]))
                total += value
                marginal[list(rows), list(columns)] += value
    return marginal / total


@pytest.mark.parametrize("overlap", [None, 0.1])
def test_probabilities_are_exact_on_trees(overlap: float | None) -> None:
    """A chain of pairs, a1-b1-a2-b2-a3: message passing is exact there."""
    left, right = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    evidence = np.array([4e4, 9e4, 2.5e4, 7e3])
    candidates = Candidates(left, right, evidence, evidence, 50, 60)
    found = find_matches(candidates, duplicates=False, overlap=overlap)
    people = found.overlap * 50
    if overlap is None:
        assert found.probability.sum() == pytest.approx(people, abs=0.03)
    prior = people / ((50 - people) * (60 - people))
    weight = np.zeros((3, 2))
    weight[left, right] = prior * evidence
    np.testing.assert_allclose(found.probability, exact_marginals(weight)[left, right], atol=2e-3)


def test_probabilities_with_further_records_are_exact_on_trees() -> None:
    """The same chain, all 2⁴ sets of pairs counted: each person costs θ, each further record of one in the right file θδ, in the left θδ'."""
    left, right = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    evidence = np.array([400.0, 900.0, 2500.0, 70.0])
    found = find_matches(Candidates(left, right, evidence, evidence, 50, 60))
    people = found.overlap * 50
    further = found.further[0] * people, found.further[1] * people
    odds = people * np.exp(-sum(further) / people) / ((50 - people - further[0]) * (60 - people - further[1]))
    free = 50 - people - further[0], 60 - people - further[1]
    repeated = [np.clip(e / (people * f) / odds, 1e-6, 1.0) for e, f in zip(further, free, strict=True)]
    total, marginal = 0.0, np.zeros(4)
    for chosen in itertools.product([False, True], repeat=4):
        taken = np.array(chosen)
        weight = np.prod((odds * evidence)[taken])
        for side, codes in (
            (1, left),
            (0, right),
        ):  # several pairs of a left record are further records in the right file
            weight *= repeated[side] ** np.maximum(np.bincount(codes[taken], minlength=1) - 1, 0).sum()
        total += weight
        marginal[taken] += weight
    np.testing.assert_allclose(found.probability, marginal / total, atol=2e-3)


@pytest.mark.parametrize("duplicates", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("overlap", [1.0, 0.7])
def test_people_in_both_files_and_their_further_records_are_counted(duplicates: float, overlap: float) -> None:
    """Records by the names of their people, some with two in the right file; with the few errors, numbers are found to .02, and links' accuracy to .01."""
    files = two_files(1_500, 11, errors=1.0, overlap=overlap, duplicates=duplicates)
    linked = dpl.link(files.left, files.right, fields=GOOD_FIELDS, id="id", block="state")
    assert linked.matches.overlap == pytest.approx(overlap, abs=0.02)
    assert linked.matches.further == pytest.approx((0.0, duplicates), abs=0.03)
    found = linked.estimates[0]
    assert found.overall[0] == pytest.approx(files.are_right(linked.links.right).mean(), abs=0.01)
    assert any("right file seems to hold further records" in said for said in found.says) == (duplicates > 0.0)
    assert not any("left file seems" in said for said in found.says)
    if duplicates == 0.3:
        forced = dpl.link(files.left, files.right, fields=GOOD_FIELDS, id="id", block="state", duplicates=False)
        assert forced.estimates[0].overall[0] < found.overall[0] - 0.03  # two records that share a person's links


def test_namesakes_are_not_taken_for_records_of_one_person() -> None:
    """Ten groups of ten people with the same name in both files: a link within a group is right in one of ten cases, whoever has further records."""
    left, right = (part.ravel() for part in np.meshgrid(np.arange(100), np.arange(100)))
    same = left // 10 == right // 10
    evidence = np.full(int(same.sum()), 10.0)
    found = find_matches(Candidates(left[same], right[same], evidence, evidence, 100, 100))
    assert found.probability == pytest.approx(0.1, abs=0.03)
    assert found.overlap > 0.5


@pytest.mark.parametrize("side", ["left", "right"])
def test_where_everybody_has_two_records_accuracies_are_right_and_doubted(side: str) -> None:
    """Two rows for each record of the right file, of which one can be right; or two records for each row, and both are."""
    files, twice = two_files(600, 71), np.repeat(np.arange(600), 2)
    left, right = files.left.drop_columns("id"), files.right.drop_columns("id")
    if side == "left":
        left, truth, people = left.take(twice), files.truth[twice], np.arange(600)
    else:
        right, truth, people = right.take(twice), files.truth, twice
    linked = dpl.link(left, right, fields=["surname", "address", "postcode", "suburb"], block="state")
    found = linked.estimates[0]
    assert found.overall[0] == pytest.approx((people[linked.links.right] == truth).mean(), abs=0.02)
    assert found.doubtful
    assert any("look alike" in said for said in found.says)


def test_namesakes_of_whom_one_file_has_many_are_not_taken_for_records_of_one_person() -> None:
    """By surname alone, each of few people has several namesakes in the other file: a fifth of the links is right, though all of these records might be one person's."""
    files, few = two_files(3_000, 176), np.arange(300)
    linked = dpl.link(files.left.take(few), files.right, fields=["surname"], id="id")
    found, right = linked.estimates[0], (linked.links.right == files.truth[few]).mean()
    assert found.overall[0] == pytest.approx(right, abs=0.05)
    assert found.doubtful
    assert linked.matches.further == (0.0, 0.0)
    assert linked.matches.otherwise is not None
    assert link_probabilities(linked.links, linked.matches.otherwise).mean() > right + 0.3


def test_a_declared_overlap_is_used_and_the_estimated_one_is_in_the_interval() -> None:
    """Weak evidence that everybody has: estimated, hardly anybody is in both files; declared, everybody is."""
    rng, n = np.random.default_rng(5), 400
    left = np.concatenate([np.arange(n), rng.integers(0, n, 800)])
    right = np.concatenate([np.arange(n), rng.integers(0, n, 800)])
    pairs = np.unique(np.stack([left, right]), axis=1)
    own = pairs[0] == pairs[1]
    evidence = np.where(own, 30.0, 5.0)
    candidates = Candidates(pairs[0], pairs[1], evidence, evidence, n, n)
    estimated, declared = find_matches(candidates), find_matches(candidates, overlap=1.0)
    assert declared.probability[own].mean() > 0.9
    assert estimated.probability[own].mean() < 0.5
    strata = make_strata(np.full(n, "a", dtype=object))
    links = Links(np.arange(n), np.zeros(n), np.full(n, "a", dtype=object), candidates)
    probabilities = [link_probabilities(links, found.probability) for found in (declared, estimated)]
    found = estimate_from_probabilities(strata, probabilities[0], probabilities[1:])
    assert found.overall[1] < probabilities[1].mean() < probabilities[0].mean() < found.overall[2]
    assert found.doubtful
    assert not estimate_from_probabilities(strata, probabilities[0], probabilities[:1]).doubtful
    assert not estimate_from_probabilities(strata, probabilities[0]).doubtful  # no interval, no verdict


def test_pairs_that_cannot_be_matches_are_dropped_without_a_trace() -> None:
    """Probabilities of 30,000 pairs, four in five of them hopeless, are those of all pairs."""
    from dplinked.linker import matches

    rng, n = np.random.default_rng(6), 1_000
    pairs = np.unique(np.concatenate([np.stack([np.arange(n)] * 2), rng.integers(0, n, (2, 30_000))], axis=1), axis=1)
    own = pairs[0] == pairs[1]
    evidence = np.exp(np.where(own, rng.normal(11.0, 2.0, own.size), rng.normal(-1.0, 2.0, own.size)))
    candidates = Candidates(pairs[0], pairs[1], evidence, evidence, n, n)
    kept = matches._plausible(candidates, evidence)
    assert kept.size < 0.4 * own.size
    dropped = find_matches(candidates).probability
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matches, "_plausible", lambda candidates, evidence: np.arange(evidence.size))
        whole = find_matches(candidates).probability
    assert np.abs(dropped - whole).max() < 0.01
    assert abs(dropped.sum() - whole.sum()) < 1.0


def test_competitors_share_and_the_only_one_left_gains() -> None:
    """Two files of two: pairs (0,0) and (1,1) with good evidence leave hardly anything to (0,1)."""
    left, right = np.array([0, 0, 1]), np.array([0, 1, 1])
    found = one_to_one(Candidates(left, right, np.zeros(3), np.array([1e4, 1e2, 1e4]), 2, 2))
    assert found[0] > 0.97
    assert found[2] > 0.97
    assert found[1] < 0.03


def test_without_candidates_there_are_no_probabilities() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert one_to_one(Candidates(none, none, np.zeros(0), np.zeros(0), 3, 3)).size == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(0, 10_000))
def test_matching_matrices_are_doubly_stochastic(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    extra = rng.integers(0, n, (2, 2 * n))
    pairs = np.unique(np.concatenate([np.stack([np.arange(n)] * 2), extra], axis=1), axis=1)
    evidence = np.exp(rng.normal(2.0, 3.0, pairs.shape[1]))
    candidates = Candidates(pairs[0], pairs[1], evidence, evidence, n, n + 3)
    probability = one_to_one(candidates)
    links = rng.permutation(n + 3)[:n]
    links[rng.integers(0, n)] = -1
    Q = matching_matrix(links, candidates, probability)
    assert abs(Q.sum(axis=0) - 1).max() < 1e-6
    assert abs(Q.sum(axis=1) - 1).max() < 1e-6
    assert Q.nnz <= pairs.shape[1] + 2 * n
    dpl.Matching(Q)


@pytest.mark.parametrize("extra", [-0.5, np.nan, -np.inf])
@pytest.mark.parametrize("sparse", [True, False])
def test_probabilities_of_one_pair_are_checked_before_they_are_added(extra: float, sparse: bool) -> None:
    rows, values = np.array([0, 1, 1]), np.array([1.0, 1.0 - extra, extra])
    pairs = sp.coo_array((values, (rows, rows))) if sparse else {"row": rows, "match": rows, "probability": values}
    with pytest.raises(dpl.StudyError, match="finite and not negative"):
        dpl.Matching(pairs)


# --- rules -------------------------------------------------------------------------------------------


def run_rules(left: dict, right: dict, fields: list[Field], threshold: float, **options) -> Links:
    comparers = [
        make_comparer(f, *(pa.chunked_array([pa.array(file[f.name], pa.string())]) for file in (left, right)))
        for f in fields
    ]
    keys = [np.array(file["block"], dtype=object) for file in (left, right)]
    settings = {"assignment": "optimal", "memory": 1e9, "seed": 0, **options}
    return link_by_rules(comparers, *keys, threshold, **settings)


def test_blocks_first_then_the_rest_across_blocks() -> None:
    left = {"id": ["1", "2", "3", "4"], "block": ["x", "x", "y", None]}
    right = {"id": ["4", "3", "1", "9"], "block": ["y", "y", "x", "x"]}
    links = run_rules(left, right, [Field("id", "id")], 1.0)
    assert links.right.tolist() == [2, 3, 1, 0]  # 2 finds nobody and gets who is left
    assert links.block.tolist() == ["x", FURTHER, "y", FURTHER]


def test_more_rows_than_partners_keep_their_place() -> None:
    left = {"id": ["1", "2", "3"], "block": ["x", "x", "x"]}
    right = {"id": ["2"], "block": ["x"]}
    links = run_rules(left, right, [Field("id", "id")], 1.0)
    assert links.right.tolist() == [-1, 0, -1]
    assert links.block.tolist() == [UNLINKED, "x", UNLINKED]


def test_ties_do_not_follow_the_files_order() -> None:
    same = {"id": ["1"] * 40, "block": ["x"] * 40}
    links = run_rules(same, same, [Field("id", "id")], 1.0)
    assert (links.right == np.arange(40)).mean() < 0.3


def test_the_greedy_rule_links_the_rest_at_random_within_the_block() -> None:
    left = {"id": [str(k) for k in range(60)], "block": ["x"] * 30 + [None] * 30}
    right = {"id": [str(k) if k % 2 else "?" for k in range(60)], "block": ["x"] * 30 + [None] * 30}
    links = run_rules(left, right, [Field("id", "id")], 1.0, assignment="greedy")
    odd = np.arange(60) % 2 == 1
    assert (links.right[odd] == np.arange(60)[odd]).all()
    assert ((links.right < 30) == (np.arange(60) < 30)).all()
    assert sorted(links.right) == list(range(60))
    assert set(links.block) == {"x", "(missing)"}


def test_a_block_too_large_for_memory_is_refused_before_work() -> None:
    big = {"id": ["1"] * 2000, "block": ["x"] * 2000}
    with pytest.raises(dpl.StudyError, match=r"A block has more pairs than fit.*finer key"):
        run_rules(big, big, [Field("id", "id")], 1.0, memory=1e6)


def test_evidence_recovers_the_model_that_made_the_patterns() -> None:
    """Patterns drawn from known agreement probabilities; ratios come back within a tenth (seed fixed)."""
    rng = np.random.default_rng(1)
    m, u, levels = np.array([0.9, 0.85, 0.8, 0.95]), np.array([0.05, 0.1, 0.02, 0.01]), [3] * 4
    matches = rng.random((4_000, 4)) < m
    others = rng.random((400_000, 4)) < u
    code = lambda agree: np.ravel_multi_index((1 + agree.astype(int)).T, levels)  # noqa: E731
    counts = np.bincount(np.concatenate([code(matches), code(others)]), minlength=81)
    start = np.bincount(code(matches[matches.sum(axis=1) >= 3]), minlength=81)
    evidence = estimate_evidence(counts, start, levels).ratio
    for agree in itertools.product((0, 1), repeat=4):
        true = np.prod(np.where(agree, m / u, (1 - m) / (1 - u)))
        assert np.log(evidence[np.ravel_multi_index(1 + np.array(agree), levels)] / true) == pytest.approx(
            0.0, abs=0.35
        )


# --- quality -----------------------------------------------------------------------------------------


def drawn(blocks: list[str], right: np.ndarray | None = None, size: int = 200, seed: int = 3) -> np.ndarray:
    """Rows that an audit draws."""
    names, none = np.array(blocks, dtype=object), np.zeros(0, dtype=np.int64)
    n = len(blocks)
    links = Links(
        np.arange(n) if right is None else right, np.zeros(n), names, Candidates(none, none, np.zeros(0), np.zeros(0), n, n),
    )  # fmt: skip
    return draw_audit(links, make_strata(names), size, seed_key(seed))


BLOCKS = ["a"] * 900 + ["b"] * 90 + ["c"] * 3


def test_audits_have_about_the_size_asked_for() -> None:
    """Binomial counts of 60 seeds: a mean beyond 4 standard errors has chance 6e-5, with seeds fixed (0 to 59)."""
    sizes = [drawn(BLOCKS, seed=seed).size for seed in range(60)]
    assert abs(np.mean(sizes) - 200) < 4 * np.sqrt(200 * (1 - 200 / 993) / 60)
    assert len({tuple(drawn(BLOCKS, seed=seed)) for seed in range(60)}) == 60
    assert drawn(BLOCKS, size=993).tolist() == drawn(BLOCKS, size=5000).tolist() == list(range(993))
    with pytest.raises(dpl.StudyError, match=r"too small for 3 groups"):
        drawn(BLOCKS, size=14)


def test_every_row_is_drawn_as_often_as_any_other() -> None:
    often = np.zeros(993)
    for seed in range(400):
        often[drawn(BLOCKS, seed=seed)] += 1
    spread = np.sqrt(400 * 0.2 * 0.8)
    assert np.abs(often - 400 * 200 / 993).max() < 5 * spread  # 993 rows, 6e-7 each


def test_links_and_groups_do_not_tell_who_is_checked() -> None:
    """Another group or another partner of some rows changes no row's part in the sample, and neither does a lost partner."""
    before = drawn(BLOCKS)
    assert np.array_equal(drawn(["b"] * 50 + BLOCKS[50:]), before)
    assert np.array_equal(drawn(BLOCKS, np.roll(np.arange(993), 1)), before)
    lost = np.arange(993)
    lost[before[7]] = -1
    assert np.array_equal(drawn(BLOCKS, lost), before)


def test_groups_without_checked_links_are_not_called_wrong() -> None:
    """A small block gets the others' accuracy, rows linked last get one half, and both say that they are not known."""
    strata = make_strata(np.array(["a"] * 500 + ["b"] * 3 + [LAST] * 4 + [UNLINKED] * 5, dtype=object))
    rows = np.arange(100)
    found = estimate_from_audit(strata, rows, rows >= 10)
    by_name = dict(zip(strata.names, found.accuracy, strict=True))
    assert by_name["b"] == pytest.approx(0.9, abs=0.01)
    assert (by_name[LAST], by_name[UNLINKED]) == (0.5, 0.2)
    three = shrink_accuracies(np.array([90.0, 0, 0]), np.array([100.0, 0, 0]), 2.0, [False, False, True])
    assert three.accuracy == pytest.approx([0.9, 0.9, 0.5], abs=0.003)
    assert three.error == pytest.approx([three.error[0], three.error[0], np.sqrt(1 / 12)])
    alone = shrink_accuracies(np.array([0.0, 30]), np.array([0.0, 100]), 2.0, [False, True])
    assert alone.accuracy[0] == 0.5
    assert alone.error[0] == pytest.approx(np.sqrt(1 / 12))
    one = shrink_accuracies(np.array([30.0]), np.array([100.0]), 2.0, [True])
    v = 32 / 104 * 72 / 104 / 100 + 0.02**2
    assert one.accuracy[0] == pytest.approx(0.3, abs=0.01)
    assert one.error[0] == pytest.approx(np.sqrt(v / 12 / (1 / 12 + v)), rel=1e-3)
    assert one.shared[0] == 0.0


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_errors_of_shrunk_accuracies_are_shared_as_far_as_they_come_from_the_mean(spread: float) -> None:
    """400 audits of 20 groups: the mean accuracy misses by what is stated. As independent errors it missed by up to four times that.

    The root mean square of 400 standard normals is within .12 of one but for one run in 2,000.
    """
    rng, groups, checked = np.random.default_rng(3), 20, 15
    names = np.array([f"{k:02d}" for k in range(groups)], dtype=object)
    strata = make_strata(np.repeat(names, 100))
    shares = {str(name): 1 / groups for name in names}
    told: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(400):
        true = np.clip(rng.normal(0.8, spread, groups), 0.5, 1.0)
        right = rng.binomial(checked, true) + rng.normal(0.0, 1.0, groups)
        known = known_accuracies(strata, right, np.full(groups, float(checked)), 1.0)
        for shared in told:
            arguments = known if shared else {**known, "shared_error": None}
            linkage = dpl.ELE(block="link_block", **arguments, source="public")
            mean = float(np.mean(list(linkage.accuracy.values())))
            told[shared].append((mean - true.mean()) / (mean * np.sqrt(linkage.accuracy_variance(shares))))
    assert np.sqrt(np.mean(np.square(told[True]))) == pytest.approx(1.0, abs=0.15)
    assert np.sqrt(np.mean(np.square(told[False]))) > 1.3


def test_a_small_group_that_nobody_checked_does_not_blur_all_others() -> None:
    """With more than fifty blocks, rows linked across them have an error of their own, and it counts as much as they do."""
    blocks = [f"{k:02d}" for k in range(60) for _ in range(100)] + [LAST] * 60
    strata = make_strata(np.array(blocks, dtype=object))
    assert strata.names == ("(last)", "(linked)")
    known = known_accuracies(strata, np.array([0.0, 900]), np.array([0.0, 1000]), 3.0)
    assert known["other_error"] == pytest.approx(np.sqrt(1 / 12))
    assert known["accuracy_error"] == pytest.approx(np.sqrt(0.09 / 1000 + 0.003**2), rel=0.01)
    linkage = dpl.ELE(block="link_block", **known, source="public")
    error = np.sqrt(linkage.accuracy_variance({"": 0.99, None: 0.01})) * (0.99 * known["accuracy"] + 0.01 * 0.5)
    assert error == pytest.approx(np.hypot(0.99 * known["accuracy_error"], 0.01 * known["other_error"]))
    assert error < 0.0105
    assert linkage.accuracy_variance(None) == pytest.approx(
        1 / 12 / known["accuracy"] ** 2
    )  # shares are not public: the larger error counts


def blocks_and_late(blocks: int, bands: int = 1) -> Strata:
    """Groups of 100 rows: so many blocks in so many bands, and rows that were linked across blocks, at last, and not at all."""
    names = [f"{block}, {band}" for block in range(blocks) for band in range(bands)]
    groups = np.repeat(np.array([*names, FURTHER, LAST, UNLINKED], dtype=object), 100)
    kinds = np.append(np.tile(np.arange(bands), blocks), [-1] * 3)
    return make_strata(groups, np.repeat(kinds, 100) if bands > 1 else None)


@pytest.mark.parametrize(("scale", "apart"), [(0.0, 7), (2.0, 7), (4.0, 2), (90.0, 2)])
def test_groups_are_counted_together_as_far_as_noise_asks_for_it(scale: float, apart: int) -> None:
    """Of 1,000 checked links, the share of right ones varies as if 9.5 of them turned."""
    strata = blocks_and_late(5)
    checked = np.where(np.array(strata.names) == UNLINKED, 0, 1_000 // 7)
    parts = count_together(strata, checked, scale)
    linked = np.array(strata.names) != UNLINKED
    assert np.unique(parts[linked]).size == apart
    assert parts[~linked][0] not in parts[linked]
    assert apart == 2 or np.sqrt(apart) * scale <= 9.5
    names = name_counts(strata, parts)
    assert {2: {"(blocks)", "(late)"}}.get(apart, set(strata.names)) <= set(names)


def test_bands_are_never_counted_together() -> None:
    strata = blocks_and_late(2, bands=2)
    parts = count_together(strata, np.where(np.array(strata.names) == UNLINKED, 0, 100), 1e3)
    by_name = dict(zip(strata.names, parts, strict=True))
    assert by_name["0, 0"] == by_name["1, 0"]
    assert by_name["0, 1"] == by_name["1, 1"]
    assert by_name[LAST] == by_name[FURTHER]
    assert len(set(by_name.values())) == 4
    assert set(name_counts(strata, parts)) >= {"(band 1)", "(band 2)", "(late)"}


@pytest.mark.parametrize("blocks", [5, 60])
@pytest.mark.parametrize(("true", "least"), [(0.97, 0.95), (0.8, 0.9)])
def test_one_count_of_all_groups_says_how_near_it_is(blocks: int, true: float, least: float) -> None:
    """400 releases with noise of 40 on 1,000 checked links: the mean accuracy is within two stated errors as often as it should be, and its own error is smaller than if it were cut at one."""
    rng, strata = np.random.default_rng(7), blocks_and_late(blocks)
    linkable = np.array(strata.names) != UNLINKED
    parts = np.where(linkable, 0, 1)
    of_all = strata.rows / strata.rows.sum()
    shares = dict(zip(strata.names, of_all.tolist(), strict=True))
    if not strata.per_block:
        shares = {"": of_all[linkable & (strata.kinds >= 0)].sum(), None: of_all[strata.kinds < 0].sum()}
    share, misses, cut = of_all[linkable].sum(), [], []
    for _ in range(400):
        count = np.array([rng.binomial(1_000, true) + rng.normal(0.0, 40.0), 0.0])
        known = known_accuracies(strata, count, np.array([1_000.0, 0.0]), 40.0, None, parts)
        linkage = dpl.ELE(block="link_block", **known, source="public")
        mean = float(known["accuracy"]["0, 0"] if strata.per_block else known["accuracy"])
        error = (share * mean + (1.0 - share) / 100) * np.sqrt(linkage.accuracy_variance(shares))
        misses.append(abs(mean - true) * share / error)
        cut.append((mean - true, min(count[0] / 1_000, 1.0) - true))
    assert np.mean(np.array(misses) < 2.0) > least
    found, at_one = np.sqrt(np.mean(np.square(cut), axis=0))
    assert found < (0.85 if true > 0.9 else 1.05) * at_one


def test_exact_intervals_are_clopper_and_pearsons() -> None:
    low, high = exact_interval(np.array([8, 0, 10]), np.array([10, 10, 10]))
    np.testing.assert_allclose(low, [0.4439, 0.0, 0.6915], atol=1e-4)
    np.testing.assert_allclose(high, [0.9748, 0.3085, 1.0], atol=1e-4)


def test_small_blocks_are_drawn_towards_the_others() -> None:
    blocks = np.array(["a"] * 500 + ["b"] * 500 + ["c"] * 20, dtype=object)
    strata = make_strata(blocks)
    rows = np.concatenate([np.arange(200), 500 + np.arange(200), 1000 + np.arange(4)])
    right = np.ones(404, dtype=bool)
    right[:20] = right[200:218] = right[400:402] = False  # .90, .91 and 2 of 4
    found = estimate_from_audit(strata, rows, right)
    assert found.accuracy[0] == pytest.approx(0.9, abs=0.02)
    assert 0.6 < found.accuracy[2] < 0.9
    assert found.checked.tolist() == [200, 200, 4]
    assert found.low[2] < 0.5 < found.high[2]


def test_many_blocks_share_one_accuracy() -> None:
    blocks = np.array([f"b{k // 4}" for k in range(400)] + [LAST] * 10, dtype=object)
    strata = make_strata(blocks)
    assert not strata.per_block
    assert strata.rows.tolist() == [10, 400]
    accuracy, other = accuracy_table(strata, [0.4, 0.9])
    assert (accuracy, other) == (0.9, 0.4)


@pytest.mark.parametrize("answers", [["yes", ""], ["maybe"], [None]])
def test_unclear_answers_are_refused(answers) -> None:
    with pytest.raises(dpl.StudyError, match="no clear answer"):
        read_answers(answers)


def test_answers_in_the_usual_spellings() -> None:
    assert read_answers(["Yes", "n", 1, True, "FALSE", "right"]).tolist() == [
        True,
        False,
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(("errors", "overlap"), [(0.25, 1.0), (0.35, 1.0), (0.25, 0.7)])
def test_one_to_one_probabilities_tell_the_accuracy(errors: float, overlap: float) -> None:
    """Blocks of 40 with known agreement probabilities, best assignment, 1,600 rows: within .03 (seed fixed).

    Pairwise probabilities, which ignore that links are one to one, are off by more than .1 where all are in both files.
    """
    rng = np.random.default_rng(5)
    m, blocks, k = 40, 40, 5
    agree_match, agree_other = 1.0 - errors, 0.1
    lefts, rights, ratios, links, truth = [], [], [], [], []
    for b in range(blocks):
        agree = rng.random((m, m, k)) < agree_other
        shared = int(m * overlap)
        agree[np.arange(shared), np.arange(shared)] = rng.random((shared, k)) < agree_match
        ratio = np.where(agree, agree_match / agree_other, (1 - agree_match) / (1 - agree_other)).prod(axis=2)
        _, columns = linear_sum_assignment(np.log(ratio) + 1e-9 * rng.random(ratio.shape), maximize=True)
        i, j = np.nonzero(ratio > 0.5)
        lefts.append(i + b * m)
        rights.append(j + b * m)
        ratios.append(ratio[i, j])
        links.append(columns + b * m)
        truth.append(np.where(np.arange(m) < shared, np.arange(m) + b * m, -1))
    n = m * blocks
    evidence = np.concatenate(ratios) * n / m
    candidates = Candidates(np.concatenate(lefts), np.concatenate(rights), np.log(evidence), evidence, n, n)
    chosen = Links(np.concatenate(links), np.zeros(n), np.full(n, "all", dtype=object), candidates)
    own = link_probabilities(chosen, one_to_one(candidates))
    true = float((chosen.right == np.concatenate(truth)).mean())
    assert own.mean() == pytest.approx(true, abs=0.03)
    if overlap == 1.0:
        pairwise = link_probabilities(chosen, evidence / n / (1 + evidence / n))
        assert pairwise.mean() < true - 0.1


# --- hidden accuracies -------------------------------------------------------------------------------


def linked_in_groups(groups: list[str]) -> dpl.Linked:
    """Links made elsewhere, row i to record i, in these groups."""
    ids = [str(i) for i in range(len(groups))]
    files = [{"id": ids, "state": groups} for _ in range(2)]
    return dpl.link(*files, id="id", block="state", method="pairs", pairs={"left": ids, "right": ids})


def matrix_change(linked: dpl.Linked, rows: np.ndarray, before: np.ndarray, after: np.ndarray, least: float) -> float:
    """How far Q moves if the answers to the checked rows are others: ``2 n_b |Δγ_b|`` over the groups."""
    models = [
        dataclasses.replace(linked, audit=estimate_from_audit(linked.strata, rows, answers)).linkage
        for answers in (before, after)
    ]
    raised = [
        dpl.ELE(model.accuracy, model.block, other=model.other, source="estimated", accuracy_min=least)
        for model in models
    ]

    def of(model: dpl.ELE, name: str) -> float:
        listed = linked.strata.per_block or name not in (LAST, UNLINKED)
        return model.accuracy_of(name) if listed else model.other_accuracy

    moved = [abs(of(raised[0], name) - of(raised[1], name)) for name in linked.strata.names]
    return float(2.0 * linked.strata.rows @ np.array(moved))


@pytest.mark.parametrize(
    "groups",
    [[20, 9, 3], *(pytest.param(groups, marks=pytest.mark.slow) for groups in ([40], [1, 2, 30, 30], [2] * 60))],
)
def test_one_person_moves_hidden_accuracies_as_far_as_declared(groups: list[int]) -> None:
    """Every way to turn 2 + k answers, within one group or over several; with more than fifty groups they share one accuracy."""
    rng = np.random.default_rng(len(groups))
    linked = linked_in_groups([f"g{b}" for b, size in enumerate(groups) for _ in range(size)])
    n, reached = sum(groups), 0.0
    for _ in range(25):
        rows = np.flatnonzero(rng.random(n) < rng.choice([0.3, 0.9]))
        if rows.size < 5:
            continue
        before, k = rng.random(rows.size) < rng.choice([0.5, 0.95]), int(rng.integers(0, 3))
        audited = dataclasses.replace(linked, audit=estimate_from_audit(linked.strata, rows, before))
        allowed = audited.linkage.audit_change(dpl.PrivacyUnit(displaced_links=k), n)
        assert allowed == 2.0 * n * (2 + k) / LEAST_CHECKED
        for turned in itertools.islice(itertools.combinations(rng.permutation(rows.size), 2 + k), 60):
            for answer in (True, False, None):  # all of them to one answer, or each to the other one
                after = before.copy()
                after[list(turned)] = ~before[list(turned)] if answer is None else answer
                change = matrix_change(linked, rows, before, after, 0.1)
                assert change <= allowed * (1 + 1e-12)
                reached = max(reached, change / allowed)
    assert reached > 0.05


def test_links_that_are_checked_on_one_side_only_move_hidden_accuracies_no_further() -> None:
    """Every number of checked links and of right ones, below and above the public number, with one more or one less of them."""
    strata = linked_in_groups(["g"] * 60).strata
    for least in (1, 5, 20):
        for m in range(30):
            for g in range(m + 1):
                here, *others = (
                    hidden_accuracies(strata, audit(np.array([m + more]), np.array([g + right])), least)[0]
                    for more, right in ((0, 0), (1, 0), (1, 1), (0, 1 if g < m else 0))
                )
                assert max(abs(here - other) for other in others) <= 1.0 / least + 1e-12


def audit(checked: np.ndarray, correct: np.ndarray) -> AccuracyEstimate:
    unknown = np.full(checked.size, np.nan)
    return AccuracyEstimate("audit", unknown, unknown, unknown, (0.0, 0.0, 0.0), "", checked, correct)


def test_a_row_without_a_partner_counts_as_a_wrong_link() -> None:
    """Else one displaced link could change how many links are checked, which a release of the accuracies prints."""
    n = 200
    files = [pa.table({"id": np.arange(size).astype(str), "state": ["a"] * size}) for size in (n, n)]
    for gap in range(0, n, 7):
        ids = [str(i) for i in range(n) if i != gap]
        linked = dpl.link(
            *files, id="id", block="state", method="pairs", pairs={"left": ids, "right": ids}, assignment="greedy"
        )
        sample = linked.audit_sample(80, seed=3)
        if gap == 0:
            first = sample["left_id"].to_pylist()
        assert sample["left_id"].to_pylist() == first
        answered = sample.set_column(
            sample.column_names.index("correct"),
            "correct",
            pa.array([one or "yes" for one in sample["correct"].to_pylist()]),
        )
        assert linked.audited(answered).audit.checked.sum() == len(first)


def test_shrunken_accuracies_would_move_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why hidden accuracies are not drawn towards each other: two answers of one group would then move all groups."""
    rng = np.random.default_rng(0)
    linked = linked_in_groups([f"g{b:02}" for b in range(40) for _ in range(50)])
    rows = np.flatnonzero(np.arange(2000) % 50 < 10)

    def furthest() -> float:
        """The furthest that Q moves, in units of what the group itself may: its 50 rows, 2 of 10 answers."""
        found = 0.0
        for _ in range(4):
            before = rng.random(rows.size) < 0.5
            for start in range(0, 50, 10):
                after = before.copy()
                after[start + np.flatnonzero(before[start : start + 10])[:2]] = False
                found = max(found, matrix_change(linked, rows, before, after, 0.1) / (2.0 * 50 * 2 / 10))
        return found

    assert furthest() <= 1.0
    monkeypatch.setattr(accuracies, "hidden_accuracies", lambda strata, estimate, least: estimate.accuracy)
    assert furthest() > 1.2
