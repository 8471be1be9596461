"""Parameters of layers that accelerate offloads: read from where they are, and changed without being all in memory.

Hooks of accelerate bring the parameters of a module for each pass, from a map by name. Parameters that change are
written to files, which a map over that one reads.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvant._errors import usage_error


class _Overlay(Mapping[str, Tensor]):
    """A map of parameters in which some are read from files of their own.

    Attributes:
        files: The files of changed parameters by name.
    """

    def __init__(self, base: Mapping[str, Tensor]) -> None:
        self._base = base
        self.files: dict[str, str] = {}

    def __getitem__(self, name: str) -> Tensor:
        file = self.files.get(name)
        if file is None:
            return self._base[name]
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            value: Tensor = opened.get_tensor("value")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


@dataclass(frozen=True)
class Slot:
    """The place of an offloaded parameter.

    Attributes:
        hook: The hook of accelerate that brings it.
        name: Its name in the map of that hook.
        directory: Where changed parameters are written.
    """

    hook: Any
    name: str
    directory: str

    def read(self) -> Tensor:
        """Its values."""
        value: Tensor = self.hook.weights_map[self.name]
        return value

    def write(self, value: Tensor) -> None:
        """Gives it other values."""
        from safetensors.torch import save_file

        handle, file = tempfile.mkstemp(dir=self.directory, suffix=".safetensors")
        os.close(handle)
        save_file({"value": value.detach().cpu().contiguous()}, file)
        self.use(file)

    @property
    def file(self) -> str | None:
        """The file of its values, if they were changed."""
        found = self.hook.weights_map
        return found.files.get(self.name) if isinstance(found, _Overlay) else None

    def use(self, file: str | None) -> None:
        """Takes its values from a file, or from where they were before any change."""
        if not isinstance(self.hook.weights_map, _Overlay):
            self.hook.weights_map = _Overlay(self.hook.weights_map)
        if file is None:
            self.hook.weights_map.files.pop(self.name, None)
        else:
            self.hook.weights_map.files[self.name] = file

    @property
    def device(self) -> torch.device:
        """Where its module computes."""
        given = self.hook.execution_device
        return torch.device("cpu" if given is None else given)


_SLOTS: weakref.WeakKeyDictionary[nn.Module, dict[str, Slot]] = weakref.WeakKeyDictionary()
_DIRECTORIES: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def find_offloaded(model: nn.Module) -> None:
    """Finds where the parameters are that accelerate offloads from a model."""
    for module in model.modules():
        for hook in _hooks(module):
            owners = dict(module.named_modules()) if hook.place_submodules else {"": module}
            for prefix, owner in owners.items():
                for name, parameter in owner.named_parameters(recurse=False):
                    if parameter.device.type == "meta":
                        slot = Slot(hook, f"{prefix}.{name}".lstrip("."), _directory(model, hook))
                        _SLOTS.setdefault(owner, {})[name] = slot


def _hooks(module: nn.Module) -> Iterable[Any]:
    """The hooks of a module that bring parameters."""
    hook: Any = getattr(module, "_hf_hook", None)
    hooks: Iterable[Any] = getattr(hook, "hooks", (hook,))
    return [hook for hook in hooks if getattr(hook, "offload", False) and hook.weights_map is not None]


def _directory(model: nn.Module, hook: Any) -> str:
    """Where the changed parameters of a model are written: beside those that accelerate has written, if it has."""
    if model not in _DIRECTORIES:
        folder = getattr(getattr(hook.weights_map, "dataset", hook.weights_map), "save_folder", None)
        _DIRECTORIES[model] = tempfile.mkdtemp(prefix="kvant-", dir=folder)
        weakref.finalize(model, shutil.rmtree, _DIRECTORIES[model], ignore_errors=True)
    return _DIRECTORIES[model]


def remove_unused(model: nn.Module) -> None:
    """Removes the files of values that have been changed again."""
    if model not in _DIRECTORIES:
        return
    slots = [slot for module in model.modules() for slot in _SLOTS.get(module, {}).values()]
    used = {slot.file for slot in slots}
    for entry in os.scandir(_DIRECTORIES[model]):
        if entry.path not in used:
            os.unlink(entry.path)


def slot_of(module: nn.Module, name: str) -> Slot | None:
    """The place of a parameter that is offloaded; None if it is in memory.

    Raises:
        UsageError: It has no values anywhere.
    """
    if getattr(module, name).device.type != "meta":
        return None
    slot = _SLOTS.get(module, {}).get(name)
    if slot is None:
        raise usage_error(
            f"a {name} is on the device meta, and no hook of accelerate brings its values",
            "load the model with weights",
        )
    return slot


def is_stored(module: nn.Module) -> bool:
    """Whether the weight of a module has values: a model may be quantized before it is loaded."""
    weight: Any = module.weight
    return weight.device.type != "meta" or "weight" in _SLOTS.get(module, {})


def values_of(module: nn.Module, name: str) -> Tensor:
    """The values of a parameter, wherever they are."""
    slot = slot_of(module, name)
    value: Tensor = getattr(module, name).detach() if slot is None else slot.read()
    return value


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes with its weight."""
    weight: Any = module.weight
    slot = _SLOTS.get(module, {}).get("weight")
    if weight.device.type != "meta":
        return torch.device(weight.device)
    return torch.device("cpu") if slot is None else slot.device


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model, with the values of offloaded parameters."""
    find_offloaded(model)
    state: dict[str, Tensor] = model.state_dict()
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter, slot in _SLOTS.get(module, {}).items():
            place = f"{name}.{parameter}".lstrip(".")
            if place in state and state[place].device.type == "meta":
                state[place] = slot.read()
    return state
