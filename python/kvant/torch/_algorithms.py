"""Algorithms taken apart, as the library reads them, and the recipes of layers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from kvant import _kvant
from kvant._errors import UnsupportedError, usage_error
from kvant.torch._schemes import TensorScheme, layer_scheme


class Observing(Protocol):
    """An observer of one tensor: `kvant.Observer`, or an object of your own class."""

    def update(self, batch: Tensor) -> None:
        """Takes a batch in, [..., features], on its device and in its type."""

    def parameters(self) -> tuple[Any, Any]:
        """Scale and zero point (None where the code of zero is 0): numbers, arrays or tensors."""


@dataclass(frozen=True)
class LayerRecipe:
    """How some layers are quantized.

    Attributes:
        scheme: A name or spelling of `kvant list schemes`.
        observer: Makes the observers of static activations: a class or function that is called for each tensor with the
            scheme, without its timing (`int8:tensor`). None takes the observer that the scheme names.
        algorithm: Algorithms of `kvant list algorithms`: None (round to nearest), `gptq:damping=0.05`,
            `smoothquant,gptq`.
        bias: The scheme of biases: as that of a weight, with one scale (`int8:tensor`) or one for each value
            (`int8:channel`); None and `float` leave them as they are.
    """

    scheme: str
    observer: Callable[[str], Observing] | None = None
    algorithm: str | None = None
    bias: str | None = None

    def __post_init__(self) -> None:
        if self.observer is None:
            return
        try:
            signature = inspect.signature(self.observer)
        except ValueError:  # A callable that does not say what it takes.
            return
        try:
            signature.bind("int8:tensor")
        except TypeError as error:
            raise usage_error(
                f"observer={self.observer!r} cannot be called with a scheme: {error}",
                "give a class whose __init__ takes the scheme, or a function: observer=lambda scheme: MyObserver()",
            ) from error

    @property
    def algorithms(self) -> Algorithms:
        """The algorithms.

        Raises:
            UsageError: An unknown name or option, or an order that makes no sense.
        """
        return algorithms_of(self.algorithm or "rtn")

    @property
    def bias_scheme(self) -> TensorScheme | None:
        """The scheme of biases, if they are quantized.

        Raises:
            UsageError: An unknown scheme, or one that quantizes more than a weight.
            UnsupportedError: A scheme that biases do not have.
        """
        return None if self.bias is None or self.bias == "float" else _bias_scheme(self.bias)

    def with_defaults(self, algorithm: str | None, bias: str | None) -> LayerRecipe:
        """The recipe with an algorithm and a scheme of biases, unless it has its own."""
        return replace(
            self,
            algorithm=algorithm if self.algorithm is None else self.algorithm,
            bias=bias if self.bias is None else self.bias,
        )


def _bias_scheme(text: str) -> TensorScheme:
    scheme = layer_scheme(text)
    if scheme.input is not None or scheme.output is not None:
        raise usage_error(f"the scheme {text} of biases quantizes activations", f"give {scheme.weight.spelling}")
    weight = scheme.weight
    if not weight.has_stored_scale or weight.granularity not in ("tensor", "channel") or weight.axis == 1:
        raise UnsupportedError(
            f"biases are not quantized in {weight.spelling}",
            kind="unsupported",
            remedy="use one scale or one for each value: int8:tensor, int32:tensor, e4m3:channel",
        )
    return weight


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
    of_files = {"tuning": "learns codes of decoder blocks", "rotation": "rotates the residual stream of decoders"}
    if beyond := next((item for item in items if item["kind"] in of_files), None):
        raise UnsupportedError(
            f"{beyond['name']} {of_files[beyond['kind']]} of files, not in place",
            kind="unsupported",
            remedy="leave it out, or use kvant.quantize on the checkpoint",
        )
    transforms = [item for item in items if item["kind"] == "transform"]
    roundings = [item for item in items if item["kind"] == "rounding" and item["name"] != "rtn"]
    return Algorithms(
        transforms=tuple(item["spelling"] for item in transforms),
        clips=tuple(item["spelling"] for item in transforms if item["options"].get("clip") == "on"),
        rounding=roundings[0]["spelling"] if roundings else None,
        needs=roundings[0]["needs"] if roundings else "nothing",
        correction=sum(float(item["options"]["strength"]) for item in items if item["kind"] == "correction"),
    )
