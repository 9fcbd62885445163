"""The form of a study, and the changes that it makes to the study's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from browsing import ODD, Sent

import dplinked as dpl
from dplinked.studio.draft import BLANK, Draft, list_from, table_from
from dplinked.studio.fields import Fields, column_changes, form_changes
from dplinked.studio.form import column_fields, form
from dplinked.study.columns import named_columns
from dplinked.study.faults import find_faults
from studies import LEDGER_STUDY


def test_a_draft_changes_what_was_asked_and_nothing_else() -> None:
    draft = Draft(0, "s.toml", LEDGER_STUDY)
    same = {("privacy", "epsilon"): 1, ("linkage", "accuracy"): 0.91, ("model", "ridge"): None, ("typical", "x"): []}
    assert draft.changed(same) == LEDGER_STUDY
    changed = draft.changed({("privacy", "epsilon"): 0.5, ("ledger", "url"): "", ("ledger", "population"): None})
    assert changed.splitlines()[0] == LEDGER_STUDY.splitlines()[0]
    assert "epsilon = 0.5" in changed
    assert "[ledger]" not in changed
    assert Draft(0, "s.toml", "not = = toml").sections is None


def test_the_form_keeps_a_matching_matrix() -> None:
    """It has no fields for one, so other settings change and the section stays, comments included."""
    section = '[linkage]\nmodel = "matching"  # by ids\npairs = "pairs.parquet"\nid = "person"\naccuracy_min = 0.5\n'
    text = BLANK.replace("[linkage]\n", section).replace(
        "displaced_links = 0", "displaced_links = 1\nlinkage_change = 1.0"
    )
    draft = Draft(3, "s.toml", text)
    fields = Fields(
        Sent(
            formula_3="y ~ x",
            path_3="r.csv",
            epsilon_3=0.5,
            delta_3=1e-6,
            displaced_3=2,
            change_3=1.0,
            moves_3="no",
            takes_3="yes",
        ),
        draft,
        {},
    )
    page = str(form(draft, fields, [], []))
    assert "This form keeps it as it is" in page
    assert "Share of links that are right" not in page
    changed = draft.changed({**form_changes(draft, fields), ("bounds", "x"): [0, 1], ("bounds", "y"): [0, 1]})
    assert section in changed
    study = dpl.Study.from_text(changed, "folder")
    assert (study.epsilon, study.unit.displaced_links, study.linkage.id) == (0.5, 2, "person")
    assert study.linkage.pairs == Path("folder", "pairs.parquet")


EVENTS_STUDY = """\
[model]
formula = "died ~ age"
[bounds]
age = [0, 100]
died = [0, 1]
[typical]
died = [0, 1]
[linkage]
accuracy = 0.9
[privacy]
epsilon = 1.0
delta = 1e-6
"""


def form_text(text: str, sent: dict[str, Any]) -> str:
    """What the form makes of a text, as the browser sent its fields."""
    draft = Draft(0, "s.toml", text)
    fields = Fields(Sent(**{f"{name}_0": value for name, value in sent.items()}), draft, {"died": 0, "years": 1})
    counted = (fields.chosen(name) for name in ("weights", "where"))
    columns = named_columns(draft.get("model", "formula"), [], fields.chosen("family"), fields.exposure, *counted)
    kept = {
        ("privacy", "epsilon"),
        ("privacy", "delta"),
        ("linkage", "accuracy"),
        ("model", "formula"),
    }  # not sent here
    changes = {key: value for key, value in form_changes(draft, fields).items() if key not in kept}
    return draft.changed({**changes, **column_changes(draft, fields, *columns)})


def test_the_form_makes_an_event_of_a_number() -> None:
    text = form_text(EVENTS_STUDY, {"family": "logistic", "levels_0": "no\nyes"})
    study = dpl.Study.from_text(text, "folder")
    assert (study.family, study.levels, list(study.bounds)) == ("logistic", {"died": ["no", "yes"]}, ["age"])
    assert named_columns("C(died) ~ age", [], "logistic") == (["age"], ["died"])


def test_the_form_says_what_becomes_of_missing_cells() -> None:
    text = form_text(EVENTS_STUDY, {"missing": "fill"})
    assert dpl.Study.from_text(text, "folder").missing == "fill"
    assert dpl.Study.from_text(form_text(text, {"missing": "drop"}), "folder").missing == "drop"
    assert form_text(EVENTS_STUDY, {"missing": "drop"}) == EVENTS_STUDY


def test_the_form_gives_counts_an_exposure() -> None:
    sent = {"family": "poisson", "exposure": "years", "bounds0_1": 0.5, "bounds1_1": 2.0}
    text = form_text(EVENTS_STUDY, sent)
    study = dpl.Study.from_text(text, "folder")
    assert (study.family, study.exposure, study.bounds["years"]) == ("poisson", "years", [0.5, 2.0])
    again = form_text(text, {**sent, "family": "linear"})
    assert dpl.Study.from_text(again, "folder").family == "linear"
    assert "exposure" not in again


def test_the_form_shows_what_rows_count_by() -> None:
    """Columns of weights and conditions get bounds and levels like those of the formula."""
    where = "age > 3 and region == 'north' and w < 2"
    assert named_columns("y ~ x", [], "linear", None, "w", where) == (["y", "x", "w", "age"], ["region"])
    assert named_columns("y ~ x", [], "linear", None, "w", "age >") == (["y", "x", "w"], [])
    sent = {"family": "linear", "weights": "years", "where": "age > 50", "bounds0_1": 0.5, "bounds1_1": 2.0}
    text = form_text(EVENTS_STUDY, sent)
    assert 'weights = "years"' in text
    assert 'where = "age > 50"' in text
    assert form_text(text, {**sent, "weights": "", "where": ""}).count("where") == 0


def test_the_form_says_nothing_of_lines() -> None:
    assert form_text(EVENTS_STUDY, {"family": "linear", "exposure": ""}) == EVENTS_STUDY


def test_the_form_reads_decimal_commas_and_keeps_what_it_cannot_read() -> None:
    sent = {"bounds0_1": "0,5", "bounds1_1": "120.000", "family": "poisson", "exposure": "years", "epsilon": "2,5"}
    draft = Draft(0, "s.toml", EVENTS_STUDY)
    fields = Fields(Sent(**{f"{name}_0": value for name, value in sent.items()}), draft, {"died": 0, "years": 1})
    assert (fields.number("epsilon"), fields.number("delta")) == (2.5, None)
    text = form_text(EVENTS_STUDY, sent)
    assert 'years = [0.5, "120.000"]' in text
    told = {(one.section, one.key): one.text for one in find_faults(text, Path("folder"))}
    assert told["bounds", "years"] == "'120.000' can be read in two ways: write 120000 or 120.0000."
    assert 'value="120.000"' in str(
        column_fields(Draft(1, "", text), Fields(Sent(), Draft(1, "", text), {}), ["years"], [])
    )
    assert table_from("nsw = 0,918\nvic = 1,000") == {"nsw": 0.918, "vic": "1,000"}


def test_odd_names_survive_the_text() -> None:
    changes = {
        ("model", "formula"): f"`{ODD}` ~ x",
        ("bounds", ODD): [0, 1],
        ("bounds", "x"): [0.5, 2],
        ("linkage", "block"): f"{ODD}'s",
        ("linkage", "accuracy"): table_from(f"{ODD} = 0.9\n a = b = 0.8\n\n"),
        ("data", "path"): "x\n\u202e.csv",
    }
    study = dpl.Study.from_text(Draft(0, "", BLANK).changed(changes), "/tmp")
    assert study.bounds == {ODD: [0, 1], "x": [0.5, 2]}
    assert study.linkage == dpl.ELE({ODD: 0.9, "a = b": 0.8}, f"{ODD}'s")
    assert named_columns(study.formula, []) == ([ODD, "x"], [])
    assert list_from("1\n two\n", [1, 2]) == [1, "two"]
