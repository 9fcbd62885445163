"""What all tests share, and which of them share a process."""

from __future__ import annotations

import functools
import re
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


TOGETHER = {
    "Spark": r"test_splink_on_spark\.py|test_several\.py::test_spark_|test_sql_\w+\.py::(test_spark_|.*\[spark)",
    "releases as pages": r"report/test_pages\.py",
    "the paper's claims": r"test_the_claims_that_fail_are_the_known_ones",
    "the site": r"test_site\.py::test_(the_site|pages_of_the_site)_",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share a costly fixture go to one process, which makes it once; any other goes where there is time.

    What pytest-xdist has for it, ``--dist loadgroup``, does nothing under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((name for name, tests in TOGETHER.items() if re.search(tests, nodeid)), nodeid)

    return Together(config, log)
