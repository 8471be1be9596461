"""Runs of a model on calibration data: batches, quantizers switched off, changes that are undone after an error."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

import kvant
from kvant._errors import usage_error
from kvant.torch._modules import TensorQuantizer
from kvant.torch._offload import Slot, slot_of
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
        batch: The number of the batch that runs.
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
        self._float: dict[tuple[nn.Module, str], nn.Parameter] = {}
        self._float_files: dict[tuple[nn.Module, str], str | None] = {}
        self.batch = 0

    def run(self, number: int) -> Any:
        """Runs the model on a batch, to its end or until a hook has `Reached` what it waits for."""
        self.batch = number
        with contextlib.suppress(Reached):
            return self.forward(self.model, _with_own_caches(self.batches[number], number))

    def run_all(self) -> None:
        """Runs the model on all batches."""
        for number in range(len(self.batches)):
            self.run(number)

    def check_finite(self, layer: str, what: str, values: Tensor) -> None:
        """Refuses values that no scale fits.

        Args:
            layer: The name of a layer.
            what: What the values are of it.
            values: The values, in the batch that runs.

        Raises:
            InvalidError: One of them is NaN or infinite.
        """
        if not values.is_floating_point() or not values.numel():
            return
        ends = torch.stack(torch.aminmax(in_memory_order(values.detach())))
        if not all(map(math.isfinite, ends.tolist())):
            raise kvant.InvalidError(
                f"layer {layer}: {what} are NaN or infinite in batch {self.batch} of the data, counted from 0",
                kind="invalid",
                remedy="leave the batch out if its own values are not finite; "
                "otherwise calibrate the model in float32, where it does not overflow",
            )

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
        slot = slot_of(module, name)
        if slot is not None:
            self._replace_offloaded(slot, module, name, value.reshape(before.shape).to(before.dtype))
            return
        self._float.setdefault((module, name), before)
        value = with_strides_of(before, value.reshape(before.shape).to(before.device, before.dtype))
        setattr(module, name, nn.Parameter(value, requires_grad=before.requires_grad))
        self.on_undo(lambda: setattr(module, name, before))

    def _replace_offloaded(self, slot: Slot, module: nn.Module, name: str, value: Tensor) -> None:
        before = slot.file
        self._float_files.setdefault((module, name), before)
        slot.write(value)
        self.on_undo(lambda: slot.use(before))

    def forget_float_weights(self) -> None:
        """Takes the parameters as they are now for those of the float model."""
        self._float.clear()
        self._float_files.clear()

    @contextlib.contextmanager
    def weights(self, are_float: bool) -> Iterator[None]:
        """The model computes with its weights and biases as they are, or with those before rounding."""
        if not are_float:
            yield
            return
        rounded = {(module, name): getattr(module, name) for module, name in self._float}
        files = {}
        for (module, name), file in self._float_files.items():
            slot = slot_of(module, name)
            assert slot is not None
            files[slot] = slot.file
            slot.use(file)
        for (module, name), parameter in self._float.items():
            setattr(module, name, parameter)
        try:
            yield
        finally:
            for (module, name), parameter in rounded.items():
                setattr(module, name, parameter)
            for slot, file in files.items():
                slot.use(file)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """As `evaluating` for the model."""
        if self.batches:
            _keep_freed_memory()
        try:
            with evaluating(self.model):
                yield
        finally:
            if self.batches:
                _return_freed_memory()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No gradients, evaluation mode, no caches of keys and values."""
    modes = {module: module.training for module in model.modules()}
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    cached = [config for config in configs if getattr(config, "use_cache", False) is True]
    model.eval()
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


# Parameters of mallopt(3), and the values up to which glibc raises them by itself.
_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD = -3, 32 * 1024 * 1024
_M_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD = -1, 64 * 1024 * 1024


def _keep_freed_memory() -> None:
    """Makes glibc keep freed activations for the next layers: by default it returns large blocks to the system, which
    clears each page again, for up to a tenth of the time of a forward pass. Other allocators have no such setting.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)


def _return_freed_memory() -> None:
    """Returns what glibc has kept to the system."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(function: str) -> Any:
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None


def _with_own_caches(batch: Any, number: int) -> Any:
    """A batch with copies of its caches of keys and values, which a run would fill."""
    kind = getattr(sys.modules.get("transformers.cache_utils"), "Cache", None)
    if kind is None or not isinstance(batch, Mapping | tuple | list):
        return batch

    def own(value: Any) -> Any:
        if not isinstance(value, kind):
            return value
        try:
            return copy.deepcopy(value)
        except RuntimeError as error:
            raise usage_error(
                f"batch {number} of the data holds a cache of keys and values with gradients",
                "make it under torch.no_grad()",
            ) from error

    if isinstance(batch, Mapping):
        has_cache = any(isinstance(value, kind) for value in batch.values())
        return {name: own(value) for name, value in batch.items()} if has_cache else batch
    if not any(isinstance(value, kind) for value in batch):
        return batch
    return tuple(map(own, batch)) if isinstance(batch, tuple) else [own(value) for value in batch]


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


def in_memory_order(values: Tensor) -> Tensor:
    """The values [n] as they lie in memory, without a copy where they are dense: channels-last ones are not."""
    axes = sorted(range(values.dim()), key=values.stride, reverse=True)
    return values.permute(axes).reshape(-1)
