"""Parameters of static activations, from what observers see of the calibration data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import kvant
from kvant._errors import usage_error
from kvant.torch._algorithms import LayerRecipe, Observing
from kvant.torch._modules import TensorQuantizer, quantized_modules
from kvant.torch._runs import Calibration, quantizers_off
from kvant.torch._schemes import layer_scheme


class _Extremes:
    """The observer min-max: of each batch only the least and the greatest values matter."""

    def __init__(self, scheme: str) -> None:
        self.observer = kvant.Observer(scheme)
        self.parameters = self.observer.parameters
        self.by_feature = layer_scheme(scheme).weight.granularity == "channel"

    def update(self, batch: Tensor) -> None:
        """Takes a batch in, [..., features]."""
        if batch.numel() == 0:
            return
        rows = batch.reshape(-1, batch.shape[-1]) if self.by_feature else _in_memory_order(batch).reshape(-1, 1)
        ends = torch.stack(torch.aminmax(rows, dim=0) if self.by_feature else torch.aminmax(rows.reshape(-1)))
        # Values that are not finite are left out and counted.
        self.observer.update((ends if ends.isfinite().all() else rows).cpu().reshape(-1, rows.shape[-1]))


def _in_memory_order(values: Tensor) -> Tensor:
    """The values [n] as they lie in memory, without a copy where they are dense: channels-last ones are not."""
    axes = sorted(range(values.dim()), key=values.stride, reverse=True)
    return values.permute(axes).reshape(-1)


def observer_of(scheme: str) -> Observing:
    """The observer that a scheme names."""
    return _Extremes(scheme) if layer_scheme(scheme).weight.observer == "minmax" else kvant.Observer(scheme)


def calibrate(calibration: Calibration, chosen: Mapping[str, LayerRecipe], channels_last: bool) -> None:
    """Finds the parameters of static activations in the float model with quantized embeddings, as Quark does."""
    watched: dict[TensorQuantizer, tuple[str, Any, LayerRecipe]] = {}
    for name, recipe in chosen.items():
        module: Any = calibration.model.get_submodule(name)
        for side in ("input", "output"):
            quantizer = getattr(module, f"{side}_quantizer")
            if quantizer is not None and quantizer.scheme.timing in ("static", "local"):
                watched[quantizer] = (f"{side} of {name}", module, recipe)
    if not watched:
        return
    with quantizers_off(calibration.model):
        for quantizer in watched:
            quantizer.enabled = True
        for _, quantized in quantized_modules(calibration.model):
            if quantized.float_class in (nn.Embedding, nn.EmbeddingBag):
                quantized.weight_quantizer.enabled = True
        try:
            with _channels_last(calibration.model) if channels_last else contextlib.nullcontext():
                _observe(calibration, watched)
        except RuntimeError:
            if not channels_last:
                raise
            # Views that such a layout of activations does not allow.
            _observe(calibration, watched)
    for quantizer, (place, module, _) in watched.items():
        try:
            scale, zero_point = quantizer.observer.parameters()
        except kvant.UsageError as error:
            raise usage_error(
                f"no calibration data reached the {place}",
                "give data that use the whole model, or leave the layer out with `exclude`",
            ) from error
        device = module.weight.device
        quantizer.set_parameters(scale, zero_point, torch.device("cpu") if device.type == "meta" else device)
        quantizer.observer = None


def _observe(calibration: Calibration, watched: Mapping[TensorQuantizer, tuple[str, Any, LayerRecipe]]) -> None:
    for quantizer, (_, _, recipe) in watched.items():
        quantizer.observer = (recipe.observer or observer_of)(quantizer.scheme.spelling)
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
