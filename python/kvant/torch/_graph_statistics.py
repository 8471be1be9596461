"""Scales and zero points of tensors of graphs.

The statistics and formulas are the extension's: those of Kvant's ONNX flow for presets, those of checkpoints for
spelled schemes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

import kvant
from kvant import _kvant
from kvant._tensors import _activations, _weight
from kvant.torch._graph_presets import TensorRecipe

Floats = NDArray[numpy.float32]


class Affine(NamedTuple):
    """`value = scale * (code - zero_point)`. The scale is a number of float32."""

    scale: float
    zero_point: int


class Statistic:
    """What an observer keeps of the samples of an activation.

    Args:
        recipe: How the activation is quantized.
    """

    def __init__(self, recipe: TensorRecipe) -> None:
        self._observer = _scheme(recipe).observer() if recipe.scheme is None else kvant.Observer(recipe.scheme)

    def observe(self, values: Floats) -> None:
        """Takes a sample in: values of any shape."""
        if isinstance(self._observer, kvant.Observer):
            self._observer.update(values)
        else:
            self._observer.update(_activations(values).data)

    def affine(self) -> Affine | None:
        """Scale and zero point; None before any value."""
        if not isinstance(self._observer, kvant.Observer):
            found = self._observer.parameters()
            return None if found is None else Affine(*found)
        if self._observer.range is None:
            return None
        scale, point = self._observer.parameters()
        return Affine(float(scale), 0 if point is None else int(point))


def affine(least: float, greatest: float, recipe: TensorRecipe) -> Affine:
    """Scale and zero point of a range, for recipes without a scheme."""
    return Affine(*_scheme(recipe).range_parameters(least, greatest))


def row_affines(rows: Floats, recipe: TensorRecipe) -> list[Affine]:
    """Scale and zero point of each row of a weight, [rows, ...]."""
    if recipe.scheme is None:
        return [Affine(*found) for found in _scheme(recipe).row_parameters(_weight(rows).data)]
    made = kvant.quantize_tensor(rows, recipe.scheme)
    scales = numpy.asarray(made.scale).reshape(-1)
    points = numpy.zeros(len(scales)) if made.zero_point is None else numpy.asarray(made.zero_point).reshape(-1)
    return [Affine(float(scale), int(point)) for scale, point in zip(scales, points, strict=True)]


def _scheme(recipe: TensorRecipe) -> _kvant.GraphScheme:
    dtype = str(recipe.dtype).removeprefix("torch.")
    return _kvant.GraphScheme(dtype, recipe.symmetric, recipe.power_of_two, recipe.observer)
