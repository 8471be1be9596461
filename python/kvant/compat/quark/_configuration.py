"""Quark's configurations, and the schemes that they mean.

Fields and values are those of amd-quark 0.13. What Kvant does not do is refused with the reason when a model is
quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
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
class GPTAQConfig(GPTQConfig):
    """GPTAQ."""

    alpha: float = 0.25
    name: str = "gptaq"


@dataclass
class QronosConfig:
    """Qronos. `beta` changes how it is computed, and is ignored."""

    inside_layer_modules: list[str] = field(default_factory=list)
    model_decoder_layers: str = ""
    name: str = "qronos"
    block_size: int = 128
    desc_act: bool = True
    static_groups: bool = True
    alpha: float = 1e-3
    beta: float = 1e4


@dataclass
class SmoothQuantConfig:
    """SmoothQuant."""

    name: str = "smooth"
    alpha: float = 1
    scale_clamp_min: float = 1e-3
    scaling_layers: list[dict[str, Any]] = field(default_factory=list)
    model_decoder_layers: str = ""


@dataclass
class AutoSmoothQuantConfig:
    """AutoSmoothQuant."""

    name: str = "autosmoothquant"
    scaling_layers: list[dict[str, Any]] | None = None
    model_decoder_layers: str | None = None
    compute_scale_loss: str | None = "MSE"


@dataclass
class AWQConfig:
    """AWQ."""

    name: str = "awq"
    scaling_layers: list[dict[str, Any]] = field(default_factory=list)
    model_decoder_layers: str = ""


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

_INTEGERS: tuple[str, ...] = ("int2", "int3", "int4", "uint4", "int8", "uint8", "uint2", "int16")
_FLOATS = {"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp4": "e2m1", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2"}
_CASTS = {"float16": "f16", "bfloat16": "bf16"}
_SCALES = {None: "", "float": "", "float32": ":f32", "float16": ":f16", "bfloat16": ":bf16", "pof2": ":pow2"}


def scheme_of(layer: QLayerConfig, kind: str) -> str | None:
    """The scheme that a configuration means for a type of layers; None if the layer stays as it is.

    Raises:
        UnsupportedError: Kvant does not do this.
    """
    if layer.weight is None:
        if layer.input_tensors is None and layer.output_tensors is None:
            return None
        raise unsupported("activations are quantized where the weight is", "give `weight` a configuration too")
    text = _tensor(layer.weight, f"the weight of {kind}", _weight_axis(kind), _group_axes(kind))
    given, made = _activation(layer.input_tensors), _activation(layer.output_tensors)
    if made is not None:
        return f"{text}+{given or '-'}+{made}"
    return text if given is None else f"{text}+{given}"


def bias_of(layer: QLayerConfig) -> str | None:
    """The scheme that a configuration means for biases; None if they stay as they are.

    Raises:
        UnsupportedError: Kvant does not do this.
    """
    if layer.bias is None:
        return None
    dtypes = (*_INTEGERS, "int32", "uint16")
    return _tensor(layer.bias, "biases", {0: "channel", -1: "channel"}, (-1,), dtypes)


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


def _tensor(
    given: Any,
    what: str,
    channels: Mapping[int, str],
    groups: tuple[int, ...],
    integers: tuple[str, ...] = _INTEGERS,
) -> str:
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
    if dtype not in integers and dtype not in _FLOATS:
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


_ROUNDINGS = (GPTQConfig, QronosConfig)
_TRANSFORMS = (SmoothQuantConfig, AutoSmoothQuantConfig, AWQConfig)
# Algorithms by the names of templates.
NAMED = {
    "autosmoothquant": AutoSmoothQuantConfig,
    "awq": AWQConfig,
    "gptaq": GPTAQConfig,
    "gptq": GPTQConfig,
    "qronos": QronosConfig,
    "smooth": SmoothQuantConfig,
    "smoothquant": SmoothQuantConfig,
}


@dataclass(frozen=True)
class ModelAlgorithms:
    """The algorithms of a configuration, in Kvant's words.

    Attributes:
        transforms: The list of transforms.
        rounding: The rounding; empty for rounding to nearest.
        rounded: Patterns of the names in a block of the layers that it rounds; all layers if there are none.
        blocks: The name of the list of blocks.
        pairs: The smoothing pairs of each block: the names of layers by that of what they read; None to find them.
    """

    transforms: str = ""
    rounding: str = ""
    rounded: tuple[str, ...] = ()
    blocks: str = ""
    pairs: Mapping[str, tuple[str, ...]] | None = None

    def of_layer(self, name: str) -> str | None:
        """The algorithms of a layer."""
        is_rounded = not self.rounded or self.names(name)
        return ",".join(part for part in (self.transforms, self.rounding if is_rounded else "") if part) or None

    def names(self, name: str) -> bool:
        """Whether a layer is one of those in blocks that are rounded."""
        inside = name.removeprefix(f"{self.blocks}.").partition(".")[2]
        return name.startswith(f"{self.blocks}.") and any(fnmatchcase(inside, pattern) for pattern in self.rounded)

    def smoothing(self, blocks: int) -> dict[str, list[str]] | None:
        """The smoothing pairs of a model with so many blocks."""
        if self.pairs is None or not self.transforms:
            return None
        return {
            f"{self.blocks}.{block}.{source}": [f"{self.blocks}.{block}.{layer}" for layer in layers]
            for block in range(blocks)
            for source, layers in self.pairs.items()
        }


def algorithms_of(given: Any) -> ModelAlgorithms:
    """The algorithms of `algo_config`: transforms come before the rounding, wherever they stand.

    Raises:
        UnsupportedError: One of them does not run on models in place, or they have different blocks or pairs.
    """
    entries = given if isinstance(given, list) else [given] if given else []
    for entry in entries:
        if not isinstance(entry, (*_ROUNDINGS, *_TRANSFORMS)):
            raise unsupported(
                f"the algorithm {getattr(entry, 'name', entry)} does not run on models in place",
                f"use one of {', '.join(kind.__name__ for kind in dict.fromkeys(NAMED.values()))}",
            )
    transforms = [entry for entry in entries if isinstance(entry, _TRANSFORMS)]
    roundings = [entry for entry in entries if isinstance(entry, _ROUNDINGS)]
    if len(roundings) > 1:
        raise unsupported(f"{' and '.join(entry.name for entry in roundings)} at once", "use one of them")
    tables = [_pairs(entry) for entry in transforms if entry.scaling_layers]
    if any(table != tables[0] for table in tables):
        raise unsupported("different scaling_layers of several algorithms", "give all of them the same")
    rounded = tuple(name for entry in roundings for name in entry.inside_layer_modules)
    needs_blocks = [
        entry for entry in entries if getattr(entry, "scaling_layers", ()) or entry in roundings and rounded
    ]
    blocks = {entry.model_decoder_layers or "" for entry in needs_blocks}
    if len(blocks) > 1 or "" in blocks:
        raise unsupported(
            "layers of blocks that model_decoder_layers does not name alike in all algorithms",
            "give it the name of the list of blocks, or leave scaling_layers and inside_layer_modules out",
        )
    return ModelAlgorithms(
        ",".join(map(_transform, transforms)),
        "".join(map(_rounding, roundings)),
        rounded,
        next(iter(blocks), ""),
        tables[0] if tables else None,
    )


def _pairs(entry: Any) -> dict[str, tuple[str, ...]]:
    return {pair["prev_op"]: tuple(pair["layers"]) for pair in entry.scaling_layers}


def _transform(entry: Any) -> str:
    if isinstance(entry, SmoothQuantConfig):
        return f"smoothquant:alpha={entry.alpha}:clamp-min={entry.scale_clamp_min}"
    if isinstance(entry, AutoSmoothQuantConfig):
        return f"autosmoothquant:loss={(entry.compute_scale_loss or 'MSE').lower()}"
    return "awq"


def _rounding(entry: Any) -> str:
    order = "activation" if entry.desc_act else "stored"
    groups = "static" if entry.static_groups else "dynamic"
    shared = f"order={order}:groups={groups}:block={entry.block_size}"
    if isinstance(entry, QronosConfig):
        return f"qronos:damping={entry.alpha}:{shared}"
    alpha = f":alpha={entry.alpha}" if isinstance(entry, GPTAQConfig) else ""
    return f"{entry.name}:damping={entry.damp_percent}{alpha}:{shared}"
