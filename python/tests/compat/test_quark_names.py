"""The names, fields and signatures of AMD Quark's interface, each of which Kvant has or refuses with the reason."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvant
from kvant.compat.quark import _absent
from kvant.compat.quark._types import ObserverBase

TORCH = (
    "torch",
    "torch.export",
    "torch.export.api",
    "torch.export.config.config",
    "torch.quantization",
    "torch.quantization.api",
    "torch.quantization.config.config",
    "torch.quantization.config.template",
    "torch.quantization.config.type",
    "torch.quantization.observer",
    "torch.quantization.observer.lsq_observer",
    "torch.quantization.observer.observer",
    "torch.quantization.observer.tqt_observer",
)
ONNX = (
    "onnx",
    "onnx.calibration",
    "onnx.calibration.data_readers",
    "onnx.calibration.methods",
    "onnx.quantization",
    "onnx.quantization.api",
    "onnx.quantization.config",
    "onnx.quantization.config.algorithm",
    "onnx.quantization.config.config",
    "onnx.quantization.config.custom_config",
    "onnx.quantization.config.data_type",
    "onnx.quantization.config.legacy",
    "onnx.quantization.config.spec",
)

# Methods that readers call themselves.
INTERNAL = {"load_data", "load_npy_data"}


def names_of(module: ModuleType) -> list[str]:
    """What a module exports or defines."""
    defined = {
        name: value for name, value in vars(module).items() if isinstance(value, type) or inspect.isfunction(value)
    }
    own = {name for name, value in defined.items() if (value.__module__, value.__name__) == (module.__name__, name)}
    return sorted(name for name in own | set(getattr(module, "__all__", ())) if not name.startswith("_"))


def plain(value: Any) -> Any:
    """A default that can be compared; None for others."""
    if isinstance(value, Enum):
        return value.name
    return value if isinstance(value, int | float | str | tuple) else None


def missing_parameters(theirs: Any, ours: Any) -> list[str]:
    """What a signature lacks."""
    made = inspect.signature(ours).parameters
    places = [name for name, entry in made.items() if entry.kind is entry.POSITIONAL_OR_KEYWORD]
    problems = []
    expected = [entry for name, entry in inspect.signature(theirs).parameters.items() if not name.startswith("_")]
    for place, entry in enumerate(expected):
        mine = made.get(entry.name)
        if mine is None:
            problems.append(f"has no parameter {entry.name}")
        elif entry.kind is entry.POSITIONAL_OR_KEYWORD and places[place : place + 1] != [entry.name]:
            problems.append(f"has {entry.name} at another place")
        elif plain(entry.default) not in (None, plain(mine.default)):
            problems.append(f"has {entry.name}={mine.default!r}, not {entry.default!r}")
        elif entry.default is not entry.empty and mine.default is mine.empty:
            problems.append(f"has no default of {entry.name}")
    return problems


def made_defaults(kind: type) -> dict[str, Any]:
    """The defaults of a dataclass that are made for each object."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {field.name: field.default_factory() for field in fields if callable(field.default_factory)}


def missing_members(theirs: type, ours: type) -> list[str]:
    """What a class lacks."""
    if issubclass(theirs, Enum):
        return [] if list(theirs.__members__) == list(ours.__members__) else ["has other members"]  # type: ignore[attr-defined]
    problems = missing_parameters(theirs, ours)
    mine = {**{name: getattr(ours, name, None) for name in made_defaults(theirs)}, **made_defaults(ours)}
    problems += [
        f"has another default of {name}" for name, value in made_defaults(theirs).items() if mine[name] != value
    ]
    for kind in theirs.__mro__:
        for name, member in vars(kind).items() if kind.__module__ == theirs.__module__ else ():
            if name.startswith("_") or name in INTERNAL or not inspect.isroutine(member):
                continue
            if hasattr(ours, name):
                found = missing_parameters(getattr(theirs, name), getattr(ours, name))
                problems += [f"{name} {text}" for text in found]
            else:
                problems.append(f"has no method {name}")
    return problems


def missing_names(theirs: ModuleType, ours: ModuleType, absent: dict[str, tuple[str, str]]) -> list[str]:
    """What a module lacks and does not refuse."""
    problems = []
    for name in names_of(theirs):
        expected, made = getattr(theirs, name, None), getattr(ours, name, None)
        if made is None:
            problems.append(f"{name} is missing")
        elif name not in vars(ours) and name in absent:
            with pytest.raises(kvant.UnsupportedError, match=name) as caught:
                made(1, other=2)
            assert caught.value.remedy, name
        elif isinstance(expected, type) and not issubclass(made, ObserverBase):
            problems += [f"{name} {text}" for text in missing_members(expected, made)]
        elif inspect.isfunction(expected):
            problems += [f"{name} {text}" for text in missing_parameters(expected, made)]
    return problems


@pytest.mark.parametrize("name", TORCH)
def test_names_of_the_torch_flow(name: str) -> None:
    theirs = pytest.importorskip(f"quark.{name}")
    ours = importlib.import_module(f"kvant.compat.quark.{name}")
    assert "\n".join(missing_names(theirs, ours, _absent.TORCH)) == ""


@pytest.mark.parametrize("name", ONNX)
def test_names_of_the_onnx_flow(name: str) -> None:
    theirs = pytest.importorskip(f"quark.{name}")
    ours = importlib.import_module(f"kvant.compat.quark.{name}")
    assert "\n".join(missing_names(theirs, ours, _absent.ONNX)) == ""


def test_modules_of_quark_are_there_or_refused() -> None:
    root = Path(pytest.importorskip("quark").__file__).parent
    here = Path(_absent.__file__).parent
    found = set()
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not parts or any(part.startswith(("_", "bundled")) for part in parts):
            continue
        name = ".".join(parts)
        place = here.joinpath(*parts)
        if place.with_suffix(".py").exists() or (place / "__init__.py").exists():
            continue
        found.add(name)
        with pytest.raises(kvant.UnsupportedError, match=r"^quark\.\S+ is absent") as caught:
            importlib.import_module(f"kvant.compat.quark.{name}")
        assert isinstance(caught.value, ImportError) and caught.value.remedy
    assert set(_absent.MODULES) <= found


def test_names_that_quark_does_not_have_are_mistakes() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kvant.compat.quark.torch.nothing")
    with pytest.raises(ImportError, match="Nothing"):
        exec("from kvant.compat.quark.torch import Nothing")
