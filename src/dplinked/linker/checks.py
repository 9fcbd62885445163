"""What is checked of the files that are linked before anything is compared. Messages go to the steward, and tell no cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dplinked.data.arrow import column_texts
from dplinked.errors import StudyError, list_columns, shown, suggest
from dplinked.linkage.ele import RESULTS_OF_LINKING
from dplinked.linker.fields import Field

if TYPE_CHECKING:
    import pyarrow as pa


def check_file(table: pa.Table, id: str | None, where: str) -> None:
    """Refuse a file without rows, with column names that clash, or with ids that are missing or not unique."""
    if table.num_rows == 0:
        raise StudyError(f"The {where} file has no rows.")
    if ours := set(RESULTS_OF_LINKING) & set(table.column_names):
        raise StudyError(f"The {where} file has the column(s) {sorted(ours)}, which linking adds. Rename them.")
    if len(set(table.column_names)) != len(table.column_names):
        raise StudyError(f"The {where} file has two columns of the same name.")
    if id is None:
        return
    require_column(table, id, where)
    texts = column_texts(table, id, where)
    if texts.null_count or len(texts.unique()) != len(texts):
        raise StudyError(
            f"The ids in column {id!r} of the {where} file must be there and differ. Keep one record for each person and id, or leave id out if records of the same id are "
            "different people."
        )


def require_column(table: pa.Table, name: str, where: str) -> None:
    """Refuse a column that a file does not have."""
    if name not in table.column_names:
        known = suggest(name, table.column_names) + list_columns(table.column_names)
        raise StudyError(f"Column {shown(name)} is not in the {where} file.{known}")


def check_fields(table: pa.Table, fields: Sequence[Field], where: str, *, typed: bool) -> None:
    """Refuse fields that a file does not have, that are empty everywhere or, unless they are taken in their own types, that cannot be compared as texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for field in fields:
        name = str(field.right) if where == "right" else field.name
        require_column(table, name, where)
        column = table.column(name)
        if not typed or pa.types.is_string(column.type):
            texts = column_texts(table, name, where)
            column = pc.if_else(pc.equal(pc.utf8_trim_whitespace(texts), ""), None, texts)
        if column.null_count == len(column):
            raise StudyError(f"Field {name!r} has no values in the {where} file. Leave it out.")
