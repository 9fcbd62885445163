"""Names of the second stage, set wherever its modules have them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

from dplinked import second_stage

MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.iter_modules(second_stage.__path__, "dplinked.second_stage.")
]


def set_in_stage(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Set a name in every module of the second stage that has it. One at least must have it."""
    having = [module for module in MODULES if hasattr(module, name)]
    assert having, name
    for module in having:
        patch.setattr(module, name, value)
