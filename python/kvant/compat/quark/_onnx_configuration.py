"""The configurations of Quark's ONNX flow. Fields and values are those of amd-quark 0.13."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from kvant._errors import usage_error
from kvant.compat._shared import unsupported
from kvant.compat.onnxruntime._types import CalibrationMethod, QuantFormat, QuantType


class CalibMethod(Enum):
    """How ranges are found."""

    MinMax = 0
    MinMSE = 1
    Percentile = 2
    Entropy = 3
    LayerwisePercentile = 4
    Distribution = 5


class ScaleType(Enum):
    """The types of scales."""

    Float32 = 0
    PowerOf2 = 1
    Int16 = 2


class QuantGranularity(Enum):
    """Which values share a scale."""

    Tensor = 0
    Channel = 1
    Group = 2


class PowerOfTwoMethod(Enum):
    """How ranges are found for scales of powers of two."""

    NonOverflow = 0
    MinMSE = 1


class LayerWiseMethod(Enum):
    """How a percentile is chosen for each tensor."""

    LayerWisePercentile = 0


class ExtendedCalibrationMethod(Enum):
    """How ranges of weights are found."""

    MinMSE = 0


class Int16Method(Enum):
    """How ranges are found for scales of 16 bits."""

    MinMax = 0


class ExtendedQuantType(Enum):
    """The types of codes."""

    QInt8 = 1
    QUInt8 = 2
    QInt16 = 3
    QUInt16 = 4
    QInt32 = 5
    QUInt32 = 6
    QFloat16 = 7
    QBFloat16 = 8
    QBFP = 9
    QMX = 10


class ExtendedQuantFormat(Enum):
    """Integer operators, or Q/DQ pairs of any type."""

    QOperator = 0
    QDQ = 1


class DataType:
    """A type of codes. Its `element` is Kvant's name of it."""

    element: str


def _data_type(name: str, element: str) -> type[DataType]:
    return type(name, (DataType,), {"element": element, "__doc__": f"The type {element}.", "__module__": __name__})


Int8 = _data_type("Int8", "int8")
UInt8 = _data_type("UInt8", "uint8")
Int16 = _data_type("Int16", "int16")
UInt16 = _data_type("UInt16", "uint16")
Int32 = _data_type("Int32", "int32")
UInt32 = _data_type("UInt32", "uint32")
Float16 = _data_type("Float16", "float16")
BFloat16 = _data_type("BFloat16", "bfloat16")
BFP16 = _data_type("BFP16", "bfp16")
MX4 = _data_type("MX4", "mx4")
MX6 = _data_type("MX6", "mx6")
MX9 = _data_type("MX9", "mx9")
MXFP4E2M1 = _data_type("MXFP4E2M1", "mxfp4_e2m1")
MXFP6E2M3 = _data_type("MXFP6E2M3", "mxfp6_e2m3")
MXFP6E3M2 = _data_type("MXFP6E3M2", "mxfp6_e3m2")
MXFP8E4M3 = _data_type("MXFP8E4M3", "mxfp8_e4m3")
MXFP8E5M2 = _data_type("MXFP8E5M2", "mxfp8_e5m2")
MXInt8 = _data_type("MXInt8", "mxint8")
_DATA_TYPES = {kind.__name__: kind for kind in DataType.__subclasses__()}


class QTensorConfig:
    """How one tensor is quantized."""

    def __init__(
        self,
        symmetric: bool,
        scale_type: ScaleType,
        calibration_method: CalibMethod,
        quant_granularity: QuantGranularity,
        data_type: type[DataType],
    ) -> None:
        self.symmetric = symmetric
        self.scale_type = scale_type
        self.calibration_method = calibration_method
        self.quant_granularity = quant_granularity
        self.data_type = data_type

    def set_symmetric(self, symmetric: bool) -> None:
        """Changes whether the code of zero is 0."""
        self.symmetric = symmetric

    def set_scale_type(self, scale_type: ScaleType) -> None:
        """Changes the type of scales."""
        self.scale_type = scale_type

    def set_calibration_method(self, calibration_method: CalibMethod) -> None:
        """Changes how the range is found."""
        self.calibration_method = calibration_method

    def set_quant_granularity(self, quant_granularity: QuantGranularity) -> None:
        """Changes which values share a scale."""
        self.quant_granularity = quant_granularity

    def set_data_type(self, data_type: type[DataType]) -> None:
        """Changes the type of codes."""
        self.data_type = data_type

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON has it."""
        given = {name: str(value) if isinstance(value, Enum) else value for name, value in vars(self).items()}
        return {**given, "data_type": self.data_type.__name__}

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> QTensorConfig:
        """The configuration of such a dict.

        Raises:
            UsageError: An unknown type or method.
        """
        kinds = {"scale_type": ScaleType, "calibration_method": CalibMethod, "quant_granularity": QuantGranularity}
        given = {name: _known(d[name].rpartition(".")[2], kind.__members__) for name, kind in kinds.items()}
        return QTensorConfig(d["symmetric"], **given, data_type=_known(d["data_type"], _DATA_TYPES))


def _known(name: str, members: Mapping[str, Any]) -> Any:
    if name not in members:
        raise usage_error(f"{name!r} is unknown", f"use one of {', '.join(members)}")
    return members[name]


def _spec(
    name: str,
    kind: type[DataType],
    is_symmetric: bool = True,
    scales: ScaleType = ScaleType.Float32,
    method: CalibMethod = CalibMethod.Percentile,
) -> type[QTensorConfig]:
    """A class of specifications with defaults."""

    class Spec(QTensorConfig):
        def __init__(
            self,
            symmetric: bool = is_symmetric,
            scale_type: ScaleType = scales,
            calibration_method: CalibMethod = method,
            quant_granularity: QuantGranularity = QuantGranularity.Tensor,
            data_type: type[DataType] = kind,
        ) -> None:
            super().__init__(symmetric, scale_type, calibration_method, quant_granularity, data_type)

    Spec.__name__ = Spec.__qualname__ = name
    Spec.__doc__ = kind.__doc__
    return Spec


Int8Spec = _spec("Int8Spec", Int8)
XInt8Spec = _spec("XInt8Spec", Int8, scales=ScaleType.PowerOf2, method=CalibMethod.MinMSE)
UInt8Spec = _spec("UInt8Spec", UInt8, is_symmetric=False)
Int16Spec = _spec("Int16Spec", Int16)
UInt16Spec = _spec("UInt16Spec", UInt16, is_symmetric=False)
Int32Spec = _spec("Int32Spec", Int32)
UInt32Spec = _spec("UInt32Spec", UInt32, is_symmetric=False)
BFloat16Spec = _spec("BFloat16Spec", BFloat16, method=CalibMethod.MinMax)
Float16Spec = _spec("Float16Spec", Float16, method=CalibMethod.MinMax)
BFP16Spec = _spec("BFP16Spec", BFP16, method=CalibMethod.MinMax)
MX4Spec = _spec("MX4Spec", MX4, method=CalibMethod.MinMax)
MX6Spec = _spec("MX6Spec", MX6, method=CalibMethod.MinMax)
MX9Spec = _spec("MX9Spec", MX9, method=CalibMethod.MinMax)
MXFP4E2M1Spec = _spec("MXFP4E2M1Spec", MXFP4E2M1, method=CalibMethod.MinMax)
MXFP6E2M3Spec = _spec("MXFP6E2M3Spec", MXFP6E2M3, method=CalibMethod.MinMax)
MXFP6E3M2Spec = _spec("MXFP6E3M2Spec", MXFP6E3M2, method=CalibMethod.MinMax)
MXFP8E4M3Spec = _spec("MXFP8E4M3Spec", MXFP8E4M3, method=CalibMethod.MinMax)
MXFP8E5M2Spec = _spec("MXFP8E5M2Spec", MXFP8E5M2, method=CalibMethod.MinMax)
MXInt8Spec = _spec("MXInt8Spec", MXInt8, method=CalibMethod.MinMax)


@dataclass(eq=False)
class QLayerConfig:
    """How a layer is quantized; `activation` is the older name of `input_tensors`."""

    input_tensors: QTensorConfig | None = None
    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON has it: tensors that are configured."""
        return {name: spec.to_dict() for name, spec in vars(self).items() if spec is not None}

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> QLayerConfig:
        """The configuration of such a dict."""
        return QLayerConfig(**{name: QTensorConfig.from_dict(spec) for name, spec in d.items()})


class AlgoConfig:
    """An algorithm. Its `name` is that of files."""

    name: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Its name, and options with another value than the default."""
        plain = {entry.name: entry.default for entry in dataclasses.fields(self)}  # type: ignore[arg-type]
        plain.update(target_op_type=list(TUNED))
        return {"name": self.name, **{name: value for name, value in vars(self).items() if value != plain[name]}}

    def get_options(self) -> dict[str, Any]:
        """Not supported: the options of older configurations.

        Raises:
            UnsupportedError: Always.
        """
        raise unsupported(f"the options that {self.name} is in older configurations", "give it in QConfig.algo_config")

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> AlgoConfig:
        """The algorithm of a dict with its name and options.

        Raises:
            UsageError: An unknown algorithm or option.
        """
        return algorithm_of(d)


def algorithm_of(d: Mapping[str, Any]) -> AlgoConfig:
    """The algorithm of a dict with its name and options.

    Raises:
        UsageError: An unknown algorithm or option.
    """
    kinds = (SmoothQuantConfig, CLEConfig, BiasCorrectionConfig, GPTQConfig, AutoMixprecisionConfig)
    known: dict[str, Any] = {kind.name: kind for kind in (*kinds, AdaRoundConfig, AdaQuantConfig, QuarotConfig)}
    kind = _known(str(d.get("name", "")), known)
    options = {name: value for name, value in d.items() if name != "name"}
    for name in options:
        _known(name, kind.__dataclass_fields__)
    made: AlgoConfig = kind(**options)
    return made


@dataclass
class SmoothQuantConfig(AlgoConfig):
    """SmoothQuant."""

    name = "smooth_quant"

    alpha: float = 0.5


@dataclass
class CLEConfig(AlgoConfig):
    """Cross-layer equalization."""

    name = "cle"

    cle_balance_method: str = "max"
    cle_steps: int = 1
    cle_weight_threshold: float = 0.5
    cle_scale_append_bias: bool = True
    cle_scale_use_threshold: bool = True
    cle_total_layer_diff_threshold: float = 1.9e-07


@dataclass
class BiasCorrectionConfig(AlgoConfig):
    """Bias correction."""

    name = "bias_correction"


@dataclass
class GPTQConfig(AlgoConfig):
    """GPTQ."""

    name = "gptq"

    bits: int = 8
    block_size: int = 128
    group_size: int = -1
    perc_damp: float = 0.01
    act_order: bool = False
    per_channel: bool = False
    mse: bool = False
    weight_symmetric: bool = True


_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
TUNED = (*_PRODUCTS, "InstanceNormalization", "LayerNormalization")


@dataclass
class AutoMixprecisionConfig(AlgoConfig):
    """A search for layers that need other types. Not supported."""

    name = "auto_mixprecision"

    target_layer_config: Any
    target_op_type: tuple[str, ...] | list[str] = _PRODUCTS
    subgraph_json: str | Path | None = None
    include_layers: list[str] | None = None
    exclude_layers: list[str] | None = None
    data_size: int = 0
    metric_output_index: int = 0
    metric_distance_fn: Callable[..., float] | None = None
    metric_evaluate_fn: Callable[..., float] | None = None
    metric_default: str = "l2"
    metric_threshold: float | None = 0
    metric_optimize_object: str = "speed"
    sensitivity_cache_file: str | Path | None = None
    worker_num: int = 1
    dual_quant_nodes: bool = False
    no_input_qdq_shared: bool = False
    shared_param_mode: str = "propagate"


@dataclass
class AdaRoundConfig(AlgoConfig):
    """AdaRound."""

    name = "adaround"

    optim_device: str = "cpu"
    infer_device: str = "cpu"
    fixed_seed: int = 1705472343
    data_size: int = 1000000000
    batch_size: int = 1
    num_batches: int = 1
    num_iterations: int = 1000
    learning_rate: float = 0.1
    early_stop: bool = False
    output_index: int = 0
    lr_adjust: tuple[float, float] | None = None
    target_op_type: list[str] = field(default_factory=lambda: list(TUNED))
    selective_update: bool = False
    update_bias: bool = False
    output_qdq: bool = False
    drop_ratio: float = 1.0
    mem_opt_level: int = 1
    cache_dir: str | None = None
    log_period: int = 100
    ref_model_path: str | None = None
    dynamic_batch: bool = False
    parallel: bool = False
    reg_param: float = 0.01
    beta_range: tuple[float, float] = (20, 2)
    warm_start: float = 0.2
    select_max_mem_layer: bool = False
    num_workers: int = 1
    pin_memory: bool = False
    use_gds: bool = False


@dataclass
class AdaQuantConfig(AdaRoundConfig):
    """AdaQuant."""

    name = "adaquant"

    num_iterations: int = 3000
    learning_rate: float = 1e-05


@dataclass
class QuarotConfig(AlgoConfig):
    """QuaRot with pairs of layers from a file. Not supported."""

    name = "quarot"

    r_matrix_dim: int = 4096
    use_random_had: bool = False
    r_config_path: str | None = None


class QConfig:
    """How a model is quantized. Further keywords are options, as is `extra_options`."""

    def __init__(
        self,
        global_config: QLayerConfig,
        specific_layer_config: dict[QLayerConfig, list[str]] | None = None,
        layer_type_config: dict[QLayerConfig | None, list[str]] | None = None,
        exclude: list[Any] | None = None,
        algo_config: list[AlgoConfig] | None = None,
        use_external_data_format: bool = False,
        **kwargs: Any,
    ) -> None:
        self.global_config = global_config
        self.specific_layer_config = specific_layer_config or {}
        self.layer_type_config = layer_type_config or {}
        self.exclude = exclude or []
        self.algo_config = algo_config or []
        self.use_external_data_format = use_external_data_format
        self.extra_options = kwargs

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON has it."""

        def of(layers: Mapping[Any, list[str]]) -> list[list[Any]]:
            return [[None if layer is None else layer.to_dict(), names] for layer, names in layers.items()]

        others = {name: value for name, value in self.extra_options.items() if name != "extra_options"}
        return {
            "global_config": self.global_config.to_dict(),
            "specific_layer_config": of(self.specific_layer_config),
            "layer_type_config": of(self.layer_type_config),
            "exclude": self.exclude,
            "algo_config": [entry.to_dict() for entry in self.algo_config],
            "use_external_data_format": self.use_external_data_format,
            "extra_options": {**others, **self.extra_options.get("extra_options", {})},
        }

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> QConfig:
        """The configuration of such a dict.

        Raises:
            UsageError: An unknown name.
        """

        def of(layers: list[list[Any]]) -> dict[Any, list[str]]:
            return {None if layer is None else QLayerConfig.from_dict(layer): names for layer, names in layers}

        return QConfig(
            QLayerConfig.from_dict(d["global_config"]),
            of(d.get("specific_layer_config", [])),
            of(d.get("layer_type_config", [])),
            d.get("exclude", []),
            [algorithm_of(entry) for entry in d.get("algo_config", [])],
            d.get("use_external_data_format", False),
            **d.get("extra_options", {}),
        )

    @staticmethod
    def get_default_config(config_name: str) -> Config:
        """The older configuration of this name.

        Raises:
            UsageError: There is none.
        """
        return Config(get_default_config(config_name))


@dataclass
class QuantizationConfig:
    """How a model is quantized, in older versions."""

    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    input_nodes: list[str] = field(default_factory=list)
    output_nodes: list[str] = field(default_factory=list)
    op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_quantize: list[str] = field(default_factory=list)
    extra_op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_exclude: list[str] = field(default_factory=list)
    subgraphs_to_exclude: list[Any] = field(default_factory=list)
    specific_tensor_precision: bool = False
    execution_providers: list[str] = field(default_factory=lambda: ["CPUExecutionProvider"])
    per_channel: bool = False
    reduce_range: bool = False
    optimize_model: bool = True
    use_dynamic_quant: bool = False
    use_external_data_format: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_sq: bool = False
    include_rotation: bool = False
    include_cle: bool = True
    include_auto_mp: bool = False
    include_fast_ft: bool = False
    enable_npu_cnn: bool = False
    enable_npu_transformer: bool = False
    debug_mode: bool = False
    crypto_mode: bool = False
    print_summary: bool = True
    ignore_warnings: bool = True
    log_severity_level: Any = None
    extra_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Config:
    """The configuration of a whole model, in older versions."""

    global_quant_config: QuantizationConfig


_FORCED = {"ForceQuantizeNoInputCheck": True}
_SYMMETRIC = {"ActivationSymmetric": True, **_FORCED}
_ALIGNED = {"AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
_VINT8 = {
    "UseRandomData": True,
    "ConvertBNToConv": True,
    "ConvertSigmoidToHardSigmoid": False,
    "ConvertClipToRelu": True,
    "ConvertSplitToSlice": True,
    "SplitLargeKernelPool": False,
    "ReplaceClip6Relu": True,
    "ConvertReduceMeanToGlobalAvgPool": False,
    "RemoveQDQConvClip": False,
    "RemoveQDQConvPRelu": False,
    "RemoveQDQConvRelu": False,
    "RemoveQDQConvLeakyRelu": False,
    "Int32Bias": False,
    "DedicatedQDQPair": True,
    "QuantizeAllOpTypes": True,
}
BLOCKS: dict[str, dict[str, Any]] = {
    "bfp16": {"bfp_method": "to_bfp", "axis": 1, "bit_width": 16, "block_size": 8, "rounding_mode": 2},
    **{
        name: {
            "bfp_method": "to_bfp_prime",
            "axis": 1,
            "bit_width": bits,
            "block_size": 16,
            "sub_block_size": 2,
            "sub_block_shift_bits": 1,
            "rounding_mode": 2,
        }
        for name, bits in (("mx4", 11), ("mx6", 13), ("mx9", 16))
    },
    **{
        f"mx{name}": {"element_dtype": name, "axis": 1, "block_size": 32, "rounding_mode": 2}
        for name in ("fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "fp8_e5m2", "int8")
    },
}


def _tuning(algorithm: str) -> dict[str, Any]:
    return {
        "DataSize": 1000,
        "FixedSeed": 1705472343,
        "BatchSize": 2,
        "NumIterations": 1000,
        "LearningRate": 0.1 if algorithm == "adaround" else 1e-05,
        "OptimAlgorithm": algorithm,
        "OptimDevice": "cpu",
        "InferDevice": "cpu",
        "EarlyStop": True,
    }


def _extended(activation: str, weight: str, options: dict[str, Any], **more: Any) -> QuantizationConfig:
    """A configuration with pairs of any type."""
    types = {member.name: member for member in (*QuantType, *ExtendedQuantType)}
    return QuantizationConfig(
        quant_format=ExtendedQuantFormat.QDQ,
        activation_type=types[activation],
        weight_type=types[weight],
        extra_options=options,
        **more,
    )


def _block(name: str) -> tuple[str, dict[str, Any]]:
    attributes = BLOCKS[name]
    kind = "BFP" if "bfp_method" in attributes else "MX"
    return f"Q{kind}", {f"{kind}Attributes": attributes}


def _in_blocks(name: str) -> QuantizationConfig:
    kind, options = _block(name)
    return _extended(kind, kind, options)


def _presets() -> dict[str, QuantizationConfig]:
    """The older configurations by name."""
    percentile: dict[str, Any] = {"calibrate_method": CalibrationMethod.Percentile}
    made = {
        "UINT8_DYNAMIC_QUANT": QuantizationConfig(weight_type=QuantType.QUInt8, use_dynamic_quant=True),
        "XINT8": QuantizationConfig(
            PowerOfTwoMethod.MinMSE,
            activation_type=QuantType.QUInt8,
            enable_npu_cnn=True,
            extra_options=_SYMMETRIC,
        ),
        "VINT8": QuantizationConfig(
            PowerOfTwoMethod.MinMSE, optimize_model=False, extra_options={"ActivationSymmetric": True, **_VINT8}
        ),
        "S8S8_AAWS": QuantizationConfig(**percentile, extra_options={"Percentile": 99.9999, **_FORCED}),
        "U8S8_AAWS": QuantizationConfig(**percentile, activation_type=QuantType.QUInt8, extra_options=_FORCED),
        "U8U8_AAWA": QuantizationConfig(
            **percentile,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QUInt8,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": False, **_FORCED},
        ),
        "S16S8_ASWS": _extended("QInt16", "QInt8", _SYMMETRIC, **percentile),
        "U16S8_AAWS": _extended("QUInt16", "QInt8", _FORCED, **percentile),
        "A8W8": _extended("QInt8", "QInt8", {**_SYMMETRIC, **_ALIGNED}),
        "A16W8": _extended("QInt16", "QInt8", {**_SYMMETRIC, **_ALIGNED, "AlignEltwiseQuantType": True}),
        "FP16": _extended("QFloat16", "QFloat16", _FORCED),
        "BF16": _extended("QBFloat16", "QBFloat16", {"QuantizeAllOpTypes": True, **_FORCED}),
        "BFP16": _in_blocks("bfp16"),
        "MX4": _in_blocks("mx4"),
        "MX6": _in_blocks("mx6"),
        "MX9": _in_blocks("mx9"),
        "MXFP8E5M2": _in_blocks("mxfp8_e5m2"),
        "MXFP8E4M3": _in_blocks("mxfp8_e4m3"),
        "MXFP6E3M2": _in_blocks("mxfp6_e3m2"),
        "MXFP6E2M3": _in_blocks("mxfp6_e2m3"),
        "MXFP4E2M1": _in_blocks("mxfp4_e2m1"),
        "MXINT8": _in_blocks("mxint8"),
        "BF16_BFP16": _extended("QBFloat16", *_block("bfp16")),
        "BF16_MXINT8": _extended("QBFloat16", *_block("mxint8")),
        "MX9_INT8": _extended("QBFP", "QInt8", _block("mx9")[1]),
        "INT8_CNN_DEFAULT": QuantizationConfig(activation_type=QuantType.QUInt8, extra_options=_FORCED),
        "INT16_CNN_DEFAULT": _extended("QUInt16", "QInt16", _FORCED),
        "INT8_TRANSFORMER_DEFAULT": QuantizationConfig(
            activation_type=QuantType.QUInt8, enable_npu_transformer=True, extra_options={"CalibMovingAverage": True}
        ),
        "INT16_TRANSFORMER_DEFAULT": _extended(
            "QUInt16", "QInt16", {"CalibMovingAverage": True}, enable_npu_transformer=True
        ),
        "MATMUL_NBITS": QuantizationConfig(
            extra_options={
                "UseMatMulNBits": True,
                "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
            }
        ),
        "S16S16_MIXED_S8S8": _extended(
            "QInt16", "QInt16", {"Percentile": 99.9999, **_FORCED}, include_auto_mp=True, **percentile
        ),
        "BF16_MIXED_BFP16": _extended("QBFloat16", "QBFloat16", {}, include_auto_mp=True),
        "BF16_MIXED_MXINT8": _extended("QBFloat16", "QBFloat16", {}, include_auto_mp=True),
    }
    accurate = {"Percentile": 99.9999, "FastFinetune": _tuning("adaround")}
    for bits in (8, 16):
        for network in ("CNN", "TRANSFORMER"):
            base = made[f"INT{bits}_{network}_DEFAULT"]
            made[f"INT{bits}_{network}_ACCURATE"] = dataclasses.replace(
                base, **percentile, include_fast_ft=True, extra_options=accurate
            )
    return made


def get_default_config(config_name: str) -> QuantizationConfig:
    """The older configuration of this name.

    Raises:
        UsageError: There is none.
    """
    presets = _presets()
    name, _, algorithm = config_name.rpartition("_")
    if algorithm in ("ADAROUND", "ADAQUANT") and name in presets:
        config = presets[name]
        config.include_fast_ft = True
        config.extra_options = {**config.extra_options, "FastFinetune": _tuning(algorithm.lower())}
        return config
    if config_name not in presets:
        raise usage_error(f"there is no configuration {config_name!r}", f"known are {', '.join(sorted(presets))}")
    return copy.deepcopy(presets[config_name])


def get_default_config_mapping() -> dict[str, QuantizationConfig]:
    """All older configurations by name."""
    both = ("A16W8", "A8W8", "S16S8_ASWS", "S8S8_AAWS", "U16S8_AAWS", "U8S8_AAWS", "XINT8")
    quantized = ("BF16", "FP16", "BFP16", "BF16_MIXED_BFP16", "BF16_MIXED_MXINT8", "MX4", "MX6", "MX9", "MXINT8")
    blocks = ("MXFP4E2M1", "MXFP6E2M3", "MXFP6E3M2", "MXFP8E4M3", "MXFP8E5M2")
    tuned = [f"{name}_ADAROUND" for name in both] + [f"{name}_ADAQUANT" for name in (*both, *quantized, *blocks)]
    return {name: get_default_config(name) for name in (*_presets(), *tuned)}


DefaultConfigMapping = get_default_config_mapping()


def _preset(
    activation: type[QTensorConfig], weight: type[QTensorConfig], options: dict[str, Any], *algorithms: AlgoConfig
) -> QConfig:
    layer = QLayerConfig(activation=activation(), weight=weight())  # type: ignore[call-arg]
    return QConfig(layer, algo_config=list(algorithms), extra_options=options)


XINT8_QCONFIG = _preset(XInt8Spec, XInt8Spec, _FORCED)
XINT8_ADAROUND_QCONFIG = _preset(XInt8Spec, XInt8Spec, _FORCED, AdaRoundConfig())
XINT8_ADAQUANT_QCONFIG = _preset(XInt8Spec, XInt8Spec, _FORCED, AdaQuantConfig())
VINT8_QCONFIG = _preset(XInt8Spec, XInt8Spec, {"OptimizeModel": False, "EnableNPUCnn": False, **_VINT8})
A8W8_QCONFIG = _preset(Int8Spec, Int8Spec, {**_FORCED, **_ALIGNED})
A8W8_ADAROUND_QCONFIG = _preset(Int8Spec, Int8Spec, {**_FORCED, **_ALIGNED}, AdaRoundConfig())
A8W8_ADAQUANT_QCONFIG = _preset(Int8Spec, Int8Spec, {**_FORCED, **_ALIGNED}, AdaQuantConfig())
_A16W8 = {**_FORCED, **_ALIGNED, "AlignEltwiseQuantType": True}
A16W8_QCONFIG = _preset(Int16Spec, Int8Spec, _A16W8)
A16W8_ADAROUND_QCONFIG = _preset(Int16Spec, Int8Spec, _A16W8, AdaRoundConfig())
A16W8_ADAQUANT_QCONFIG = _preset(Int16Spec, Int8Spec, _A16W8, AdaQuantConfig())
BF16_QCONFIG = _preset(BFloat16Spec, BFloat16Spec, _FORCED)
BFP16_QCONFIG = _preset(BFP16Spec, BFP16Spec, {})
