"""Runs of a model on calibration data: batches, quantizers switched off, changes that are undone after an error."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

import kvant
from kvant.torch._modules import TensorQuantizer
from kvant.torch._ops import with_strides_of

Forward: TypeAlias = Callable[[nn.Module, Any], Any]
"""Runs a model on a batch."""


def run_batch(model: nn.Module, batch: Any) -> Any:
    """Runs a model on a batch: mappings are keyword arguments, tuples and lists arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a value: in sequences, mappings and dataclasses."""
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


class Reached(Exception):
    """Ends a run of the model where the rest of it does not matter."""


class Calibration:
    """A model with its calibration data.

    Attributes:
        model: The model.
        batches: The batches.
    """

    def __init__(self, model: nn.Module, batches: list[Any], forward: Forward | None) -> None:
        self.model = model
        # Caches of keys and values would be filled by each run.
        self.batches = [
            {**batch, "use_cache": False} if isinstance(batch, Mapping) and "use_cache" in batch else batch
            for batch in batches
        ]
        self.forward = forward or run_batch
        self._undo: list[Callable[[], None]] = []
        self._float: dict[nn.Module, nn.Parameter] = {}

    def run(self, batch: Any) -> Any:
        """Runs the model on a batch, to its end or until a hook has `Reached` what it waits for."""
        with contextlib.suppress(Reached):
            return self.forward(self.model, batch)

    def run_all(self) -> None:
        """Runs the model on all batches."""
        for batch in self.batches:
            self.run(batch)

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Remembers how to undo a change."""
        self._undo.append(undo)

    @property
    def changes(self) -> int:
        """The number of changes so far."""
        return len(self._undo)

    def undo(self, kept: int = 0) -> None:
        """Undoes all changes but the first ones, the last one first."""
        while len(self._undo) > kept:
            self._undo.pop()()

    def replace(self, module: nn.Module, name: str, value: Tensor) -> None:
        """Gives a parameter other values; until the end the old ones can come back."""
        before: nn.Parameter = getattr(module, name)
        if name == "weight":
            self._float.setdefault(module, before)
        value = with_strides_of(before, value.reshape(before.shape).to(before.device, before.dtype))
        setattr(module, name, nn.Parameter(value, requires_grad=before.requires_grad))
        self.on_undo(lambda: setattr(module, name, before))

    def forget_float_weights(self) -> None:
        """Takes the weights as they are now for those of the float model."""
        self._float.clear()

    @contextlib.contextmanager
    def weights(self, are_float: bool) -> Iterator[None]:
        """The model computes with its weights as they are, or with those before rounding."""
        if not are_float:
            yield
            return
        rounded: dict[nn.Module, Any] = {module: module.weight for module in self._float}
        for module, weight in self._float.items():
            module.weight = weight
        try:
            yield
        finally:
            for module, weight in rounded.items():
                module.weight = weight

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """No gradients, evaluation mode, no caches of keys and values."""
        modes = {module: module.training for module in self.model.modules()}
        configs: list[Any] = [getattr(module, "config", None) for module in self.model.modules()]
        cached = [config for config in configs if getattr(config, "use_cache", False) is True]
        self.model.eval()
        for config in cached:
            config.use_cache = False
        try:
            with torch.no_grad():
                yield
        finally:
            for config in cached:
                config.use_cache = True
            for module, was_training in modes.items():
                module.training = was_training


@contextlib.contextmanager
def quantizers_off(model: nn.Module) -> Iterator[None]:
    """No quantizer does anything."""
    quantizers = (module for module in model.modules() if isinstance(module, TensorQuantizer))
    were_on = [quantizer for quantizer in quantizers if quantizer.enabled]
    for quantizer in were_on:
        quantizer.enabled = False
    try:
        yield
    finally:
        for quantizer in were_on:
            quantizer.enabled = True


@contextlib.contextmanager
def of_layer(name: str) -> Iterator[None]:
    """Lets errors name the layer."""
    try:
        yield
    except kvant.KvantError as error:
        error.message = f"layer {name}: {error.message}"
        raise
