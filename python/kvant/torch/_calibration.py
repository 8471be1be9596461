"""Parameters of static activations, from what observers see of the calibration data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import kvant
from kvant._errors import usage_error
from kvant.torch._algorithms import LayerRecipe, Observing
from kvant.torch._layouts import is_lookup
from kvant.torch._modules import TensorQuantizer, quantized_modules
from kvant.torch._offload import device_of
from kvant.torch._runs import Calibration, in_memory_order, quantizers_off
from kvant.torch._schemes import layer_scheme


class _Watcher:
    """An observer that is shown finite values only, and of each batch no more than it needs.

    Args:
        observer: Makes a user's observer of a scheme; None for the observer that the scheme names.
        scheme: The scheme.
        calibration: Knows the batch that runs.
        layer: The name of the layer.
        what: What of the layer is observed.
    """

    def __init__(
        self,
        observer: Callable[[str], Observing] | None,
        scheme: str,
        calibration: Calibration,
        layer: str,
        what: str,
    ) -> None:
        self.observer: Observing = (observer or kvant.Observer)(scheme)
        self.parameters = self.observer.parameters
        weight = layer_scheme(scheme).weight
        self._needs_ends_only = observer is None and weight.observer == "minmax"
        self._by_feature = weight.granularity == "channel"
        self._calibration = calibration
        self._layer = layer
        self._what = what

    def update(self, batch: Tensor) -> None:
        """Takes a batch in, [..., features]."""
        if self._needs_ends_only:
            if batch.numel() == 0:
                return
            batch = self._ends(batch)
        self._calibration.check_finite(self._layer, self._what, batch)
        self.observer.update(batch)

    def _ends(self, batch: Tensor) -> Tensor:
        """The least and the greatest values, [2, features] or [2, 1], with NaN where there is one."""
        if self._by_feature:
            return torch.stack(torch.aminmax(batch.reshape(-1, batch.shape[-1]), dim=0)).cpu()
        return torch.stack(torch.aminmax(in_memory_order(batch))).cpu().reshape(-1, 1)


def calibrate(calibration: Calibration, chosen: Mapping[str, LayerRecipe], channels_last: bool) -> None:
    """Finds the parameters of static activations in the float model with quantized embeddings, as Quark does."""
    watched: dict[TensorQuantizer, _Watched] = {}
    for name, recipe in chosen.items():
        module: Any = calibration.model.get_submodule(name)
        for side in ("input", "output"):
            quantizer = getattr(module, f"{side}_quantizer")
            if quantizer is not None and quantizer.scheme.timing in ("static", "local"):
                watched[quantizer] = _Watched(name, side, module, recipe)
    if not watched:
        return
    with quantizers_off(calibration.model):
        for quantizer in watched:
            quantizer.enabled = True
        for _, quantized in quantized_modules(calibration.model):
            if is_lookup(quantized):
                quantized.weight_quantizer.enabled = True
        try:
            with _channels_last(calibration.model) if channels_last else contextlib.nullcontext():
                _observe(calibration, watched)
        except RuntimeError:
            if not channels_last:
                raise
            # Views that such a layout of activations does not allow.
            _observe(calibration, watched)
    for quantizer, place in watched.items():
        try:
            scale, zero_point = quantizer.observer.parameters()
        except kvant.UsageError as error:
            raise usage_error(
                f"no calibration data reached the {place.side} of {place.layer}",
                "give data that use the whole model, or leave the layer out with `exclude`",
            ) from error
        quantizer.set_parameters(scale, zero_point, device_of(place.module))
        quantizer.observer = None


@dataclass(frozen=True)
class _Watched:
    """The inputs or outputs of a layer."""

    layer: str
    side: str
    module: Any
    recipe: LayerRecipe


def _observe(calibration: Calibration, watched: Mapping[TensorQuantizer, _Watched]) -> None:
    for quantizer, place in watched.items():
        quantizer.observer = _Watcher(
            place.recipe.observer, quantizer.scheme.spelling, calibration, place.layer, f"{place.side}s"
        )
    calibration.run_all()


@contextlib.contextmanager
def _channels_last(model: nn.Module) -> Iterator[None]:
    """Convolutions run in the layout that is fastest on CPUs, which follows from that of their weights."""
    original: list[tuple[Tensor, Tensor | None]] = []
    try:
        for module in model.modules():
            if not isinstance(module, nn.Conv2d) or module.weight.device.type != "cpu":
                continue
            weight, data = module.weight, module.weight.data
            if data.is_contiguous() and not data.is_contiguous(memory_format=torch.channels_last):
                # A weight that has its memory for itself is copied back, so that only one copy of it exists at a time.
                is_alone = data.untyped_storage().nbytes() == data.nbytes
                original.append((weight, None if is_alone else data))
                weight.data = data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight, kept in original:
            weight.data = weight.data.contiguous() if kept is None else kept
