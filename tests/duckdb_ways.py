"""The ways in which rows of DuckDB's are added: by DuckDB itself, or by the kernel from a copy in memory or in a file."""

from __future__ import annotations

import pytest


def add_by_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no room for a copy anywhere."""
    copy_to_file(monkeypatch)
    monkeypatch.setattr("dplinked.sums.sql.duckdb_copy.has_room", lambda size: False)


def copy_to_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file of every copy, however small."""
    monkeypatch.setattr("dplinked.sums.sql.duckdb_copy.MOST_IN_MEMORY", -1)
