"""The presets of ONNX graphs whose codes torchao's operators hold: types, observers and rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from kvant._errors import UnsupportedError, usage_error
from kvant.torch._schemes import TensorScheme, layer_scheme


@dataclass(frozen=True)
class TensorRecipe:
    """The quantization of a kind of tensor.

    Attributes:
        dtype: The integers of its codes.
        symmetric: Whether codes are symmetric about zero.
        observer: An observer of `kvant list observers`; one in `scheme` has precedence.
        power_of_two: Whether scales are powers of two.
        per_channel: Whether each output channel of a product's weight has its own scale.
        scheme: The spelling, if scales have the definitions of checkpoints: `kvant.Observer`'s, not the ONNX flow's.
    """

    dtype: torch.dtype
    symmetric: bool = True
    observer: str = "minmax"
    power_of_two: bool = False
    per_channel: bool = False
    scheme: str | None = None

    @property
    def bits(self) -> int:
        """The size of a code."""
        return torch.iinfo(self.dtype).bits


@dataclass(frozen=True)
class GraphRecipe:
    """The quantization of a graph.

    Attributes:
        activation: Activations; None leaves them in float.
        weight: Weights and other constants.
        bias: Biases of products: int32 codes with the scale of the product, codes like a weight's, or float.
        rules: Which operators are quantized: see `RULES` in `_graph_placement`.
        align_concat: Whether the inputs and the output of a concatenation get the same scale.
        align_elementwise: Whether constants of elementwise operators have the activations' type.
        npu: Whether scales are moved into the shift limits of AMD's NPUs.
        all_operators: Whether operators without a rule are quantized too.
    """

    activation: TensorRecipe | None
    weight: TensorRecipe
    bias: Literal["int32", "weight", "float"] = "int32"
    rules: Literal["standard", "extended", "products"] = "standard"
    align_concat: bool = False
    align_elementwise: bool = False
    npu: bool = False
    all_operators: bool = False

    @property
    def has_two_byte_types(self) -> bool:
        """Whether activations and weights have eight bits and different types."""
        activation = self.activation
        return (
            activation is not None
            and activation.bits == self.weight.bits == 8
            and activation.dtype != self.weight.dtype
        )


_INT8 = TensorRecipe(torch.int8)
_INT16 = TensorRecipe(torch.int16)


def _symmetric(dtype: torch.dtype, weight: TensorRecipe = _INT8) -> GraphRecipe:
    return GraphRecipe(TensorRecipe(dtype, observer="percentile99.999"), weight)


def _asymmetric(dtype: torch.dtype, weight: TensorRecipe = _INT8, percentile: float = 99.999) -> GraphRecipe:
    return GraphRecipe(TensorRecipe(dtype, symmetric=False, observer=f"percentile{percentile}"), weight)


def _observed(recipe: GraphRecipe, observer: str) -> GraphRecipe:
    assert recipe.activation is not None
    return replace(recipe, activation=replace(recipe.activation, observer=observer))


_POWER_OF_TWO = TensorRecipe(torch.int8, observer="mse", power_of_two=True)
_A16W8 = replace(_symmetric(torch.int16), rules="extended")

PRESETS: Mapping[str, GraphRecipe] = {
    "A8W8": _symmetric(torch.int8),
    "A16W8": replace(_A16W8, align_concat=True, align_elementwise=True),
    "A16W16": replace(_symmetric(torch.int16, _INT16), rules="extended"),
    "XINT8": GraphRecipe(_POWER_OF_TWO, _POWER_OF_TWO, bias="weight", rules="extended", align_concat=True, npu=True),
    "VINT8": GraphRecipe(_POWER_OF_TWO, _POWER_OF_TWO, bias="weight", all_operators=True),
    "S8S8_AAWS": _asymmetric(torch.int8, percentile=99.9999),
    "U8S8_AAWS": _asymmetric(torch.uint8),
    "U8U8_AAWA": _asymmetric(torch.uint8, TensorRecipe(torch.uint8, symmetric=False)),
    "S16S8_ASWS": _A16W8,
    "U16S8_AAWS": replace(_asymmetric(torch.uint16), rules="extended"),
    "INT8_CNN_DEFAULT": _observed(_asymmetric(torch.uint8), "minmax"),
    "INT16_CNN_DEFAULT": replace(_observed(_asymmetric(torch.uint16, _INT16), "minmax"), rules="extended"),
    "INT8_TRANSFORMER_DEFAULT": replace(_observed(_asymmetric(torch.uint8), "ema"), rules="products"),
    "INT16_TRANSFORMER_DEFAULT": replace(_observed(_asymmetric(torch.uint16, _INT16), "ema"), rules="products"),
    "WEIGHTS_INT8": GraphRecipe(None, replace(_INT8, per_channel=True), bias="float"),
}

_ALIASES = {
    "INT8": "A8W8",
    "INT16": "A16W16",
    "S16S8": "S16S8_ASWS",
    "U16S8": "U16S8_AAWS",
    "INT8_CNN": "INT8_CNN_DEFAULT",
    "INT16_CNN": "INT16_CNN_DEFAULT",
    "INT8_TRANSFORMER": "INT8_TRANSFORMER_DEFAULT",
    "INT16_TRANSFORMER": "INT16_TRANSFORMER_DEFAULT",
    "W8_WEIGHT_ONLY": "WEIGHTS_INT8",
}

# Presets without a counterpart, by the names that begin so, and why.
_UNSUPPORTED = (
    (("A8W4", "W4", "MATMUL_NBITS"), "torchao's quantize and dequantize operators have no 4-bit codes"),
    (("S16S16_MIXED",), "activations of two types are not annotated"),
    (
        ("INT8_CNN_ACCURATE", "INT16_CNN_ACCURATE", "INT8_TRANSFORMER_ACCURATE", "INT16_TRANSFORMER_ACCURATE"),
        "the algorithm adaround chooses codes, which no annotation does",
    ),
    (("FP8",), "8-bit floats are not annotated: use kvant.torch.quantize_ with the scheme fp8"),
    (("UINT8_DYNAMIC", "INT8_DYNAMIC", "DYNAMIC"), "activations that are quantized as they come have no observers"),
    (("FP16", "BF16", "FLOAT16", "BFLOAT16"), "it casts, which needs no quantizer: use model.to(dtype)"),
    (("BFP16", "MX"), "torchao's quantize and dequantize operators have no blocks that share an exponent"),
)


def graph_recipe(name: str) -> GraphRecipe:
    """The recipe of a preset, in any case, with or without Quark's `_QCONFIG` behind, or of a spelled scheme.

    Raises:
        UnsupportedError: Torchao's operators do not hold its codes, or the name asks for an algorithm.
        UsageError: There is no such preset or scheme.
    """
    if ":" in name:
        return _spelled(name)
    upper = _in_capitals(name)
    found = PRESETS.get(_ALIASES.get(upper, upper))
    if found is not None:
        return found
    remedy = f"use one of {', '.join(PRESETS)}, or kvant.quantize on the ONNX graph"
    for prefixes, reason in _UNSUPPORTED:
        if upper.startswith(prefixes):
            raise UnsupportedError(f"{name}: {reason}", kind="unsupported", remedy=remedy)
    for prefix in sorted((*PRESETS, *_ALIASES), key=len, reverse=True):
        if upper.startswith(f"{prefix}_"):
            algorithm = upper.removeprefix(f"{prefix}_").lower()
            message = (
                f"{name}: the algorithm {algorithm} changes the float graph or chooses codes, which no annotation does"
            )
            raise UnsupportedError(message, kind="unsupported", remedy=remedy)
    raise usage_error(f"there is no preset {name}", f"use one of {', '.join(PRESETS)}")


def is_preset(name: str) -> bool:
    """Whether `graph_recipe` has a preset of this name."""
    return _in_capitals(name) in PRESETS.keys() | _ALIASES.keys()


def _in_capitals(name: str) -> str:
    return name.strip().upper().replace("-", "_").removesuffix("_QCONFIG")


def _spelled(text: str) -> GraphRecipe:
    """The recipe of a layer's scheme, such as `int8:channel+int8:tensor:mse!static`."""
    layer = layer_scheme(text)
    activation, weight = layer.input, layer.weight
    problem = None
    if layer.output is not None:
        problem = "outputs of layers are what the next layers read: leave the third part out"
    elif activation is None or activation.timing != "static" or activation.granularity != "tensor":
        problem = "activations need one static scale, as of int8:tensor!static"
    elif weight.granularity not in ("tensor", "channel"):
        problem = "weights need a scale for the tensor or for each channel"
    elif not {activation.dtype, weight.dtype} <= _SPELLED.keys():
        problem = f"codes need to be of {', '.join(_SPELLED)}"
    if problem is not None or activation is None:
        remedy = "use a spelling such as int8:channel+int8:tensor!static, or a preset"
        raise UnsupportedError(f"{text}: {problem}", kind="unsupported", remedy=remedy)
    return GraphRecipe(_of_scheme(activation), _of_scheme(weight))


_SPELLED = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "uint16": torch.uint16}


def _of_scheme(scheme: TensorScheme) -> TensorRecipe:
    symmetric, per_channel = scheme.zero_point == "none", scheme.granularity == "channel"
    dtype = _SPELLED[scheme.dtype]
    return TensorRecipe(dtype, symmetric=symmetric, per_channel=per_channel, scheme=scheme.spelling)
