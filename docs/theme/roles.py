"""Names in docstrings as links."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object

ROOT = Path(__file__).parents[2]


class Roles(Extension):
    """Sphinx's roles in docstrings, like :class:`ELE`, as links to where the reference has the name."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r":(?:class|func|meth|mod):`~?([\w.]+)`", lambda found: _link(found[1], obj), obj.docstring.value
            )


def _link(name: str, obj: Object) -> str:
    """A name in an object's docstring as a link, if the reference has it."""
    short, owner = name.removeprefix("dplinked."), obj if obj.is_class else obj.parent
    target = _PUBLIC.get(short, name if "." in name else f"{obj.module.path}.{name}")
    if owner is not None and owner.is_class and name in owner.members:
        target = f"{owner.path}.{name}"
    return f'<autoref identifier="{target}" optional><code>{short}</code></autoref>'


def _public_names() -> dict[str, str]:
    """Where the package's public names are defined, by its own imports."""
    tree = ast.parse((ROOT / "src" / "dplinked" / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    found = {name.name: f"{node.module}.{name.name}" for node in imports for name in node.names}
    # What a package only passes on is defined in one of its modules.
    return {**found, **{name: f"dplinked.linkage.{module}.{name}" for name, module in _PASSED_ON.items()}}


_PASSED_ON = {"ELE": "model", "Exact": "model", "Matching": "matching", "PrivacyUnit": "unit"}
_PUBLIC = _public_names()
