"""What all tests share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import typer.main


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Typer makes the command line's parser anew for each call; tests call it a thousand times in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield
