"""Quark's configurations of PyTorch models.

Fields, their order and their defaults are those of amd-quark 0.13, and so are the dicts that configurations become.
What they mean is in `_schemes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvant._errors import usage_error
from kvant.compat._shared import unsupported
from kvant.compat.quark._absent import TORCH
from kvant.compat.quark._types import (
    OBSERVERS,
    DeviceType,
    Dtype,
    ObserverBase,
    QSchemeType,
    QuantFlow,
    QuantizationMode,
    RoundType,
    ScaleType,
    ZeroPointType,
)

if TYPE_CHECKING:
    from kvant.compat.quark._templates import LLMTemplate


@dataclass
class QTensorConfig:
    """How one tensor is quantized (QuantizationSpec in older versions).

    `round_method`, `enable_buffer_reuse` and `max_input_numel` make no difference.
    """

    dtype: Dtype
    observer_cls: type[ObserverBase] | None = None
    is_dynamic: bool | None = None
    qscheme: QSchemeType | None = None
    ch_axis: int | None = None
    group_size: int | None = None
    block_size: tuple[int, int] | None = None
    symmetric: bool | None = None
    round_method: RoundType | None = None
    scale_type: ScaleType | None = None
    scale_format: str | None = None
    scale_calculation_mode: str | None = None
    qat_spec: Any = None
    mx_element_dtype: Dtype | None = None
    zero_point_type: ZeroPointType | None = ZeroPointType.int32
    is_scale_quant: bool = False
    enable_buffer_reuse: bool = False
    max_input_numel: int = 4194304

    def set_group_size(self, group_size: int) -> None:
        """Changes the size of groups: above zero, or -1 for one group in each row.

        Raises:
            UsageError: Another size.
        """
        if group_size != -1 and group_size < 1:
            raise usage_error(f"group_size={group_size}", "give a size above zero, or -1 for the whole axis")
        self.group_size = group_size

    def is_ocp_mxfp4(self) -> bool:
        """Whether this is OCP MXFP4."""
        shared = (self.qscheme, self.scale_format, self.group_size)
        return self.dtype is Dtype.fp4 and shared == (QSchemeType.per_group, "e8m0", 32)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON has it: members of enumerations and observers by name."""
        made = {entry.name: _named(getattr(self, entry.name)) for entry in fields(self) if entry.name != "qat_spec"}
        made["block_size"] = None if self.block_size is None else list(self.block_size)
        return made

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> QTensorConfig:
        """The configuration of such a dict.

        Raises:
            UsageError: A name that Quark does not have.
        """
        given = {entry.name: config_dict[entry.name] for entry in fields(cls) if entry.name in config_dict}
        for name, members in _MEMBERS.items():
            if given.get(name) is not None:
                given[name] = _member(name, given[name], members)
        if given.get("block_size") is not None:
            given["block_size"] = tuple(given["block_size"])
        return cls(**given)


_MEMBERS: dict[str, Mapping[str, Any]] = {
    "dtype": Dtype.__members__,
    "mx_element_dtype": Dtype.__members__,
    "observer_cls": OBSERVERS,
    "qscheme": QSchemeType.__members__,
    "round_method": RoundType.__members__,
    "scale_type": ScaleType.__members__,
    "zero_point_type": ZeroPointType.__members__,
}


def _named(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value.__name__ if isinstance(value, type) else value


def _member(name: str, given: str, members: Mapping[str, Any]) -> Any:
    if given not in members:
        raise usage_error(f"{name} {given!r} is unknown", f"use one of {', '.join(members)}")
    return members[given]


QuantizationSpec = QTensorConfig

Tensors = QTensorConfig | list[QTensorConfig] | None


@dataclass
class QLayerConfig:
    """How a layer is quantized (QuantizationConfig in older versions). `target_device` makes no difference."""

    input_tensors: Tensors = None
    output_tensors: Tensors = None
    weight: Tensors = None
    bias: Tensors = None
    target_device: DeviceType | None = None

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON has it."""

        def of(given: Tensors) -> Any:
            return [entry.to_dict() for entry in given] if isinstance(given, list) else given and given.to_dict()

        tensors = {name: of(getattr(self, name)) for name in _TENSORS}
        return {**tensors, "target_device": self.target_device and self.target_device.value}

    @classmethod
    def from_dict(cls, quantization_config: Mapping[str, Any]) -> QLayerConfig:
        """The configuration of such a dict."""

        def of(given: Any) -> Tensors:
            if isinstance(given, list):
                return [QTensorConfig.from_dict(entry) for entry in given]
            return None if given is None else QTensorConfig.from_dict(given)

        device = quantization_config.get("target_device")
        tensors = {name: of(quantization_config.get(name)) for name in _TENSORS}
        return cls(**tensors, target_device=None if device is None else DeviceType(device))


_TENSORS = ("input_tensors", "output_tensors", "weight", "bias")
QuantizationConfig = QLayerConfig


class AlgoConfig:
    """An algorithm."""

    name: str

    def to_dict(self) -> dict[str, Any]:
        """Its name and options."""
        return dict(vars(self))


class PreQuantOptConfig(AlgoConfig):
    """A change of the float model before it is quantized."""


@dataclass
class GPTQConfig(AlgoConfig):
    """GPTQ."""

    name: str = "gptq"
    block_size: int = 128
    damp_percent: float = 0.01
    desc_act: bool = True
    static_groups: bool = True
    inside_layer_modules: list[str] = field(default_factory=list)
    model_decoder_layers: str = ""


@dataclass
class GPTAQConfig(AlgoConfig):
    """GPTAQ."""

    name: str = "gptaq"
    block_size: int = 128
    damp_percent: float = 0.01
    alpha: float = 0.25
    desc_act: bool = True
    static_groups: bool = True
    inside_layer_modules: list[str] = field(default_factory=list)
    model_decoder_layers: str = ""


@dataclass
class QronosConfig(AlgoConfig):
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
class SmoothQuantConfig(AlgoConfig):
    """SmoothQuant."""

    name: str = "smooth"
    alpha: float = 1
    scale_clamp_min: float = 1e-3
    scaling_layers: list[dict[str, Any]] = field(default_factory=list)
    model_decoder_layers: str = ""


@dataclass
class AutoSmoothQuantConfig(AlgoConfig):
    """AutoSmoothQuant."""

    name: str = "autosmoothquant"
    scaling_layers: list[dict[str, Any]] | None = None
    model_decoder_layers: str | None = None
    compute_scale_loss: str | None = "MSE"


@dataclass
class AWQConfig(AlgoConfig):
    """AWQ."""

    name: str = "awq"
    scaling_layers: list[dict[str, Any]] = field(default_factory=list)
    model_decoder_layers: str = ""


ALGORITHMS: dict[str, type[Any]] = {
    "autosmoothquant": AutoSmoothQuantConfig,
    "awq": AWQConfig,
    "gptaq": GPTAQConfig,
    "gptq": GPTQConfig,
    "qronos": QronosConfig,
    "smoothquant": SmoothQuantConfig,
}
"""Algorithms by the names of templates."""

# Algorithms that Kvant does not have on models in place, by the names of templates and files.
_ABSENT = {
    "autoround": "AutoRoundConfig",
    "quarot": "RotationConfig",
    "rotation": "RotationConfig",
    "svdquant": "SVDQuantConfig",
    "twobitscalar": "TwoBitScalarConfig",
}


def algorithm_named(name: str) -> type[Any]:
    """The class of an algorithm.

    Raises:
        UnsupportedError: It does not run on models in place.
        UsageError: There is none of this name.
    """
    if name in _ABSENT:
        reason, remedy = TORCH[_ABSENT[name]]
        raise unsupported(f"{name}: {reason}", remedy)
    if name not in ALGORITHMS:
        raise usage_error(f"the algorithm {name!r} is unknown", f"use one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def _algorithm(given: Mapping[str, Any]) -> AlgoConfig:
    """The algorithm of a dict with its name and options."""
    name = str(given.get("name", ""))
    kind = algorithm_named("smoothquant" if name == "smooth" else name)
    known = {entry.name for entry in fields(kind)}
    # Older files have the numbers of heads, which say nothing that the model does not.
    unknown = sorted(given.keys() - known - {"num_attention_heads", "num_key_value_heads"})
    if unknown:
        raise usage_error(f"{name} has no option {', '.join(unknown)}", f"its options are {', '.join(sorted(known))}")
    made: AlgoConfig = kind(**{key: value for key, value in given.items() if key in known})
    return made


def load_quant_algo_config_from_file(file_path: str) -> AlgoConfig:
    """The algorithm of a JSON file: its name and options.

    Raises:
        UsageError: An unknown algorithm or option.
        UnsupportedError: An algorithm that does not run on models in place.
    """
    return _algorithm(json.loads(Path(file_path).read_text()))


load_pre_optimization_config_from_file = load_quant_algo_config_from_file


@dataclass
class QConfig:
    """How a model is quantized (Config in older versions).

    `log_severity_level`, `version`, `gpu_resident_blocks` and `keep_prequantized_layers` make no difference.
    """

    global_quant_config: QLayerConfig
    exclude: list[str] = field(default_factory=list)
    algo_config: list[Any] | Any | None = None
    log_severity_level: int | None = 1
    version: str | None = "0.13"
    layer_type_quant_config: dict[Any, QLayerConfig] = field(default_factory=dict)
    layer_quant_config: dict[str, QLayerConfig] = field(default_factory=dict)
    kv_cache_quant_config: dict[str, QLayerConfig] = field(default_factory=dict)
    kv_cache_group: list[str] | None = field(default_factory=list)
    min_kv_scale: float = 0.0
    kv_cache_post_rope: bool = False
    shared_scale_groups: list[list[str]] = field(default_factory=list)
    softmax_quant_spec: QTensorConfig | None = None
    quant_mode: QuantizationMode = QuantizationMode.eager_mode
    quant_flow: QuantFlow = QuantFlow.standard
    gpu_resident_blocks: int = 0
    sync_moe_expert_input_amax: bool = False
    keep_prequantized_layers: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The configuration as config.json has it."""

        def of(layers: Mapping[Any, QLayerConfig]) -> dict[str, Any]:
            return {_named(name): layer.to_dict() for name, layer in layers.items()}

        algorithms = self.algo_config
        if algorithms is not None and not isinstance(algorithms, list):
            algorithms = [algorithms]
        return {
            "global_quant_config": self.global_quant_config.to_dict(),
            "exclude": self.exclude,
            "algo_config": None if algorithms is None else [entry.to_dict() for entry in algorithms],
            "softmax_quant_spec": self.softmax_quant_spec and self.softmax_quant_spec.to_dict(),
            "quant_method": "quark",
            "layer_type_quant_config": of(self.layer_type_quant_config),
            "layer_quant_config": of(self.layer_quant_config),
            "kv_cache_quant_config": of(self.kv_cache_quant_config),
            "kv_cache_post_rope": self.kv_cache_post_rope,
            "quant_mode": self.quant_mode.name,
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> QConfig:
        """The configuration of such a dict, with types of layers by name.

        Raises:
            UsageError: An unknown name.
            UnsupportedError: An algorithm that does not run on models in place.
        """

        def of(name: str) -> dict[str, QLayerConfig]:
            return {key: QLayerConfig.from_dict(layer) for key, layer in (config_dict.get(name) or {}).items()}

        algorithms, softmax = config_dict.get("algo_config"), config_dict.get("softmax_quant_spec")
        return cls(
            QLayerConfig.from_dict(config_dict["global_quant_config"]),
            exclude=list(config_dict.get("exclude") or []),
            algo_config=None if algorithms is None else [_algorithm(entry) for entry in algorithms],
            softmax_quant_spec=None if softmax is None else QTensorConfig.from_dict(softmax),
            layer_type_quant_config=of("layer_type_quant_config"),
            layer_quant_config=of("layer_quant_config"),
            kv_cache_quant_config=of("kv_cache_quant_config"),
            kv_cache_post_rope=bool(config_dict.get("kv_cache_post_rope", False)),
            quant_mode=QuantizationMode[config_dict.get("quant_mode", "eager_mode")],
            version=config_dict.get("version"),
        )

    @staticmethod
    def with_llm_template(
        template: LLMTemplate,
        scheme: str,
        algorithm: str | list[str] | None = None,
        kv_cache_scheme: str | None = None,
        min_kv_scale: float = 0.0,
        attention_scheme: str | None = None,
        layer_config: dict[str, str] | None = None,
        layer_type_config: dict[Any, str] | None = None,
        exclude_layers: list[str] | None = None,
    ) -> QConfig:
        """As `LLMTemplate.get_config`."""
        return template.get_config(
            scheme,
            algorithm,
            kv_cache_scheme,
            min_kv_scale,
            attention_scheme,
            layer_config,
            layer_type_config,
            exclude_layers,
        )

    def get_rotation_config(self) -> None:
        """None: no configuration has rotations."""


Config = QConfig
