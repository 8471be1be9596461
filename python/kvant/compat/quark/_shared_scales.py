"""Scales of tensors that several layers share: of weights that engines fuse, and of the inputs of experts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import kvant
import kvant.torch as kt
from kvant.compat.quark._configuration import QConfig
from kvant.torch._rounding import matrix_of

_EXPERT = re.compile(r"(.*\.mlp\.experts\.)\d+\.(\w+)")


@dataclass(frozen=True)
class _Rows:
    """The codes of a matrix that was quantized with a further row, whose largest value is that of several matrices.

    Attributes:
        quantized: The codes with the further row.
        rows: The rows of the matrix.
    """

    quantized: kvant.QuantTensor
    rows: int

    def dequantize(self) -> Tensor:
        """The values of the matrix."""
        values: Tensor = self.quantized.dequantize()[: self.rows]
        return values

    def packed(self, format: str, name: str = "") -> dict[str, Tensor]:
        """The tensors of a checkpoint."""
        tensors = self.quantized.packed(format, name)
        return {key: tensor[: self.rows].clone() if tensor.dim() > 1 else tensor for key, tensor in tensors.items()}


def share_scales(model: nn.Module, config: QConfig) -> None:
    """Gives weights of `shared_scale_groups` one scale of the tensor, and inputs of a layer's experts theirs.

    The weights have the values of their codes then. Schemes of one level have no such scale.
    """
    layers = dict(kt.quantized_modules(model))
    for group in config.shared_scale_groups or ():
        for names in _siblings(layers, group):
            _share([layers[name] for name in names], names)
    if config.sync_moe_expert_input_amax:
        experts: dict[tuple[str, str], list[Any]] = {}
        for name, module in layers.items():
            found = _EXPERT.fullmatch(name)
            if found and module.input_quantizer is not None and module.input_quantizer.scheme.timing == "local":
                experts.setdefault((found[1], found[2]), []).append(module.input_quantizer)
        for quantizers in experts.values():
            scale = torch.stack([quantizer.scale for quantizer in quantizers]).amax(dim=0)
            for quantizer in quantizers:
                quantizer.set_parameters(scale.clone(), None, scale.device)


def _siblings(layers: dict[str, Any], group: Iterable[str]) -> list[list[str]]:
    """The layers of each module that a group names, where there are several."""
    found: dict[str, list[str]] = {}
    for name, module in layers.items():
        parent, _, leaf = name.rpartition(".")
        if leaf in group and module.weight_quantizer.scheme.scale in ("e4m3:f32", "e5m3:f32"):
            found.setdefault(parent, []).append(name)
    return [names for names in found.values() if len(names) > 1]


def _share(modules: list[Any], names: list[str]) -> None:
    """Rounds weights under one scale of the tensor."""
    if any(module.chosen is not None or module.weight.device.type == "meta" for module in modules):
        warnings.warn(
            f"{', '.join(names)} have a scale of the tensor each: their codes were chosen, or they are offloaded",
            kvant.KvantWarning,
            stacklevel=4,
        )
        return
    matrices = [matrix_of(module) for module in modules]
    greatest = torch.stack([matrix.abs().amax() for matrix in matrices]).amax()
    for module, matrix in zip(modules, matrices, strict=True):
        row = torch.zeros_like(matrix[:1])
        row[0, 0] = greatest
        quantized = kvant.quantize_tensor(torch.cat([matrix, row]), module.scheme_text)
        module.chosen = _Rows(quantized, matrix.shape[0])
        weight = module.layout.to_weight(module.chosen.dequantize(), tuple(module.weight.shape))
        module.weight.data = weight.to(module.weight)
        module.weight_quantizer.enabled = False
