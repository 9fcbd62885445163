"""Fixtures of the studio's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browsing import CHROMIUM, Studio

import dplinked as dpl
from dplinked.simulate import linked_households
from studies import LEDGER_STUDY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data, a study of it, and a budget for four releases of epsilon 1."""
    table = pa.table(linked_households(2_000, 1)).drop_columns(["true_consumption"])
    pq.write_table(table, tmp_path / "linked.parquet")
    (tmp_path / "study.toml").write_text(LEDGER_STUDY, encoding="utf-8")
    ledger = dpl.Ledger.create(tmp_path / "budget.db", "households", epsilon=1.5, delta=1e-6)
    ledger.register(tmp_path / "linked.parquet", linkage=dpl.ELE(0.91, block="state"))
    return tmp_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("shiny", reason="the studio needs Shiny: pip install 'dplinked[studio]'")
    api = pytest.importorskip("playwright.sync_api", reason="browser tests need Playwright")
    if CHROMIUM is None:
        pytest.skip("browser tests need Chromium: apt install chromium")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM)
        yield launched
        launched.close()


@pytest.fixture
def start(browser: Any, folder: Path) -> Iterator[Any]:
    begun: list[Studio] = []

    def begin(*arguments: object, before: str | None = None) -> Studio:
        begun.append(Studio(browser, *arguments, cwd=folder, before=before))
        return begun[-1]

    yield begin
    for studio in begun:
        studio.close()
