"""The form of a study: its fields, each with what helps to fill it in and a place for what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from htmltools import Tag, TagChild, TagList, tags
from shiny import ui

from dplinked.studio.desk import Fault, attempt
from dplinked.studio.draft import Draft, lines_of
from dplinked.studio.fields import Fields
from dplinked.studio.look import group, show
from dplinked.studio.terms import explain
from dplinked.study.columns import FormulaParts
from dplinked.study.typed import read_number, write_number

_SOURCES = {
    "": "not said",
    "public": "known without these people",
    "identifiers": "checked here, by identifiers",
    "released": "released, paid for",
    "estimated": "estimated here, kept hidden",
}
_FAMILIES = {
    "linear": "a number (a line)",
    "logistic": "an event, yes or no (logistic)",
    "poisson": "a count (Poisson)",
}
_MISSING = {"drop": "are left out", "fill": "count, with a public value in its place"}
_METHODS = {"ssp": "noisy sums", "ngd": "noisy gradient descent"}
_CALIBRATIONS = {"tight": "as small as the promise allows", "paper": "as the paper has it"}
_ERRORS = {
    "any": "nothing is known",
    "symmetric": "as often far above it as far below",
    "skewed": "amounts that grow, with a long tail",
}
_MATCHING = "A matching matrix says how likely each link is. This form keeps it as it is: edit it as text."
_USES = {"": "not used", "number": "as a number", "category": "as categories"}
_ENDS = {"bounds0": "Lowest", "bounds1": "Highest", "typical0": "Typical from", "typical1": "to"}
_NO_YES = {"no": "No", "yes": "Yes"}


def form(draft: Draft, fields: Fields, files: Sequence[str], linkages: Sequence[str]) -> Tag:
    """All fields except those of columns, which depend on the formula.

    `files` are those that may hold the rows, `linkages` those that say how rows were linked.
    """
    return tags.div(
        _model_group(draft, fields, files),
        group(
            "Columns",
            _hint("All of it is public, and never read from the data."),
            ui.output_ui("study_columns"),
        ),
        _linkage_group(draft, fields, linkages),
        _unit_group(draft, fields),
        _budget_group(draft, fields),
        _more(draft, fields),
        class_="study-form",
    )


def _model_group(draft: Draft, fields: Fields, files: Sequence[str]) -> Tag:
    get, id = draft.get, fields.id
    path = ui.input_text(id("path"), "Data file", _text(get("data", "path")), update_on="blur", spellcheck="false")
    path.children[-1].attrs["list"] = "study_data_files"  # type: ignore[union-attr]
    exposure = _line(fields, "exposure", "Column of exposures, if counts are of different times or sizes", draft)
    return group(
        "Data and model",
        tags.datalist(*(tags.option(value=name) for name in files), id="study_data_files"),
        ask("data/path", path, term="path"),
        ask(
            "model/family",
            ui.input_select(id("family"), "The response is", _FAMILIES, selected=_text(get("model", "family")) or "linear"),
            term="family",
        ),
        ask("model/exposure", exposure, term="exposure", class_="only-counts"),
        ui.output_ui("study_builder"),
        ask(
            "model/formula",
            ui.input_text(id("formula"), "Formula", _text(get("model", "formula")), update_on="blur", spellcheck="false"),
            term="formula",
        ),
        class_="model",
    )  # fmt: skip


def builder(draft: Draft, fields: Fields, parts: FormulaParts, columns: Mapping[str, str]) -> TagList:
    """The formula as a list of columns, by what their cells are."""
    listed = {"": "choose a column", **{name: show(name) for name in columns}}
    if parts.response and parts.response not in listed:
        listed[parts.response] = show(parts.response)
    uses = [
        ui.input_select(
            fields.id("use", name),
            tags.span(show(name), tags.span(f" {kind}", class_="kind")),
            _USES,
            selected=use_of(parts, name),
        )
        for name, kind in columns.items()
    ]
    return TagList(
        ui.input_select(fields.id("response"), "What is to be explained", listed, selected=parts.response),
        tags.fieldset(
            tags.legend("What explains it"),
            tags.div(*uses, class_="uses", tabindex="0", role="region", aria_label="What explains it, by column"),
            class_="explains",
        ),
        ui.input_text(
            fields.id("further"), "Further terms, such as income:age or log(income)", parts.further, update_on="blur",
            spellcheck="false",
        ),
    )  # fmt: skip


def use_of(parts: FormulaParts, column: str) -> str:
    """How the list of columns calls what a formula makes of a column."""
    return "category" if column in parts.categories else "number" if column in parts.numbers else ""


# --- columns ---------------------------------------------------------------------------------------------


def column_fields(draft: Draft, fields: Fields, numeric: Iterable[str], categorical: Iterable[str]) -> TagList:
    """Fields for bounds, units and typical ranges of numeric columns and for levels of categorical ones. What was typed already is kept."""
    shown = [
        *(_numbers(draft, fields, column) for column in numeric),
        *(_levels(draft, fields, column) for column in categorical),
    ]
    return TagList(*shown) if shown else TagList(_hint("They follow the formula."))


def _now(draft: Draft, fields: Fields, name: str, column: str, opened: Any) -> Any:
    return fields.get(name, column) if fields.has(name, column) else opened


def _numbers(draft: Draft, fields: Fields, column: str) -> Tag:
    def end(name: str) -> Tag:
        opened = _end(draft.get(name[:-1], column), int(name[-1]))
        return number_field(
            fields.id(name, column), _label(column, _ENDS[name]), _now(draft, fields, name, column, opened)
        )

    unit = _now(draft, fields, "unit", column, _text(draft.get("units", column)))
    said = ui.input_text(fields.id("unit", column), _label(column, "Unit"), unit, placeholder="euros")
    return tags.div(
        tags.h3(show(column)),
        tags.div(
            ask(f"bounds/{column}", end("bounds0"), end("bounds1"), term="bounds", class_="two"),
            ask(f"units/{column}", said, term="units"),
            ask(f"typical/{column}", end("typical0"), end("typical1"), term="typical", class_="two"),
            class_="ranges",
        ),
        class_="column",
    )


def _levels(draft: Draft, fields: Fields, column: str) -> Tag:
    """Levels as chips: the browser writes them into a field of lines, which is not shown."""
    written = _now(draft, fields, "levels", column, lines_of(draft.get("levels", column)))
    chips = tags.div(
        tags.ul(class_="chosen", aria_label=f"Levels of {show(column)}"),
        tags.label(
            _label(column, "Add levels: the reference level first. Several can be pasted."),
            tags.input(type="text", class_="form-control entry", spellcheck="false", autocomplete="off"),
        ),
        tags.div(ui.input_text_area(fields.id("levels", column), None, written), hidden=True),
        tags.span(class_="visually-hidden told", role="status"),
        class_="chips",
    )
    return tags.div(tags.h3(show(column)), ask(f"levels/{column}", chips, term="levels"), class_="column")


# --- links, persons, budget ------------------------------------------------------------------------------


def _linkage_group(draft: Draft, fields: Fields, linkages: Sequence[str]) -> Tag:
    """The fields of the linkage. A matching matrix has none."""
    get, id = draft.get, fields.id
    take = _take_over(linkages)
    if get("linkage", "model") == "matching":
        return group("Links", _hint(_MATCHING), take)
    accuracy, checked = get("linkage", "accuracy"), get("linkage", "checked")
    kind = "each" if isinstance(accuracy, dict) else "one"
    return group(
        "Links",
        take,
        ask(
            "linkage/model",
            ui.input_radio_buttons(
                id("model"), "How rows were linked", {"ele": "links can be wrong", "exact": "by a unique key"},
                selected="exact" if get("linkage", "model") == "exact" else "ele", inline=True,
            ),
            term="model",
        ),
        tags.div(
            ask("linkage/source", ui.input_select(id("source"), "Where the accuracy comes from", _SOURCES, selected=_text(get("linkage", "source"))), term="source"),
            ask("linkage/block", ui.input_text(id("block"), "Column of the blocks, if any", _text(get("linkage", "block")), spellcheck="false"), term="block"),
            ask(
                "linkage/accuracy",
                ui.input_radio_buttons(id("kind"), "Accuracy", {"one": "one for all", "each": "one for each block"}, selected=kind, inline=True),
                tags.div(number_field(id("accuracy"), "Share of links that are right", accuracy), class_="only-one"),
                tags.div(
                    ui.input_text_area(
                        id("accuracies"), "Blocks and their shares, one on each line",
                        lines_of(accuracy) if kind == "each" else "", placeholder="nsw = 0.918", rows=4, spellcheck="false",
                    ),
                    class_="only-each",
                ),
                term="accuracy",
            ),
            ask(
                "linkage/checked",
                _hint("How many links were checked is said for each block: edit it as text.") if isinstance(checked, dict)
                else number_field(id("checked"), "Links that were checked to find it", checked),
                term="checked",
            ),
            *_source_fields(draft, fields),
            class_="only-ele pair",
        ),
        class_="linkage",
    )  # fmt: skip


def _take_over(linkages: Sequence[str]) -> Tag | None:
    """The way to what *Review*, a release of accuracies or the command line wrote."""
    if not linkages:
        return None
    return tags.div(
        ui.input_select(
            "take_linkage",
            "Taken over from what linking and review wrote",
            {"": "choose a file", **{name: show(name) for name in linkages}},
        ),
        ui.input_action_button("take", "Take over"),
        class_="beside",
    )


def _source_fields(draft: Draft, fields: Fields) -> list[Tag]:
    """What each way to know the accuracy needs beside it. Each is shown where it is needed."""
    get, id = draft.get, fields.id
    paid = get("linkage", "paid")
    cost: Tag = (
        _hint("What its release cost is as that release wrote it.")
        if isinstance(paid, dict)
        else number_field(id("paid"), "What its release cost (μ)", paid)
    )
    looked = ui.input_text(
        id("looked_at"), "Columns by which links were made and checked", ", ".join(get("linkage", "fields") or []),
        placeholder="surname, date_of_birth", spellcheck="false",
    )  # fmt: skip
    links = number_field(id("paid_links"), "Displaced links it was paid for", get("linkage", "displaced_links"))
    least = number_field(id("accuracy_min"), "Lowest share in any block", get("linkage", "accuracy_min"))
    return [
        ask("linkage/fields", looked, term="looked_at", class_="only-identifiers"),
        ask("linkage/paid", cost, term="paid", class_="only-released"),
        ask("linkage/displaced_links", links, term="paid_links", class_="only-released"),
        ask("linkage/accuracy_min", least, term="accuracy_min", class_="only-estimated"),
    ]


def _unit_group(draft: Draft, fields: Fields) -> Tag:
    get, id = draft.get, fields.id
    displaced, rows = get("unit", "displaced_links"), get("unit", "rows")
    takes = displaced not in (None, 0, False)
    several = rows not in (None, 1)
    matching = get("linkage", "model") == "matching"
    return group(
        "What one person can change",
        _hint("Protected are the values of any one person. What about their name, date of birth and other identifiers?"),
        ask(
            "unit/moves_block",
            ui.input_radio_buttons(
                id("moves"), "Could another name or address of a person put them into another block?", _NO_YES,
                selected="yes" if get("unit", "moves_block") is True else "no", inline=True,
            ),
            term="moves",
        ),
        ask(
            "unit/displaced_links",
            ui.input_radio_buttons(
                id("takes"), "Could it take links away from other people?", _NO_YES, selected="yes" if takes else "no", inline=True
            ),
            tags.div(number_field(id("displaced"), "From how many at most?", displaced if takes else 1), class_="only-takes"),
            term="takes",
        ),
        ask(
            "unit/rows",
            ui.input_radio_buttons(
                id("several"), "May one person have several rows?", _NO_YES, selected="yes" if several else "no", inline=True
            ),
            tags.div(number_field(id("rows"), "How many at most?", rows if several else 2), class_="only-several"),
            term="rows",
        ),
        tags.div(
            ask("unit/id", ui.input_text(id("id"), "Column that tells whose regressors these are", _text(get("unit", "id")), spellcheck="false")),
            ask("unit/response_id", ui.input_text(id("response_id"), "Column that tells whose responses these are", _text(get("unit", "response_id")), spellcheck="false")),
            class_="only-several pair",
        ),
        ask(
            "unit/linkage_change",
            number_field(id("change"), "How far may the matching matrix change?", get("unit", "linkage_change")),
            term="change", class_="" if matching else "only-change",
        ),
        ui.output_ui("study_unit"),
        class_="unit",
    )  # fmt: skip


def _budget_group(draft: Draft, fields: Fields) -> Tag:
    get, id = draft.get, fields.id
    url = ui.input_text(
        id("url"), "File of the budget, if there is one", _text(get("ledger", "url")), placeholder="budget.db", spellcheck="false",
    )  # fmt: skip
    people = ui.input_text(id("population"), "Whose budget it is", _text(get("ledger", "population")), placeholder="everybody")  # fmt: skip
    return group(
        "Privacy budget",
        tags.div(
            ask("privacy/epsilon", number_field(id("epsilon"), "Epsilon of this release", get("privacy", "epsilon")), term="epsilon"),
            ask("privacy/delta", number_field(id("delta"), "Delta of this release", get("privacy", "delta")), term="delta"),
            class_="pair",
        ),
        ui.output_ui("study_promise"),
        tags.div(ask("ledger/url", url, term="url"), ask("ledger/population", people, term="population"), class_="pair"),
    )  # fmt: skip


def _more(draft: Draft, fields: Fields) -> Tag:
    """What most studies leave as it is."""
    get = draft.get

    def choose(name: str, label: str, choices: dict[str, str]) -> Tag:
        usual = next(iter(choices))
        listed = ui.input_select(fields.id(name), label, choices, selected=_text(get("model", name)) or usual)
        return ask(f"model/{name}", listed, term=name)

    def tick(section: str, name: str, label: str) -> Tag:
        box = ui.input_checkbox(fields.id(name), label, get(section, name) is True)
        return ask(f"{section}/{name}", box, term=name)

    lines = {
        "weights": "Column of weights, if rows do not all count the same",
        "where": "Only rows for which this holds",
        "by": "The same in every level of this column",
        "cluster": "Column of clusters, if rows were drawn together",
        "strata": "Column of strata, if samples were drawn apart in several",
    }
    said = [name for name in (*lines, "missing", "method", "calibration", "errors", "goodness") if get("model", name)]
    return tags.details(
        tags.summary("More: missing cells, weights, subgroups, clusters, strata, method"),
        tags.div(
            choose("missing", "Rows with a missing cell", _MISSING),
            *(ask(f"model/{name}", _line(fields, name, label, draft), term=name) for name, label in lines.items()),
            choose("errors", "How values lie around the line", _ERRORS),
            choose("method", "How it is fitted", _METHODS),
            choose("calibration", "How much noise", _CALIBRATIONS),
            tick("model", "goodness", "Say how well the line fits (R²), for 3 % of the budget"),
            tick("privacy", "large_epsilon", "An epsilon above 10 is meant"),
            class_="pair",
        ),
        class_="fields more",
        open="" if said else None,
    )


# --- fields ----------------------------------------------------------------------------------------------


def ask(place: str, *children: TagChild, term: str | None = None, class_: str = "") -> Tag:
    """Fields of one setting, with help beside them. The browser puts there what is wrong with it."""
    told = None if term is None else explain(term)
    return tags.div(*children, told, class_=f"asked {class_}".strip(), data_place=place)


def _line(fields: Fields, name: str, label: str, draft: Draft) -> Tag:
    written = _text(draft.get("model", name))
    return ui.input_text(fields.id(name), label, written, update_on="blur", spellcheck="false")


def _label(column: str, text: str) -> Tag:
    """The label of a field. Screen readers also read the column's name."""
    return tags.span(tags.span(f"{show(column)}: ", class_="visually-hidden"), text)


def number_field(id: str, label: TagChild, value: Any) -> Tag:
    """A field for a number. It is a field of text: a browser's own would swallow decimal commas without a word."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    field = ui.input_text(
        id, label, write_number(value) if known else _text(value), autocomplete="off", spellcheck="false"
    )
    field.children[-1].attrs["inputmode"] = "decimal"  # type: ignore[union-attr]
    return field


def number_fault(typed: Any) -> Tag | None:
    """What is wrong with what was typed into a field for a number; None if it is empty or can be read."""
    if not isinstance(typed, str) or not typed.strip():
        return None
    told = attempt(lambda: read_number(typed))
    return tags.p(told.text, class_="fault", role="alert") if isinstance(told, Fault) else None


def _hint(text: str) -> Tag:
    return tags.p(text, class_="hint")


def _end(values: Any, k: int) -> Any:
    """One of two ends; a lowest value may stand alone, and nan holds the place of one that is not said yet."""
    if not isinstance(values, list) or not k < len(values) <= 2:
        return None
    nan = isinstance(values[k], float) and not math.isfinite(values[k])
    return None if nan else values[k]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
