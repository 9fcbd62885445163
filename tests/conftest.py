"""What all tests share."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

import sparks


@pytest.fixture(scope="session", autouse=True)
def _looked_up_once() -> Iterator[None]:
    """Typer makes the command line's parser anew for each call; tests call it a thousand times in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    """The one Spark session of all tests that need Spark."""
    yield from sparks.local_session()
