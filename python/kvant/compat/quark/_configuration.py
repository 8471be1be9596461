"""Quark's configurations, and the schemes that they mean.

Fields and values are those of amd-quark 0.13. What Kvant does not do is refused with the reason when a model is
quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kvant._errors import usage_error
from kvant.compat._shared import unsupported


class Dtype(Enum):
    """Quark's dtypes."""

    int2 = "int2"
    int3 = "int3"
    int4 = "int4"
    uint4 = "uint4"
    int8 = "int8"
    uint8 = "uint8"
    int16 = "int16"
    uint16 = "uint16"
    int32 = "int32"
    uint2 = "uint2"
    fp4 = "fp4"
    fp6_e2m3 = "fp6_e2m3"
    fp6_e3m2 = "fp6_e3m2"
    fp8_e4m3 = "fp8_e4m3"
    fp8_e5m2 = "fp8_e5m2"
    mx = "mx"
    mx6 = "mx6"
    mx9 = "mx9"
    bfp16 = "bfp16"
    float16 = "float16"
    bfloat16 = "bfloat16"


class QSchemeType(Enum):
    """Which values share a scale."""

    per_tensor = "per_tensor"
    per_channel = "per_channel"
    per_group = "per_group"


class ScaleType(Enum):
    """The types of scales."""

    float = "float"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    pof2 = "pof2"


class RoundType(Enum):
    """The ways of rounding. Codes are rounded half to even."""

    round = 2
    floor = 3
    half_even = 8


class ZeroPointType(Enum):
    """The types of zero points."""

    int32 = "int32"
    float32 = "float32"


class QuantizationMode(Enum):
    """The flows. Models are quantized in place, in eager mode."""

    eager_mode = "eager_mode"
    fx_graph_mode = "fx_graph_mode"


class _Observer:
    """An observer, of which only the name counts."""

    spelling: str | None = ""


class PlaceholderObserver(_Observer):
    """Observes nothing."""


class PerTensorMinMaxObserver(_Observer):
    """The least and the greatest value."""


class PerChannelMinMaxObserver(_Observer):
    """The same for each channel."""


class PerGroupMinMaxObserver(_Observer):
    """The same for each group."""


class PerBlockMXObserver(_Observer):
    """The greatest magnitude of each block."""


class PerTensorPercentileObserver(_Observer):
    """All but a few of the greatest values."""

    spelling = ":percentile99.99999999"


class PerTensorMSEObserver(_Observer):
    """The range with the least squared error."""

    spelling = ":mse"


class PerTensorHistogramObserver(_Observer):
    """Not supported: its range stays infinite in Quark."""

    spelling = None


@dataclass
class QTensorConfig:
    """How one tensor is quantized (QuantizationSpec in older versions)."""

    dtype: Dtype
    observer_cls: type[_Observer] | None = None
    is_dynamic: bool | None = None
    qscheme: QSchemeType | None = None
    ch_axis: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    round_method: RoundType | None = None
    scale_type: ScaleType | None = None
    scale_format: str | None = None
    scale_calculation_mode: str | None = None
    mx_element_dtype: Dtype | None = None
    zero_point_type: ZeroPointType = ZeroPointType.int32
    is_scale_quant: bool = False
    qat_spec: Any = None


QuantizationSpec = QTensorConfig

Tensors = QTensorConfig | list[QTensorConfig] | None


@dataclass
class QLayerConfig:
    """How a layer is quantized (QuantizationConfig in older versions)."""

    input_tensors: Tensors = None
    output_tensors: Tensors = None
    weight: Tensors = None
    bias: Tensors = None
    target_device: Any = None


QuantizationConfig = QLayerConfig


@dataclass
class GPTQConfig:
    """GPTQ."""

    block_size: int = 128
    damp_percent: float = 0.01
    desc_act: bool = True
    static_groups: bool = True
    inside_layer_modules: list[str] = field(default_factory=list)
    model_decoder_layers: str = ""
    name: str = "gptq"


@dataclass
class QConfig:
    """How a model is quantized (Config in older versions)."""

    global_quant_config: QLayerConfig
    layer_type_quant_config: dict[Any, QLayerConfig] = field(default_factory=dict)
    layer_quant_config: dict[str, QLayerConfig] = field(default_factory=dict)
    kv_cache_quant_config: dict[str, QLayerConfig] = field(default_factory=dict)
    softmax_quant_spec: QTensorConfig | None = None
    exclude: list[str] = field(default_factory=list)
    algo_config: list[Any] | Any | None = None
    quant_mode: QuantizationMode = QuantizationMode.eager_mode
    log_severity_level: int = 1
    version: str = "0.13"


Config = QConfig

_INTEGERS = ("int2", "int3", "int4", "uint4", "int8", "uint8", "uint2", "int16")
_FLOATS = {"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp4": "e2m1", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2"}
_CASTS = {"float16": "f16", "bfloat16": "bf16"}
_SCALES = {None: "", "float": "", "float32": ":f32", "float16": ":f16", "bfloat16": ":bf16", "pof2": ":pow2"}


def scheme_of(layer: QLayerConfig, kind: str) -> str | None:
    """The scheme that a configuration means for a type of layers; None if the layer stays as it is.

    Raises:
        UnsupportedError: Kvant does not do this.
    """
    if layer.bias is not None:
        raise unsupported("biases are not quantized in place", "leave `bias` out")
    if layer.weight is None:
        if layer.input_tensors is None and layer.output_tensors is None:
            return None
        raise unsupported("activations are quantized where the weight is", "give `weight` a configuration too")
    text = _tensor(layer.weight, f"the weight of {kind}", _weight_axis(kind), _group_axes(kind))
    given, made = _activation(layer.input_tensors), _activation(layer.output_tensors)
    if made is not None:
        return f"{text}+{given or '-'}+{made}"
    return text if given is None else f"{text}+{given}"


def _weight_axis(kind: str) -> dict[int, str]:
    """The spelling of a scale for each entry of an axis of the weight."""
    if kind == "ConvTranspose2d":
        return {1: "channel"}
    if kind in ("Linear", "Embedding", "EmbeddingBag"):
        return {0: "channel", -2: "channel", 1: "channel@1", -1: "channel@1"}
    return {0: "channel"}


def _group_axes(kind: str) -> tuple[int, ...]:
    """The axes of the weight along which groups run over input channels."""
    if kind == "ConvTranspose2d":
        return (0,)
    return (1, -1) if kind in ("Linear", "Embedding", "EmbeddingBag") else (1,)


def _activation(given: Tensors) -> str | None:
    if given is None:
        return None
    # Quark counts the axes of [batch, tokens, features].
    text = _tensor(given, "activations", {1: "channel", -2: "channel", 2: "channel@1", -1: "channel@1"}, (2, -1))
    first = given[0] if isinstance(given, list) else given
    return f"{text}!{'dynamic' if first.is_dynamic else 'static'}"


def _tensor(given: Any, what: str, channels: Mapping[int, str], groups: tuple[int, ...]) -> str:
    """The spelling of a tensor's scheme."""
    if isinstance(given, list):
        if len(given) != 1:
            raise unsupported(
                f"{what} in two stages is not read from a list of configurations",
                "give the scheme by name with kvant.torch.quantize_, such as nvfp4 or int4_fp8",
            )
        given = given[0]
    dtype = given.dtype.value
    if dtype in _CASTS:
        return _CASTS[dtype]
    if dtype in ("mx6", "mx9", "bfp16"):
        return str(dtype)
    if dtype == "mx":
        element = given.mx_element_dtype.value if given.mx_element_dtype else "int8"
        return "mxint8" if element == "int8" else f"{_FLOATS[element]}:g{given.group_size or 32}:e8m0"
    if dtype not in _INTEGERS and dtype not in _FLOATS:
        raise unsupported(f"{what} in {dtype} is not supported", "`kvant list dtypes` shows the dtypes")
    observer = (given.observer_cls or PerTensorMinMaxObserver).spelling
    if observer is None:
        raise unsupported(
            f"the observer {given.observer_cls.__name__} is not supported",
            "use PerTensorMinMaxObserver, PerTensorMSEObserver or PerTensorPercentileObserver",
        )
    shared = _shared(given, what, channels, groups)
    if dtype in _FLOATS:
        return f"{_FLOATS[dtype]}:{shared}{_float_scale(given, what)}{observer}"
    zero = "" if given.symmetric is not False else ":fzp" if given.zero_point_type is ZeroPointType.float32 else ":zp"
    return f"{dtype}:{shared}{_scale(given)}{zero}{observer}"


def _shared(given: QTensorConfig, what: str, channels: Mapping[int, str], groups: tuple[int, ...]) -> str:
    if given.qscheme is None or given.qscheme is QSchemeType.per_tensor:
        return "tensor"
    if given.qscheme is QSchemeType.per_channel:
        axis = 0 if given.ch_axis is None else given.ch_axis
        if axis not in channels:
            raise unsupported(f"{what} with a scale for each entry of axis {axis}", f"use ch_axis {min(channels)}")
        return channels[axis]
    if given.ch_axis not in groups:
        raise unsupported(f"{what} in groups along axis {given.ch_axis}", f"use ch_axis {groups[0]}")
    if not given.group_size:
        raise usage_error(f"{what} in groups has no group_size", "give group_size")
    return "g-1" if given.group_size < 0 else f"g{given.group_size}"


def _scale(given: QTensorConfig) -> str:
    return _SCALES[None if given.scale_type is None else given.scale_type.value]


def _float_scale(given: QTensorConfig, what: str) -> str:
    if given.scale_format in (None, "float32"):
        return _scale(given)
    if given.scale_format == "e8m0":
        mode = given.scale_calculation_mode
        if mode not in (None, "even"):
            raise unsupported(f"{what} with scales by the rule {mode!r}", "use scale_calculation_mode='even'")
        return ":e8m0"
    if given.scale_format == "e5m3":
        return ":e5m3"
    raise unsupported(f"{what} with scales in {given.scale_format}", "use scale_format e8m0, e5m3 or float32")


def algorithm_of(config: QConfig) -> str | None:
    """The algorithm of a configuration.

    Raises:
        UnsupportedError: It does not run on models in place.
    """
    given = config.algo_config or []
    algorithms = given if isinstance(given, list) else [given]
    if not algorithms:
        return None
    first = algorithms[0]
    if len(algorithms) > 1 or not isinstance(first, GPTQConfig):
        names = ", ".join(str(getattr(algorithm, "name", algorithm)) for algorithm in algorithms)
        raise unsupported(
            f"the algorithm {names} does not run on models in place",
            "use GPTQConfig, or quantize the checkpoint with kvant.quantize, which has them all",
        )
    order = "activation" if first.desc_act else "stored"
    groups = "static" if first.static_groups else "dynamic"
    return f"gptq:damping={first.damp_percent}:order={order}:groups={groups}:block={first.block_size}"
