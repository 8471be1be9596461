"""The schemes and algorithms that Quark's configurations mean, in Kvant's words.

What Kvant does not do is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from kvant._errors import usage_error
from kvant.compat._shared import unsupported
from kvant.compat.quark._configuration import (
    ALGORITHMS,
    AutoSmoothQuantConfig,
    AWQConfig,
    GPTAQConfig,
    GPTQConfig,
    QConfig,
    QLayerConfig,
    QronosConfig,
    QTensorConfig,
    SmoothQuantConfig,
    Tensors,
)
from kvant.compat.quark._types import (
    OBSERVERS,
    Dtype,
    ObserverBase,
    PerTensorMinMaxObserver,
    QSchemeType,
    ZeroPointType,
)

_INTEGERS: tuple[str, ...] = ("int2", "int3", "int4", "uint4", "int8", "uint8", "uint2", "int16")
_FLOATS = {"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp4": "e2m1", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2"}
_CASTS = {"float16": "f16", "bfloat16": "bf16"}
# Blocks with shared exponents, and the only size that Kvant has.
_BLOCKS = {"mx6": 16, "mx9": 16, "bfp16": 8, "mx": 32}
_SCALES = {None: "", "float": "", "float32": ":f32", "float16": ":f16", "bfloat16": ":bf16"}
_RULES = {None: ":e8m0", "even": ":e8m0", "floor": ":e8m0-floor", "ceil": ":e8m0-ceil"}


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


def layer_of(
    config: QConfig, name: str, is_kind: Callable[[Any], bool], is_lookup: bool = False
) -> QLayerConfig | None:
    """The configuration of a layer, in Quark's order: exclusion, name, pattern, type, then the global one.

    Embeddings do not take the global one.
    """
    if any(fnmatchcase(name, pattern) for pattern in config.exclude):
        return None
    if name in config.layer_quant_config:
        return config.layer_quant_config[name]
    for pattern, layer in config.layer_quant_config.items():
        if fnmatchcase(name, pattern):
            return layer
    for kind, layer in config.layer_type_quant_config.items():
        if is_kind(kind):
            return layer
    return None if is_lookup else config.global_quant_config


def bias_of(layer: QLayerConfig) -> str | None:
    """The scheme that a configuration means for biases; None if they stay as they are.

    Raises:
        UnsupportedError: Kvant does not do this.
    """
    if layer.bias is None:
        return None
    if isinstance(layer.bias, list) and len(layer.bias) > 1:
        raise unsupported("biases in two stages", "give `bias` one configuration")
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
    stages = given if isinstance(given, list) else [given]
    if stages[0].dtype.value in (*_BLOCKS, *_CASTS):
        return f"{text}!dynamic"
    if len(stages) == 2 and stages[0].is_dynamic and not stages[1].is_dynamic:
        return f"{text}!local"
    if not stages[0].is_dynamic and stages[0].observer_cls and stages[0].observer_cls.has_power_of_two_scales:
        raise unsupported(
            "static activations whose scale is the most frequent power of two of all batches",
            "use PerTensorMinMaxObserver, or is_dynamic=True",
        )
    return f"{text}!{'dynamic' if stages[0].is_dynamic else 'static'}"


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
            return _stages(given, what, channels, groups)
        given = given[0]
    if given.qat_spec is not None:
        raise unsupported(
            f"{what} with a qat_spec: quantization-aware training takes no separate configuration",
            "use kvant.torch.quantize_(model, scheme, data=batches, trainable=True)",
        )
    dtype = given.dtype.value
    if dtype in _CASTS:
        return _CASTS[dtype]
    if dtype in _BLOCKS:
        return _block(given, what)
    if dtype not in integers and dtype not in _FLOATS:
        raise unsupported(f"{what} in {dtype} is not supported", "`kvant list dtypes` shows the dtypes")
    observer = _observer(given)
    shared = _shared(given, what, channels, groups)
    if dtype in _FLOATS:
        return f"{_FLOATS[dtype]}:{shared}{_float_scale(given, what)}{observer.spelling}"
    scale = ":pow2" if observer.has_power_of_two_scales else _scale(given, what)
    zero = "" if given.symmetric is not False else ":fzp" if given.zero_point_type is ZeroPointType.float32 else ":zp"
    return f"{dtype}:{shared}{scale}{zero}{observer.spelling}"


def _stages(given: list[QTensorConfig], what: str, channels: Mapping[int, str], groups: tuple[int, ...]) -> str:
    """The spelling of fp8 that is quantized again, or of floats in groups whose scales are quantized."""
    first, last = given[0], given[-1]
    of_tensor = first.qscheme is QSchemeType.per_tensor, last.qscheme is QSchemeType.per_tensor
    scales = {Dtype.fp8_e4m3: ":e4m3:f32", Dtype.fp8_e5m3: ":e5m3:f32"}.get(last.dtype)
    if len(given) == 2 and not last.is_scale_quant and first.dtype is Dtype.fp8_e4m3 and of_tensor == (True, False):
        return f"{_tensor(last, what, channels, groups)}/{_tensor(first, what, channels, groups)}"
    if len(given) == 2 and last.is_scale_quant and scales and first.scale_format == "float32" and of_tensor[1]:
        return f"{_FLOATS[first.dtype.value]}:{_shared(first, what, channels, groups)}{scales}"
    raise unsupported(
        f"{what} in these stages", "use those of the schemes nvfp4 and int4_fp8, or one stage, or kvant.torch.quantize_"
    )


def _block(given: QTensorConfig, what: str) -> str:
    """The spelling of blocks with shared exponents."""
    dtype, size = given.dtype.value, given.group_size or _BLOCKS[given.dtype.value]
    # Quark gives BFP16 blocks of 8 whatever their size is said to be.
    if dtype != "bfp16" and size != _BLOCKS[dtype]:
        raise unsupported(f"{what} in {dtype} with blocks of {size}", f"use blocks of {_BLOCKS[dtype]}")
    if dtype != "mx":
        return dtype
    element = given.mx_element_dtype or Dtype.int8
    return "mxint8" if element is Dtype.int8 else f"{_FLOATS[element.value]}:g32:e8m0"


def _observer(given: QTensorConfig) -> type[ObserverBase]:
    """The observer, if Kvant has it."""
    found = given.observer_cls or PerTensorMinMaxObserver
    if OBSERVERS.get(found.__name__) is not found:
        raise unsupported(
            f"the observer {found.__name__}, a class of your own, in Quark's configurations",
            "use kvant.torch.quantize_ with kvant.torch.LayerRecipe(scheme, observer=...): classes with `update` and"
            " `parameters`",
        )
    if found.spelling is None:
        raise unsupported(
            f"the observer {found.__name__} is not supported",
            "use PerTensorMinMaxObserver, PerTensorMSEObserver or PerTensorPercentileObserver",
        )
    return found


def _shared(given: QTensorConfig, what: str, channels: Mapping[int, str], groups: tuple[int, ...]) -> str:
    if given.qscheme is None or given.qscheme is QSchemeType.per_tensor:
        return "tensor"
    if given.qscheme is QSchemeType.per_channel:
        axis = 0 if given.ch_axis is None else given.ch_axis
        if axis not in channels:
            raise unsupported(f"{what} with a scale for each entry of axis {axis}", f"use ch_axis {min(channels)}")
        return channels[axis]
    if given.qscheme is QSchemeType.per_block:
        raise unsupported(
            f"{what} in blocks of rows and columns, which Quark reads and does not compute",
            "use per_group, or kvant.torch.quantize_ with the scheme e4m3:b128x128",
        )
    if given.ch_axis not in groups:
        raise unsupported(f"{what} in groups along axis {given.ch_axis}", f"use ch_axis {groups[0]}")
    if not given.group_size:
        raise usage_error(f"{what}: group_size is missing", "give it, or -1 for the whole axis")
    return f"g{given.group_size}"


def _scale(given: QTensorConfig, what: str) -> str:
    kind = None if given.scale_type is None else given.scale_type.value
    if kind not in _SCALES:
        raise unsupported(
            f"{what} with scales of the type {kind}, which Quark computes as floats",
            "use ScaleType.float; PerTensorPowOf2MinMaxObserver gives powers of two",
        )
    return _SCALES[kind]


def _float_scale(given: QTensorConfig, what: str) -> str:
    if given.scale_format in (None, "float32"):
        return _scale(given, what)
    if given.scale_format == "e8m0":
        if given.scale_calculation_mode not in _RULES:
            raise unsupported(
                f"{what} with scales by the rule {given.scale_calculation_mode!r}",
                "use scale_calculation_mode 'even', 'floor' or 'ceil'",
            )
        return _RULES[given.scale_calculation_mode]
    if given.scale_format == "e5m3":
        return ":e5m3"
    raise unsupported(f"{what} with scales in {given.scale_format}", "use scale_format e8m0, e5m3 or float32")


_ROUNDINGS = (GPTQConfig, GPTAQConfig, QronosConfig)
_TRANSFORMS = (SmoothQuantConfig, AutoSmoothQuantConfig, AWQConfig)


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
        return name.startswith(f"{self.blocks}.") and any(
            fnmatchcase(inside, f"*{pattern}") for pattern in self.rounded
        )

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
                f"use one of {', '.join(kind.__name__ for kind in ALGORITHMS.values())}",
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
