"""Algorithms taken apart, as the library reads them, and the recipes of layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from kvant import _kvant


class Observing(Protocol):
    """An observer: `kvant.Observer`, or your own class."""

    def update(self, batch: Tensor) -> None:
        """Takes a batch in, [..., features]."""

    def parameters(self) -> tuple[Any, Any]:
        """Scale and zero point (None where the code of zero is 0)."""


@dataclass(frozen=True)
class LayerRecipe:
    """How some layers are quantized.

    Attributes:
        scheme: A name or spelling of `kvant list schemes`.
        observer: Makes the observers of static activations, from their scheme without its timing; the scheme's own
            observer if it is None.
        algorithm: Algorithms of `kvant list algorithms`: None (round to nearest), `gptq:damping=0.05`,
            `smoothquant,gptq`.
    """

    scheme: str
    observer: Callable[[str], Observing] | None = None
    algorithm: str | None = None

    @property
    def algorithms(self) -> Algorithms:
        """The algorithms.

        Raises:
            UsageError: An unknown name or option, or an order that makes no sense.
        """
        return algorithms_of(self.algorithm or "rtn")

    def with_algorithm(self, algorithm: str | None) -> LayerRecipe:
        """The recipe with an algorithm, unless it has its own."""
        return self if self.algorithm is not None else replace(self, algorithm=algorithm)


Wanted: TypeAlias = str | LayerRecipe | None
"""A scheme, a recipe, or None: the layer stays as it is."""


@dataclass(frozen=True)
class Algorithms:
    """What happens to a weight: transforms, then a rounding; then to the bias.

    Attributes:
        transforms: The spellings of transforms, in order.
        clips: The transforms among them that search for clipping thresholds.
        rounding: The spelling of the rounding; None for rounding to nearest.
        needs: The inputs that the rounding needs: `nothing`, `hessian` or `mismatch`.
        correction: The share of the mean error that the bias compensates for; 0 without bias correction.
    """

    transforms: tuple[str, ...]
    clips: tuple[str, ...]
    rounding: str | None
    needs: str
    correction: float

    @property
    def sees_inputs(self) -> bool:
        """Whether the inputs of the layer in the quantized model are needed."""
        return self.needs != "nothing" or self.correction > 0

    @property
    def needs_data(self) -> bool:
        """Whether any inputs are needed."""
        return self.sees_inputs or bool(self.transforms)


@cache
def algorithms_of(text: str) -> Algorithms:
    """The algorithms of a list such as `awq:clip=off,gptq`."""
    items = json.loads(_kvant.algorithms(text))
    transforms = [item for item in items if item["kind"] == "transform"]
    roundings = [item for item in items if item["kind"] == "rounding" and item["name"] != "rtn"]
    return Algorithms(
        transforms=tuple(item["spelling"] for item in transforms),
        clips=tuple(item["spelling"] for item in transforms if item["options"].get("clip") == "on"),
        rounding=roundings[0]["spelling"] if roundings else None,
        needs=roundings[0]["needs"] if roundings else "nothing",
        correction=sum(float(item["options"]["strength"]) for item in items if item["kind"] == "correction"),
    )
