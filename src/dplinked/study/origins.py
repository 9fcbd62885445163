"""Which of the linked files columns come from, and what may not come from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dplinked.data.arrow import LEFT
from dplinked.errors import StudyError
from dplinked.linkage import Exact
from dplinked.study.design import Design

if TYPE_CHECKING:
    from dplinked.study.study import Study


def check_origins(study: Study, design: Design, origins: Mapping[str, str]) -> None:
    """Refuse regressors that one person may change on several rows, as far as columns say which linked file they come from.

    A person's row of the left file, and the row that carries their record of the right file, may be two rows; the noise covers regressors
    that change on one of them. The rows are those of the left file, and links bring records of the right file to them. So regressors
    from there change on further rows wherever links may change, or where a record is on several rows.
    """
    if study.parts:
        _check_parts(study, origins)
        return
    exposure, carried = study.linkage.exposure(study.unit), getattr(origins, "carriers", {})
    for name in (*design.variables, *([] if study.cluster is None else [study.cluster])):
        if carried.get(name, 1) > (exposure.carriers if name in design.response_variables else 1):
            raise StudyError(
                f"The column {name!r} comes from links that are many to one: one record of it may be on {carried[name]} rows. A response takes carriers={carried[name]} in the linkage model; a regressor "
                "cannot be one."
            )
    if isinstance(study.linkage, Exact):
        return
    found = {name: origins[name] for name in design.variables if name in origins}
    files = {file for name, file in found.items() if name not in design.response_variables}
    _check_counted(design, found)
    if len(files) > 1:
        raise StudyError(
            "The regressors come from both linked files, so one person's would be on two rows, which the noise does not cover. Take all "
            "regressors from one file; the response may come from either."
        )
    if len({found[name] for name in design.response_variables if name in found}) > 1:
        raise StudyError(
            "The response is made of columns of both linked files, so one person would change it on two rows, which the noise does not cover. "
            "Make it of columns of one file."
        )
    responses = {found[name] for name in design.response_variables if name in found}
    ids = (
        (study.unit.id, files, "regressors"),
        (study.unit.response_id, responses, "response"),
        (study.cluster, files, "regressors"),
    )
    for id, sources, what in ids:
        if id is not None and id in origins and sources - {origins[id]}:
            raise StudyError(
                f"The column {id!r} does not come from the file of the {what}, so it does not say whose these are. Name a column of that file."
            )
    if files - {LEFT} and (exposure.displaced or exposure.carriers > 1):
        raise StudyError(
            "The regressors come from the right file, whose records may change their rows (displaced_links, moves_block) or be on several "
            "(carriers): one person would change the regressors of several rows. Take the regressors from the left file."
        )


def _check_parts(study: Study, origins: Mapping[str, str]) -> None:
    """Refuse columns of the wrong file in any result, and outcomes of several files."""
    files = set()
    for part in study.parts.values():
        design = part.prepare()[0]
        check_origins(part, design, origins)
        files |= {origins[name] for name in design.response_variables if name in origins}
    if len(files) > 1:
        raise StudyError(
            "The outcomes come from both linked files. Take all of them from the file that links bring to the rows, or fit them apart."
        )


def _check_counted(design: Design, found: Mapping[str, str]) -> None:
    """Refuse weights, conditions and strata that the other file than the regressors' tells; without regressors, the response's."""
    counted = () if design.counting is None else (*design.counting.numeric, *design.counting.categorical)
    made = {name for column in design.columns for factor in column.numeric for name in factor.variables}
    made |= {name for column in design.columns for name, _ in column.cell}
    files = {found[name] for name in made if name in found}
    response = {found[name] for name in design.response_variables if name in found}
    for name in (*counted, *([] if design.strata is None else [design.strata])):
        elsewhere = name in found and (found[name] not in files if files else found[name] in response)
        if elsewhere:
            what = "The strata are" if name == design.strata else "What rows count follows"
            raise StudyError(
                f"{what} {name!r}, which comes from another file than the regressors: on a linked row it may be that of somebody else. Weights, conditions, levels and strata take columns of the "
                "regressors' file."
            )
