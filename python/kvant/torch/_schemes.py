"""Schemes taken apart, as the library reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvant import _kvant


@dataclass(frozen=True)
class TensorScheme:
    """The scheme of one tensor: see `docs/reference/schemes.md`."""

    spelling: str
    kind: str
    dtype: str
    granularity: str | None
    axis: int | None
    size: int | None
    timing: str | None = None
    bits: int = 0
    min: int = 0
    max: float = 0.0
    zero_point: str = "none"
    middle: int = 0
    scale: str = ""
    observer: str = ""

    @property
    def timed(self) -> str:
        """The spelling, for activations with their timing."""
        return self.spelling if self.timing is None else f"{self.spelling}!{self.timing}"

    @property
    def has_stored_scale(self) -> bool:
        """Whether scales can be given to `fake_quantize`: others are computed from the values each time."""
        return self.kind == "int" or (self.kind == "float" and self.scale not in ("e5m3", "e4m3:f32", "e5m3:f32"))

    @property
    def has_learnable_scale(self) -> bool:
        """Whether stored scales may have any value: those of activations, too, must be stored."""
        return self.has_stored_scale and self.scale in ("model", "f32", "f16", "bf16") and self.timing != "dynamic"


@dataclass(frozen=True)
class LayerScheme:
    """The scheme of a layer: of its weight, and where these are quantized its inputs and outputs."""

    spelling: str
    weight: TensorScheme
    input: TensorScheme | None
    output: TensorScheme | None

    @property
    def spelling_without_input(self) -> str:
        """The spelling of the scheme for layers whose inputs are indices."""
        return self.weight.spelling if self.output is None else f"{self.weight.spelling}+-+{self.output.timed}"


@cache
def layer_scheme(text: str) -> LayerScheme:
    """The scheme of a name or spelling.

    Raises:
        UsageError: It is neither.
    """
    parts = json.loads(_kvant.layer_scheme(text))

    def tensor(given: dict[str, Any] | None) -> TensorScheme | None:
        return None if given is None else TensorScheme(**given)

    weight = tensor(parts["weight"])
    assert weight is not None
    return LayerScheme(parts["spelling"], weight, tensor(parts["input"]), tensor(parts["output"]))


@cache
def tensor_scheme(text: str) -> TensorScheme:
    """The scheme of one tensor; of activations with their timing."""
    if "!" not in text:
        return layer_scheme(text).weight
    scheme = layer_scheme(f"int8:tensor+{text}").input
    assert scheme is not None
    return scheme
