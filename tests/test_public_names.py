"""Public names of 0.1.0 stay: functions, parameters and their defaults, methods, study files, commands, exit codes.

``public_names_0_1_0.json`` was written from the source of 0.1.0 by this file: ``PYTHONPATH=<its src> python tests/test_public_names.py``.
Names may be added, none may go; docs/releasing.md tells how one is deprecated first.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import dplinked as dpl

REFERENCE = Path(__file__).with_name("public_names_0_1_0.json")
MODULES = ("simulate", "paper", "baseline", "errors", "privacy.noise")  # of dplinked
IMPORTED = (
    "dplinked.privacy.calibration.privacy_epsilon",
    "dplinked.privacy.calibration.privacy_mu",
)  # so the pages say
BASELINE = ("NotPrivate", "lahiri_larsen", "ols")  # what the pages show of the module; 0.1.0 did not list it
MADE = ("Linked", "Plan", "Release", "Releases")  # by functions, never by users
USED = (
    *MADE,
    "Ledger",
    "LinkedRegression",
    "Study",
)  # their methods and attributes are public; of other classes, what they are made from
RESULTS = (
    "Balance",
    "Event",
    "Lever",
    "PlannedError",
    "Privacy",
    "ReleasedAccuracy",
    "TestResult",
)  # what calls return
ESTIMATED = ("coef_", "feature_names_in_", "intercept_", "n_features_in_", "release_")  # LinkedRegression after fit
SECTIONS = ("dplinked.study.toml.SECTIONS", "dplinked.study._SECTIONS")  # now, and in 0.1.0
COMMANDS = ("dplinked.cli.main.app", "dplinked.cli.app")


# --- what there is ------------------------------------------------------------------------------------


def find(*places: str) -> Any:
    """The first of several addresses that leads somewhere."""
    for place in places:
        module, _, name = place.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise AssertionError(f"{' and '.join(places)} lead nowhere")


def find_class(name: str) -> type:
    """The package's class of that name, wherever it is defined."""
    modules = [module for key, module in sys.modules.items() if key.partition(".")[0] == "dplinked"]
    named = {value for module in modules if isinstance(value := vars(module).get(name), type)}
    (found,) = (value for value in named if value.__module__.partition(".")[0] == "dplinked")
    return found


def shown_default(value: Any) -> Any:
    """A default as JSON has it; of objects, the type."""
    if value is inspect.Parameter.empty:
        return "(needed)"
    if isinstance(value, tuple):
        return [shown_default(part) for part in value]
    kind = type(value).__name__.replace("_HAS_DEFAULT_FACTORY_CLASS", "made anew")  # of data classes
    return value if isinstance(value, (bool, int, float, str, type(None))) else f"({kind})"


def parameters(function: Any) -> list[list[Any]]:
    """Name, kind and default of each parameter."""
    known = inspect.signature(function).parameters.values()
    return [[one.name, one.kind.name, shown_default(one.default)] for one in known if one.name != "self"]


def members(kind: type) -> dict[str, Any]:
    """Public attributes (null) and methods (their parameters) of a class."""
    fields = dict.fromkeys(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else {}
    ours = [one for one in kind.__mro__ if one.__module__.partition(".")[0] == "dplinked"]
    named = {name for one in ours for name in vars(one) if not name.startswith("_")}
    methods = {name: parameters(getattr(kind, name)) for name in named if callable(getattr(kind, name, None))}
    return dict(sorted({**dict.fromkeys(named), **fields, **methods}.items()))


def described(value: Any) -> dict[str, Any]:
    """What a public name is: how it is called, and what it has."""
    if isinstance(value, type):
        if issubclass(value, Exception):
            return {"exit_code": value.exit_code, "bases": [one.__name__ for one in value.__mro__[1:-1]]}
        made = {} if value.__name__ in MADE else {"parameters": parameters(value)}
        return made | ({"members": members(value)} if value.__name__ in USED else {})
    return {"parameters": parameters(value)} if callable(value) else {}


def module_names(module: Any) -> list[str]:
    """Public names of a module: those it lists, or those it defines."""
    own = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    ]
    return sorted(getattr(module, "__all__", BASELINE if "ols" in own else own))


def walk_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
    for part, inner in getattr(command, "commands", {}).items():
        yield from walk_commands(inner, f"{name} {part}")


def options(command: Any) -> dict[str, dict[str, Any]]:
    """Arguments, in their order, and options of a command."""
    return {
        setting.name: {
            "kind": setting.param_type_name,
            "spelled": sorted([*setting.opts, *setting.secondary_opts]) if setting.param_type_name == "option" else [],
            "needed": setting.required,
            "several": setting.nargs != 1 or bool(getattr(setting, "multiple", False)),
            "default": str(setting.default) if isinstance(setting.default, Path) else shown_default(setting.default),
        }
        for setting in command.params
    }


def describe() -> dict[str, Any]:
    """All public names of the package that is installed."""
    modules = {name: importlib.import_module(f"dplinked.{name}") for name in MODULES if name != "baseline"}
    modules["baseline"] = dpl.baseline
    return {
        "names": {name: described(getattr(dpl, name)) for name in sorted(dpl.__all__)},
        "modules": {
            name: {inner: described(getattr(module, inner)) for inner in module_names(module)}
            for name, module in sorted(modules.items())
        },
        "imported": {place: parameters(find(place)) for place in IMPORTED},
        "results": {name: sorted(members(find_class(name))) for name in RESULTS},
        "estimated": {"LinkedRegression": sorted(set(ESTIMATED) & set(vars(fitted_estimator())))},
        "study": {section: sorted(keys) for section, keys in find(*SECTIONS).items()},
        "commands": {
            name: options(command)
            for name, command in walk_commands(typer.main.get_command(find(*COMMANDS)), "dplinked")
        },
    }


def fitted_estimator() -> Any:
    import pandas as pd

    table = pd.DataFrame({"x": [0.0, 0.5, 1.0] * 5})
    model = dpl.LinkedRegression(bounds=(0, 1), response_bounds=(0, 1), linkage=dpl.Exact(), delta=1e-3)
    return model.fit(table, table["x"])


# --- what must be -------------------------------------------------------------------------------------


CHANGED_DEFAULTS = {("ranges", "declared")}  # "auto" in 0.2: private ranges where no typical range is declared


def lost_parameters(old: list[list[Any]], new: list[list[Any]]) -> list[str]:
    """What callers of the old function would miss in the new one."""
    known = {name: (kind, default) for name, kind, default in new}
    faults = [f"{name} is gone" for name, _, _ in old if name not in known]
    for name, kind, default in old:
        if name in known and default != known[name][1] and (name, default) not in CHANGED_DEFAULTS:
            faults.append(f"{name} is {known[name][1]!r} by default, and was {default!r}")
        if name in known and kind == "POSITIONAL_OR_KEYWORD" and known[name][0] != kind:
            faults.append(f"{name} cannot be given in both ways")
    by_place = [[name for name, kind, _ in listed if kind.startswith("POSITIONAL")] for listed in (old, new)]
    if by_place[1][: len(by_place[0])] != by_place[0]:
        faults.append(f"places are {by_place[1]}, and were {by_place[0]}")
    before = {name for name, _, _ in old}
    needed = [name for name, kind, default in new if default == "(needed)" and not kind.startswith("VAR")]
    return faults + [f"{name} is new and needed" for name in needed if name not in before]


def lost(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What users of an old name would miss in the new one."""
    faults = lost_parameters(old["parameters"], new.get("parameters", [])) if "parameters" in old else []
    if "exit_code" in old:
        if new.get("exit_code") != old["exit_code"]:
            faults.append(f"exit code {old['exit_code']} became {new.get('exit_code')}")
        faults += [f"is no {base} any more" for base in old["bases"] if base not in new.get("bases", [])]
    for name, call in old.get("members", {}).items():
        if name not in new.get("members", {}):
            faults.append(f".{name} is gone")
        elif call is not None:
            found = new["members"][name]
            faults += [
                f".{name}: {fault}" for fault in (["is no method"] if found is None else lost_parameters(call, found))
            ]
    return faults


if __name__ == "__main__":
    lines = {
        part: [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()]
        for part, found in describe().items()
    }
    parts = [f" {json.dumps(part)}: {{\n" + ",\n".join(listed) + "\n }" for part, listed in lines.items()]
    REFERENCE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
OLD = json.loads(REFERENCE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return json.loads(json.dumps(describe()))


@pytest.mark.parametrize("name", OLD["names"])
def test_names_of_the_package_stay(now: dict[str, Any], name: str) -> None:
    assert name in now["names"]
    assert lost(OLD["names"][name], now["names"][name]) == []


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in OLD["modules"] for name in OLD["modules"][module]]
)
def test_names_of_its_modules_stay(now: dict[str, Any], module: str, name: str) -> None:
    assert name in now["modules"][module]
    assert lost(OLD["modules"][module][name], now["modules"][module][name]) == []


def test_documented_imports_work(now: dict[str, Any]) -> None:
    for place, call in OLD["imported"].items():
        assert lost_parameters(call, now["imported"][place]) == [], place
    assert dpl.privacy.noise.add_gaussian is importlib.import_module("dplinked.privacy.noise").add_gaussian


def test_results_keep_what_they_have(now: dict[str, Any]) -> None:
    for name, known in OLD["results"].items():
        assert set(known) <= set(now["results"][name]), name
    assert now["estimated"] == OLD["estimated"] == {"LinkedRegression": list(ESTIMATED)}


@pytest.mark.parametrize("section", OLD["study"])
def test_study_files_can_say_what_they_said(now: dict[str, Any], section: str) -> None:
    assert section in now["study"]
    assert set(OLD["study"][section]) <= set(now["study"][section])


@pytest.mark.parametrize("command", OLD["commands"])
def test_commands_keep_their_options(now: dict[str, Any], command: str) -> None:
    assert command in now["commands"]
    old, new = OLD["commands"][command], now["commands"][command]
    for name, was in old.items():
        assert name in new
        assert set(was["spelled"]) <= set(new[name]["spelled"]), name
        assert was["needed"] >= new[name]["needed"], (
            name
        )  # what had to be given may be left out since, not the other way round
        assert {key: was[key] for key in was if key not in ("spelled", "needed")} == {
            key: new[name][key] for key in was if key not in ("spelled", "needed")
        }, name
    places = [[name for name, one in listed.items() if one["kind"] == "argument"] for listed in (old, new)]
    assert places[1][: len(places[0])] == places[0]
    assert not [name for name, one in new.items() if one["needed"] and name not in old]


FAULTS: dict[str, tuple[str, str]] = {
    "a parameter is gone": ("(a, *, c=1)", "b is gone"),
    "another default": ("(a, b=3, *, c=1)", "b is 3 by default"),
    "a place is gone": ("(a, *, b=2, c=1)", "b cannot be given in both ways"),
    "places exchanged": ("(b=2, a=None, *, c=1)", "places are"),
    "a new one is needed": ("(a, b=2, *, c=1, d)", "d is new and needed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_is_noticed(fault: str) -> None:
    def made(signature: str) -> list[list[Any]]:
        space: dict[str, Any] = {}
        exec(f"def f{signature}: ...", space)
        return parameters(space["f"])

    signature, said = FAULTS[fault]
    old = made("(a, b=2, *, c=1)")
    assert any(said in found for found in lost_parameters(old, made(signature)))
    assert lost_parameters(old, made("(a, b=2, e=0, *, c=1, d=None)")) == []


def test_the_version_stands_in_one_place() -> None:
    import tomllib

    root = REFERENCE.parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in settings["project"]
    assert Path(dpl.__file__).samefile(root / settings["tool"]["hatch"]["version"]["path"])
    assert "\nversion:" not in (root / "CITATION.cff").read_text(encoding="utf-8")
