"""Quark's quantizer of ONNX graphs over `kvant.quantize`."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

import kvant
from kvant._errors import KvantWarning, usage_error
from kvant.compat._onnx import PRODUCTS, Graph, batches, dynamic_overrides, model_file, samples
from kvant.compat._shared import escaped, unsupported
from kvant.compat.onnxruntime._quantize import PAIR_OPS
from kvant.compat.onnxruntime._types import CalibrationDataReader
from kvant.compat.quark._onnx_configuration import (
    BLOCKS,
    TUNED,
    AdaQuantConfig,
    AdaRoundConfig,
    BiasCorrectionConfig,
    CalibMethod,
    CLEConfig,
    Config,
    GPTQConfig,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    QuantGranularity,
    QuantizationConfig,
    ScaleType,
    SmoothQuantConfig,
)

if TYPE_CHECKING:
    import onnx

_INTEGERS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
# Presets of types that are not integers, by the types of activations and weights.
_PRESETS = {
    ("bfloat16", "bfloat16"): "BF16",
    ("float16", "float16"): "FP16",
    ("bfloat16", "bfp16_even"): "BF16_BFP16",
    ("bfloat16", "mxint8"): "BF16_MXINT8",
    ("mx9", "int8"): "MX9_INT8",
    **{(name, name): name.upper().replace("_", "") for name in BLOCKS},
}
# Operators that are quantized for NPUs and with types other than 8-bit integers.
_NPU_OPS = (
    *("DepthToSpace", "Div", "Erf", "HardSigmoid", "LpNormalization", "Max", "Min", "PRelu", "ReduceMean", "Slice"),
    *("SpaceToDepth", "Sub", "Tanh"),
)
_METHODS = {
    "MinMax": "minmax",
    "MinMSE": "mse",
    "Percentile": "percentile",
    "Entropy": "entropy",
    "LayerwisePercentile": "layerwise-percentile",
    "LayerWisePercentile": "layerwise-percentile",
    "NonOverflow": "nonoverflow",
}

# Options that change how results are computed, or what is printed, but no results.
_NO_EFFECT = {
    *("CalibMovingAverageConstant", "CalibOptimizeDisk", "CalibOptimizeMem", "CalibWorkerNum", "CopyBiasInit"),
    *("DebugMode", "EvalDataReader", "EvalMetrics", "FillAllValueInfo", "IgnoreWarnings", "LoggingLevel"),
    *("PrintSummary", "RemoveInputInit", "SaveTensorHistFig", "TmpDir"),
}
# Options that are read below.
_READ = {
    *("ActivationSymmetric", "BFPAttributes", "BiasCorrection", "CalibDataSize", "CalibMovingAverage"),
    *("CalibTensorRangeSymmetric", "CLEScaleAppendBias", "CLESteps", "ConvertFP16ToFP32", "ConvertNCHWToNHWC"),
    "EnableNPUCnn",
    *("ExecutionProviders", "ExtraOpTypesToQuantize", "FastFinetune", "Int16Bias"),
    *("Int32Bias", "MXAttributes", "MatMulConstBOnly", "NodesToQuantize", "OpTypesToQuantize", "OptimizeModel"),
    *("Percentile", "QuantizeAllOpTypes", "QuantizeBias", "RandomDataReaderInputDataRange"),
    *("RandomDataReaderInputShape", "SimplifyModel", "SkipPreprocess", "SmoothAlpha", "UseRandomData"),
    *("WeightCalibrateMethod", "WeightSymmetric", "WeightsOnly"),
}
# Options that name a pass of Kvant.
_PASSES = {
    "ConvertBNToConv": "batch-norm-to-conv",
    "ConvertReduceMeanToGlobalAvgPool": "reduce-mean-to-global-average-pool",
    "ConvertSplitToSlice": "split-to-slice",
    "FoldBatchNorm": "batch-norm-folding",
    "FuseGelu": "gelu-fusion",
    "FuseInstanceNorm": "instance-norm-fusion",
    "FuseL2Norm": "l2-norm-fusion",
    "FuseLayerNorm": "layer-norm-fusion",
    "SplitLargeKernelPool": "split-large-pool",
}
_OPTIMIZATIONS = (
    *("batch-norm-folding", "bias-fusion", "clip-to-relu", "constant-folding", "dead-nodes", "duplicate-nodes"),
    *("identity", "scale-folding"),
)
# Options with one value, which Quark has as the default or in its presets.
_FIXED: dict[str, tuple[Any, ...]] = {
    "AddQDQPairToWeight": (False,),
    "AdjustBiasScale": (True,),
    "AdjustWeightScaleForInt32Bias": (True, False),
    "AlignConcat": (True, False),
    "AlignEltwiseQuantType": (True, False),
    "AlignReshape": (False,),
    "AlignTranspose": (False,),
    "CalibPassthroughOpTypes": ([], None),
    "ConvertClipToDPUVersion": (False,),
    "ConvertClipToRelu": (False,),
    "ConvertInstanceNormToDPUVersion": (False,),
    "ConvertOpsetVersion": (None,),
    "ConvertSoftmaxToDPUVersion": (False,),
    "CopySharedInit": (None,),
    "CryptoMode": (False,),
    "DedicateDQNode": (False,),
    "DedicatedQDQPair": (False,),
    "EnableDualQuantNodePairs": (False,),
    "EnableSubgraph": (False,),
    "EncryptionAlgorithm": (None,),
    "FoldRelu": (True, False),
    "ForceQuantizeNoInputCheck": (True, False),
    "Int16Scale": (False,),
    "MinMSEModePof2Scale": ("All",),
    "QDQOpTypePerChannelSupportToAxis": ({},),
    "RemoveQDQBetweenOps": (None,),
    "RemoveQDQConvClip": (True,),
    "RemoveQDQConvGelu": (False,),
    "RemoveQDQConvLeakyRelu": (True,),
    "RemoveQDQConvPRelu": (True,),
    "RemoveQDQConvRelu": (True,),
    "RemoveQDQInstanceNorm": (False,),
    "RemoveQDQMulAdd": (False,),
    "SaveAndRestore": (None,),
    "UsePowerOf2Scale": (True,),
    "UseUnsignedReLU": (False,),
}
# Options of the preset for NPUs, and whether they are on there.
_NPU = {
    **dict.fromkeys(
        (
            *("AdjustHardSigmoid", "AdjustShiftBias", "AdjustShiftCut", "AdjustShiftRead", "AdjustShiftSwish"),
            *("AdjustShiftWrite", "AlignPad", "AlignPool", "AlignSlice", "ConvertAvgPoolToDPUVersion"),
            *("ConvertHardSigmoidToDPUVersion", "ConvertLeakyReluToDPUVersion", "ConvertReduceMeanToDPUVersion"),
            *("ConvertSigmoidToHardSigmoid", "NPULimitationCheck", "SimulateDPU"),
        ),
        True,
    ),
    "MaxLoopNum": 5,
    "ReplaceClip6Relu": False,
}
# Names of Quark's that are neither of these: what they ask for is not done.
_REFUSED = {
    *("ActivationScaled", "AutoMixprecision", "BF16QDQToCast", "BF16WithClip", "CLEBalanceMethod"),
    *("CLETotalLayerDiffThreshold", "CLEWeightThreshold", "EnableVaimlBF16", "FixShapes", "GPTQParams", "InputNodes"),
    *("LWPMetric", "LWPUseHistogram", "MatMulNBitsParams", "MinMSEModeFloatScale", "MixedPrecisionTensor"),
    *("NodesToExcludeOutputQuantization", "NumBins", "NumQuantizedBins", "OpTypesToExcludeOutputQuantization"),
    *("OutputNodes", "PercentileCandidates", "PreprocessYAML", "QuantizationPreference", "QuantizeFP16"),
    *("RConfigPath", "RMatrixDim", "RefineBlockAxis", "RemoveFusedQDQ", "Scenario", "ShapeShifterYaml"),
    *("SimplifyModelOptions", "TensorQuantOverrides", "TensorsRangeFile", "UseFP32Scale", "UseMatMulNBits"),
    *("UseRandomHad", "UserCustomOpLibPath", "WeightScaled"),
}
OPTIONS = frozenset((*_NO_EFFECT, *_READ, *_PASSES, *_FIXED, *_NPU, *_REFUSED))
"""The options of Quark: those that are read, that change nothing, and that are refused."""


@dataclass
class _Request:
    """What a configuration of either kind asks for."""

    activation: str
    weight: str
    method: str
    options: dict[str, Any]
    symmetric: bool
    weight_symmetric: bool
    power_of_two: bool = False
    weight_method: str | None = None
    extended: bool = False
    npu: bool = False
    transformer: bool = False
    dynamic: bool = False
    per_channel: bool = False
    reduce_range: bool = False
    external: bool = False
    optimize: bool = True
    algorithms: list[Any] = field(default_factory=list)
    exclude: list[Any] = field(default_factory=list)
    by_node: dict[QLayerConfig, list[str]] = field(default_factory=dict)
    by_type: dict[QLayerConfig | None, list[str]] = field(default_factory=dict)
    op_types: list[str] = field(default_factory=list)
    more_op_types: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)


class ModelQuantizer:
    """Quantizes ONNX graphs."""

    def __init__(self, config: QConfig | Config) -> None:
        self.config = config

    def quantize_model(
        self,
        model_input: str | os.PathLike[str] | onnx.ModelProto,
        model_output: str | os.PathLike[str] | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | os.PathLike[str] | None = None,
        algorithms: list[Any] | None = None,
    ) -> onnx.ModelProto | None:
        """Quantizes a graph, and returns it if no file is named.

        Scales, zero points and codes are those of amd-quark 0.13, except for what the documentation of graphs lists as
        intentional differences. Where a method of calibration differs, a KvantWarning says so. CLE repeats until
        nothing changes, whatever `cle_steps`. Algorithms that round (GPTQ, AdaRound, AdaQuant), SmoothQuant and bias
        correction are Kvant's: their options count, their codes are not Quark's.

        Args:
            model_input: The model or its file.
            model_output: The file to write.
            calibration_data_reader: An object whose `get_next` gives batches by inputs, and None at the end.
            calibration_data_path: A directory of .npy files, or of one directory of them for each input.
            algorithms: Further algorithms.

        Raises:
            UnsupportedError: Kvant does not do what the configuration asks for.
            UsageError: An unknown option, a missing file, no data.
        """
        with model_file(model_input) as path:
            graph = Graph(path)
            request = _request(self.config)
            request.algorithms += algorithms or []
            keywords = _keywords(request, graph)
            if calibration_data_reader is not None or _reads_data(keywords):
                reader = calibration_data_reader
                if reader is None:
                    reader = _default_reader(path, calibration_data_path, request.options)
                found = batches(reader, graph)[: request.options.get("CalibDataSize") or None]
                _check_tuning(request.algorithms, len(found))
                if "nhwc-inputs" in keywords["enable_pass"]:
                    found = [{name: _channels_last(array) for name, array in batch.items()} for batch in found]
                keywords.update(data=samples(found), num_samples=len(found))
            if model_output is not None:
                kvant.quantize(path, output=model_output, overwrite=True, **keywords)
                return None
            return _in_memory(path, keywords)


class CachedDataReader(CalibrationDataReader):
    """A reader that can be read again."""

    def __init__(
        self, dr: Any, data_size: int | None = None, convert_nchw_to_nhwc: bool = False, quantize_fp16: bool = False
    ) -> None:
        if convert_nchw_to_nhwc or quantize_fp16:
            raise unsupported(
                "data that a reader converts (convert_nchw_to_nhwc, quantize_fp16)",
                "leave these out, and give ModelQuantizer the option ConvertNCHWToNHWC or ConvertFP16ToFP32",
            )
        self._batches = batches(dr)[:data_size]
        self.reset_iter()

    def __len__(self) -> int:
        return len(self._batches)

    def reset_iter(self) -> None:
        """Starts again."""
        self._remaining: Iterator[dict[str, Any]] = iter(self._batches)

    def get_next(self) -> dict[str, Any] | None:
        """The next batch."""
        return next(self._remaining, None)


class _MadeReader(CalibrationDataReader):
    """A reader whose batches are made when the first is asked for."""

    _made: Iterator[dict[str, Any]] | None = None

    def _make(self) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def get_next(self) -> dict[str, Any] | None:
        """The next batch."""
        if self._made is None:
            self._made = self._make()
        return next(self._made, None)


class RandomDataReader(_MadeReader):
    """One batch of random values, those of Quark."""

    def __init__(
        self,
        model_input: str | os.PathLike[str] | onnx.ModelProto,
        input_shape: Mapping[str, Sequence[int]] | None = None,
        input_data_range: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._model = model_input
        self._shapes = input_shape or {}
        self._ranges = input_data_range

    def _make(self) -> Iterator[dict[str, Any]]:
        batch = {}
        for entry in _inputs(self._model):
            random = numpy.random.RandomState(42)
            if self._shapes and entry.name not in self._shapes:
                raise usage_error(f"the shape of {entry.name!r} is missing", "give the shapes of all inputs")
            shape = list(self._shapes.get(entry.name, _usual_shape(entry.shape)))
            if self._ranges is None:
                values = random.random_sample(shape)
            elif entry.name not in self._ranges:
                raise usage_error(f"the range of {entry.name!r} is missing", "give the ranges of all inputs")
            else:
                low, high = self._ranges[entry.name]
                draw: Any = random.uniform if entry.dtype.kind == "f" else random.randint
                values = draw(low, high if entry.dtype.kind == "f" else high + 1, shape)
            batch[entry.name] = values.astype(entry.dtype)
        yield batch


class PathDataReader(_MadeReader):
    """Batches from .npy files, in the order of their names."""

    def __init__(
        self,
        model_input: str | os.PathLike[str] | onnx.ModelProto,
        data_path: str | os.PathLike[str],
        input_shape: Sequence[int] = (),
    ) -> None:
        if input_shape:
            raise unsupported("input_shape of a PathDataReader", "store arrays in the shape of the input")
        self._model = model_input
        self._path = Path(data_path)

    def _make(self) -> Iterator[dict[str, Any]]:
        columns: dict[str, list[Any]] = {}
        for entry in _inputs(self._model):
            files = sorted(self._path.glob("*.npy")) or sorted((self._path / entry.name).glob("*.npy"))
            if not files:
                raise usage_error(
                    f"{self._path} has no .npy files for {entry.name!r}", "give a directory that has some"
                )
            columns[entry.name] = [_batch_of_file(file, entry) for file in files]
        return iter([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


@dataclass
class _Input:
    name: str
    shape: list[int | None]
    dtype: numpy.dtype[Any]


def _inputs(model: str | os.PathLike[str] | onnx.ModelProto) -> list[_Input]:
    """The inputs that a model needs."""
    import onnx

    with model_file(model) as path:
        graph = Graph(path)
    return [
        _Input(
            entry.name,
            [axis.dim_value or None for axis in entry.type.tensor_type.shape.dim],
            numpy.dtype(onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)),
        )
        for entry in graph.inputs
        if entry.name not in graph.constants
    ]


def _usual_shape(shape: list[int | None]) -> list[int]:
    """A shape with Quark's sizes for axes that are open."""
    usual = {2: [1, 16], 4: [1, 3, 32, 32]}.get(len(shape), [1] * max(len(shape), 1))
    return [size or other for size, other in zip(shape, usual, strict=True)] if shape else usual


def _batch_of_file(file: Path, entry: _Input) -> Any:
    array = numpy.load(file, allow_pickle=False)
    if array.ndim + 1 == len(entry.shape):
        array = array[numpy.newaxis]
    fits = array.ndim == len(entry.shape) and all(
        size in (None, n) for size, n in zip(entry.shape, array.shape, strict=True)
    )
    if not fits:
        raise usage_error(f"{file} has the shape {array.shape}, {entry.name!r} has {entry.shape}", "give such arrays")
    return array.astype(entry.dtype)


def _default_reader(path: Path, directory: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> Any:
    if directory is not None:
        return PathDataReader(path, directory)
    if options.get("UseRandomData"):
        shapes = options.get("RandomDataReaderInputShape")
        return RandomDataReader(path, shapes, options.get("RandomDataReaderInputDataRange"))
    raise usage_error(
        "this configuration needs calibration data",
        "give a calibration_data_reader or a calibration_data_path, or the option UseRandomData",
    )


def _in_memory(path: Path, keywords: Mapping[str, Any]) -> onnx.ModelProto:
    import onnx

    with tempfile.TemporaryDirectory(prefix="kvant-") as directory:
        output = Path(directory) / "quantized.onnx"
        kvant.quantize(path, output=output, **keywords)
        return onnx.load(str(output))


def _channels_last(array: numpy.ndarray) -> numpy.ndarray:
    return numpy.moveaxis(array, 1, -1) if array.ndim == 4 else array


def _reads_data(keywords: Mapping[str, Any]) -> bool:
    uncalibrated = ("UINT8_DYNAMIC_QUANT", *_PRESETS.values())
    return keywords["scheme"] not in uncalibrated or bool(keywords["algorithm"])


def _request(config: QConfig | Config) -> _Request:
    return _new_request(config) if isinstance(config, QConfig) else _old_request(config.global_quant_config)


def _new_request(config: QConfig) -> _Request:
    """What a QConfig asks for."""
    layer = config.global_config
    if layer.input_tensors is not None and layer.activation is not None:
        raise usage_error("global_config has input_tensors and activation", "give one: they have the same meaning")
    activation, weight = layer.input_tensors or layer.activation, layer.weight
    if activation is None or weight is None:
        raise usage_error("global_config needs input_tensors and weight", "give a specification for each")
    if layer.bias is not None or layer.output_tensors is not None:
        raise unsupported(
            "bias and output_tensors of global_config: biases follow from weights, outputs are activations",
            "leave them out, or give them in specific_layer_config",
        )
    options = dict(config.extra_options)
    options.update(options.pop("extra_options", None) or {})
    scales = {activation.scale_type, weight.scale_type}
    if len(scales) > 1 or ScaleType.Int16 in scales:
        raise unsupported("scales of 16 bits, or of two types", "use ScaleType.Float32 or PowerOf2 for both")
    if activation.quant_granularity is not QuantGranularity.Tensor:
        raise unsupported("activations with several scales", "use kvant.quantize with per_channel_activations=True")
    if weight.quant_granularity is QuantGranularity.Group:
        raise unsupported("weights in groups", "use kvant.quantize(model, 'MATMUL_NBITS')")
    power_of_two = scales == {ScaleType.PowerOf2}
    method = _METHODS.get(activation.calibration_method.name, "")
    if power_of_two:
        method = {"minmax": "nonoverflow", "mse": "mse"}.get(method, "")
    if not method:
        name = activation.calibration_method.name
        raise unsupported(f"the method {name} with these types", "use MinMax, MinMSE or Percentile")
    kinds = {activation.data_type.element, weight.data_type.element}
    if len(kinds) > 1 and kinds.intersection(BLOCKS):
        raise unsupported(
            f"activations in {activation.data_type.element} with weights in {weight.data_type.element}: Quark falls "
            "back to the default attributes of its operators",
            "use the older configurations BF16_BFP16, BF16_MXINT8 or MX9_INT8",
        )
    return _Request(
        activation.data_type.element,
        weight.data_type.element,
        method,
        options,
        symmetric=activation.symmetric,
        weight_symmetric=weight.symmetric,
        power_of_two=power_of_two,
        # As in Quark, which finds the least and the greatest value for every other method.
        weight_method="mse" if weight.calibration_method is CalibMethod.MinMSE and not power_of_two else None,
        extended=not kinds <= {"int8", "uint8"} or bool(config.specific_layer_config or config.layer_type_config),
        npu=bool(options.get("EnableNPUCnn", power_of_two)),
        per_channel=weight.quant_granularity is QuantGranularity.Channel,
        external=config.use_external_data_format,
        optimize=bool(options.get("OptimizeModel", True)),
        algorithms=list(config.algo_config),
        exclude=list(config.exclude),
        by_node=dict(config.specific_layer_config),
        by_type=dict(config.layer_type_config),
        op_types=list(options.get("OpTypesToQuantize") or []),
        more_op_types=list(options.get("ExtraOpTypesToQuantize") or []),
        nodes=list(options.get("NodesToQuantize") or []),
    )


def _old_request(config: QuantizationConfig) -> _Request:
    """What a QuantizationConfig asks for."""
    options = dict(config.extra_options)
    refused = {
        "input_nodes": config.input_nodes,
        "output_nodes": config.output_nodes,
        "specific_tensor_precision": config.specific_tensor_precision,
        "crypto_mode": config.crypto_mode,
        "include_rotation": config.include_rotation,
        "include_auto_mp": config.include_auto_mp,
    }
    remedies = {
        "include_auto_mp": "use kvant.sensitivity, or kvant.quantize with a preset such as S16S16_MIXED_S8S8",
        "include_rotation": "use kvant.quantize with algorithm='rotate', which finds the layers by itself",
    }
    for name, value in refused.items():
        if value:
            raise unsupported(name, remedies.get(name, "leave it out"))
    if getattr(config.quant_format, "name", None) != "QDQ":
        raise unsupported(f"quant_format {config.quant_format}", "use kvant.quantize with graph_format='qoperator'")
    if options.get("UseMatMulNBits"):
        raise unsupported("UseMatMulNBits", "use kvant.quantize(model, 'MATMUL_NBITS'), whose codes are its own")
    options.setdefault("ExecutionProviders", config.execution_providers)
    options.setdefault("ConvertFP16ToFP32", config.convert_fp16_to_fp32)
    options.setdefault("ConvertNCHWToNHWC", config.convert_nchw_to_nhwc)
    activation, weight = (_old_type(kind, options) for kind in (config.activation_type, config.weight_type))
    method = _METHODS.get(getattr(config.calibrate_method, "name", ""), "")
    power_of_two = type(config.calibrate_method).__name__ == "PowerOfTwoMethod"
    if not method:
        raise unsupported(f"calibrate_method {config.calibrate_method}", "use MinMax, Percentile or MinMSE")
    algorithms: list[Any] = []
    if config.include_cle and not config.use_dynamic_quant:
        algorithms.append(CLEConfig(cle_scale_append_bias=options.get("CLEScaleAppendBias", True)))
    if config.include_sq:
        algorithms.append(SmoothQuantConfig(options.get("SmoothAlpha", 0.5)))
    if options.get("BiasCorrection"):
        algorithms.append(BiasCorrectionConfig())
    if config.include_fast_ft:
        algorithms.append(_old_tuning(options.get("FastFinetune") or {}))
    return _Request(
        activation,
        weight,
        method,
        options,
        symmetric=bool(options.get("ActivationSymmetric", False)),
        weight_symmetric=bool(options.get("WeightSymmetric", not weight.startswith("u"))),
        power_of_two=power_of_two,
        extended=type(config.quant_format).__name__ == "ExtendedQuantFormat",
        npu=config.enable_npu_cnn,
        transformer=config.enable_npu_transformer,
        dynamic=config.use_dynamic_quant,
        per_channel=config.per_channel,
        reduce_range=config.reduce_range,
        external=config.use_external_data_format,
        optimize=config.optimize_model,
        algorithms=algorithms,
        exclude=[*config.nodes_to_exclude, *config.subgraphs_to_exclude],
        op_types=list(config.op_types_to_quantize),
        more_op_types=list(config.extra_op_types_to_quantize),
        nodes=list(config.nodes_to_quantize),
    )


def _old_type(kind: Any, options: Mapping[str, Any]) -> str:
    """Kvant's name of a type of older configurations."""
    name = str(getattr(kind, "name", kind))
    if name in ("QBFP", "QMX"):
        given = options.get(f"{name[1:]}Attributes") or {}
        for element, attributes in BLOCKS.items():
            if given == attributes:
                # The preset of BFP16 rounds halves to even, the operator by itself away from zero.
                return "bfp16_even" if element == "bfp16" else element
        if name == "QBFP" and given in ({}, {**BLOCKS["bfp16"], "rounding_mode": 0}):
            return "bfp16"
        raise unsupported(f"{name[1:]}Attributes {given}", "use those of a preset such as MX9")
    made = name[1:].lower()
    if made not in (*_INTEGERS, "float16", "bfloat16"):
        raise unsupported(f"the type {name}", "use 8 or 16 bits")
    return made


def _old_tuning(given: Mapping[str, Any]) -> AdaRoundConfig:
    """The configuration that a dictionary FastFinetune means."""
    kind = AdaQuantConfig if given.get("OptimAlgorithm") == "adaquant" else AdaRoundConfig
    names = {"".join(part.title() for part in name.split("_")): name for name in kind.__dataclass_fields__}
    names["LRAdjust"] = "lr_adjust"
    unknown = sorted(set(given) - set(names) - {"OptimAlgorithm"})
    if unknown:
        raise usage_error(f"FastFinetune has the unknown key {unknown[0]!r}", f"known are {', '.join(sorted(names))}")
    return kind(**{names[name]: value for name, value in given.items() if name in names})


def _keywords(request: _Request, graph: Graph) -> dict[str, Any]:
    """The arguments of `kvant.quantize`."""
    options = request.options
    is_vint8 = request.power_of_two and not request.npu and bool(options.get("QuantizeAllOpTypes"))
    _check_options(request, is_vint8)
    scheme, more = _scheme(request, is_vint8)
    if more.get("weights_only"):
        # What is said of activations is of no effect then, which Kvant refuses.
        more = {key: value for key, value in more.items() if key not in _OF_ACTIVATIONS}
    keywords: dict[str, Any] = {
        "scheme": scheme,
        "algorithm": [_algorithm(entry) for entry in request.algorithms],
        "enable_pass": [],
        "disable_pass": [],
        "external_data": "always" if request.external else None,
        **more,
        **_nodes(request, graph, is_vint8),
    }
    if request.dynamic:
        keywords["overrides"] = dynamic_overrides(
            graph, graph.nodes, request.weight, request.weight_symmetric, request.per_channel
        )
        return keywords
    keywords["overrides"] = _overrides(request, graph)
    _passes(request, keywords)
    if any(isinstance(entry, GPTQConfig) and entry.per_channel for entry in request.algorithms):
        keywords["per_channel"] = True
    return keywords


_OF_ACTIVATIONS = ("activation", "symmetric", "calibration_method")


def _scheme(request: _Request, is_vint8: bool) -> tuple[str, dict[str, Any]]:
    """The preset, and what differs from it."""
    options, activation, weight = request.options, request.activation, request.weight
    if request.dynamic:
        return "UINT8_DYNAMIC_QUANT", {"reduce_range": request.reduce_range}
    if activation not in _INTEGERS or weight not in _INTEGERS:
        name = _PRESETS.get((activation, weight))
        if activation == "bfp16_even":
            raise unsupported(
                "BFP16 activations with halves rounded to even (rounding_mode 2)",
                "use BFP16_QCONFIG, which rounds them away from zero (rounding_mode 0)",
            )
        if name is None:
            raise unsupported(f"activations in {activation} with weights in {weight}", "use one type for both")
        # Where standard operators express the types, Quark's are asked for.
        is_cast = activation in ("bfloat16", "float16")
        return name, {"op_domain": "quark"} if is_cast else {}
    bits = {_INTEGERS[activation], _INTEGERS[weight]}
    if request.power_of_two and (bits != {8} or not (request.npu or is_vint8)):
        raise unsupported("scales of powers of two with 16 bits, or without NPU", "use XInt8Spec, or ScaleType.Float32")
    if request.weight_symmetric is weight.startswith("u"):
        raise unsupported(
            f"{'symmetric' if request.weight_symmetric else 'asymmetric'} weights in {weight}",
            "use a signed type for symmetric weights and an unsigned one for others",
        )
    common = {
        "activation": activation,
        "weight": weight,
        "symmetric": request.symmetric,
        "per_channel": request.per_channel,
        "reduce_range": request.reduce_range,
        "weights_only": bool(options.get("WeightsOnly", False)),
    }
    if not options.get("QuantizeBias", True):
        common["bias"] = "float"
    elif options.get("Int16Bias"):
        common["bias"] = "int16"
    elif options.get("Int32Bias") is False and not request.power_of_two:
        common["bias"] = "weight"
    elif options.get("Int32Bias") and request.power_of_two:
        common["bias"] = "int32"
    if request.power_of_two:
        name = "VINT8" if is_vint8 else "XINT8"
        if request.method == "nonoverflow":
            common.update(calibration_method="nonoverflow", weight_method="nonoverflow")
        return name, common
    common["calibration_method"] = _method(request)
    if (request.weight_method or _weight_method(options)) == "mse":
        warnings.warn("MinMSE of weights: Kvant compares a hundred ranges", KvantWarning, stacklevel=5)
        common["weight_method"] = "mse"
    if request.transformer:
        return "INT8_TRANSFORMER_DEFAULT", common
    if options.get("AlignEltwiseQuantType") and request.extended:
        if not request.symmetric:
            raise unsupported("AlignEltwiseQuantType with asymmetric activations", "leave it out")
        return "A16W8", common
    if request.extended or bits != {8}:
        return "S16S8_ASWS", common
    return "A8W8" if request.symmetric else "INT8_CNN_DEFAULT", common


def _weight_method(options: Mapping[str, Any]) -> str:
    given = options.get("WeightCalibrateMethod")
    name = str(getattr(given, "name", given or "MinMax"))
    if name not in ("MinMax", "MinMSE"):
        raise unsupported(f"WeightCalibrateMethod {name}", "use MinMax or MinMSE")
    return _METHODS[name]


def _method(request: _Request) -> str:
    """The method that finds ranges of activations; a warning where it differs from Quark's."""
    range_symmetric = request.options.get("CalibTensorRangeSymmetric")
    if request.method == "percentile":
        if request.symmetric and range_symmetric is False:
            raise unsupported("CalibTensorRangeSymmetric=False with symmetric activations", "leave it out")
        name = "percentile" if request.symmetric or range_symmetric is False else "magnitude-percentile"
        return f"{name}{float(request.options.get('Percentile', 99.999))}"
    if range_symmetric and not request.symmetric:
        raise unsupported("CalibTensorRangeSymmetric with asymmetric activations", "use ActivationSymmetric")
    if request.method == "minmax" and request.options.get("CalibMovingAverage"):
        return "mean"
    if request.method == "entropy":
        _warn("Entropy: Quark's 128 bins leave one candidate, Kvant searches 2048")
    if request.method == "mse":
        _warn("MinMSE with scales that are floats: Quark uses powers of two, Kvant does not")
    return request.method


def _warn(message: str) -> None:
    warnings.warn(message, KvantWarning, stacklevel=7)


def _check_options(request: _Request, is_vint8: bool) -> None:
    """Refuses options that Kvant does not have."""
    for name, value in request.options.items():
        if name not in OPTIONS:
            raise usage_error(f"the option {name!r} is unknown", f"known are {', '.join(sorted(OPTIONS))}")
        if is_vint8 and name in _OF_VINT8 and value == _OF_VINT8[name]:
            continue
        if name in _NPU:
            default = _NPU[name] if request.npu else (_NPU[name] if name == "MaxLoopNum" else False)
            allowed: tuple[Any, ...] = (default,)
        elif name in _REFUSED:
            allowed = (None, False, [], {})
        else:
            allowed = _FIXED.get(name, (value,))
        if not any(value == entry and type(value) is type(entry) for entry in allowed):
            raise unsupported(f"the option {name}={value!r}", f"leave it out; Kvant does what {allowed[0]!r} means")
    providers = request.options.get("ExecutionProviders") or []
    if any(provider != "CPUExecutionProvider" for provider in providers):
        raise unsupported("execution providers other than the CPU's", "leave them out")


# Options of VINT8 that only this preset has.
_OF_VINT8 = {
    "ConvertClipToRelu": True,
    "DedicatedQDQPair": True,
    "RemoveQDQConvClip": False,
    "RemoveQDQConvLeakyRelu": False,
    "RemoveQDQConvPRelu": False,
    "RemoveQDQConvRelu": False,
    "ReplaceClip6Relu": True,
}


def _passes(request: _Request, keywords: dict[str, Any]) -> None:
    """Which graph passes run."""
    options = request.options
    skips = bool(options.get("SkipPreprocess"))
    if skips or not (request.optimize or options.get("SimplifyModel", True)):
        keywords["disable_pass"] += _OPTIMIZATIONS
    for name, graph_pass in _PASSES.items():
        if name in options or (skips and name.startswith("F")):
            wanted = bool(options.get(name, False)) and not skips
            if graph_pass not in keywords["disable_pass"]:
                keywords["enable_pass" if wanted else "disable_pass"].append(graph_pass)
    if options.get("ConvertFP16ToFP32"):
        keywords["enable_pass"].append("float-sources")
    if options.get("ConvertNCHWToNHWC"):
        keywords["enable_pass"].append("nhwc-inputs")


def _nodes(request: _Request, graph: Graph, is_vint8: bool) -> dict[str, Any]:
    """Which nodes are quantized."""
    exclude: set[str] = set()
    for entry in request.exclude:
        for part in entry if isinstance(entry, list) else [entry]:
            if isinstance(part, tuple):
                names = graph.between(*part)
            elif part.startswith("^") and ".*" in part:
                names = {name for name in graph.names if re.match(part, name)}
            else:
                names = graph.names.intersection([part])
            if not names:
                _warn(f"exclude: the graph has no node {part}")
            exclude |= names
    if request.transformer or request.options.get("MatMulConstBOnly"):
        for node in graph.nodes:
            if node.op_type == "MatMul" and node.input[1] not in graph.constants:
                if not node.name:
                    raise unsupported("products of activations without names, which stay in float", "name the nodes")
                exclude.add(node.name)
    more = set(request.more_op_types)
    if request.options.get("QuantizeAllOpTypes") and not is_vint8:
        more |= graph.op_types - {"Constant", "Shape", "If", "Loop", "Scan"}
    if not (request.dynamic or request.transformer or request.options.get("ForceQuantizeNoInputCheck")):
        kinds = set(request.op_types or (*PAIR_OPS, *(_NPU_OPS if request.extended or request.npu else ()))) | more
        kinds -= set(request.by_type.get(None, []))
        nodes = [
            node
            for node in graph.nodes
            if node.op_type in kinds and node.name not in exclude and (not request.nodes or node.name in request.nodes)
        ]
        exclude.update(graph.moves_in_float(nodes))
    return {
        "exclude": [escaped(name) for name in sorted(exclude)],
        "exclude_op_types": sorted(graph.op_types.intersection(request.by_type.get(None, []))),
        "op_types": sorted(graph.op_types.intersection(request.op_types)),
        "more_op_types": sorted(graph.op_types & more),
        "nodes": [escaped(name) for name in request.nodes if name in graph.names],
    }


def _overrides(request: _Request, graph: Graph) -> dict[str, str]:
    """Types of single tensors."""
    made: dict[str, str] = {}
    if (request.activation, request.weight) == ("uint8", "int8"):
        # Quark gives constants next to activations the type of weights.
        made.update(dict.fromkeys(graph.operands(graph.nodes), "int8:tensor:symmetric"))
        # Rows of a table keep its scale.
        gathers = [node for node in graph.nodes if node.op_type == "Gather" and node.input[0] in graph.float_constants]
        made.update((node.output[0], "int8:symmetric") for node in gathers)
    for layer, names in (*request.by_type.items(), *request.by_node.items()):
        if layer is None:
            continue
        for node in graph.nodes:
            if node.name in names if layer in request.by_node else node.op_type in names:
                made.update(_layer_overrides(layer, node, graph))
    return {escaped(name): words for name, words in made.items()}


def _layer_overrides(layer: QLayerConfig, node: onnx.NodeProto, graph: Graph) -> dict[str, str]:
    """The types of a node's tensors: as in Quark only type and symmetry count."""
    inputs = [name for name in node.input if name]
    weights = [name for name in inputs if name in graph.float_constants]
    given = [
        (layer.input_tensors or layer.activation, [name for name in inputs if name not in graph.constants]),
        (layer.weight, weights[:1]),
        (layer.bias, weights[1:2] if node.op_type in PRODUCTS else []),
        (layer.output_tensors, [name for name in node.output if name]),
    ]
    return {name: _words(spec) for spec, names in given if spec is not None for name in names}


def _words(spec: QTensorConfig) -> str:
    element = spec.data_type.element
    symmetry = f":{'symmetric' if spec.symmetric else 'asymmetric'}" if element in _INTEGERS else ""
    return f"{element}{symmetry}"


def _algorithm(entry: Any) -> str:
    """The spelling of an algorithm."""
    if isinstance(entry, CLEConfig):
        if entry.cle_balance_method != "max":
            raise unsupported(f"cle_balance_method {entry.cle_balance_method!r}", "use 'max'")
        return f"cle:bias={_on(entry.cle_scale_append_bias)}:clip=keep"
    if isinstance(entry, SmoothQuantConfig):
        return f"smoothquant:alpha={entry.alpha}"
    if isinstance(entry, BiasCorrectionConfig):
        return "bias-correction"
    if isinstance(entry, GPTQConfig):
        if entry.bits != 8 or entry.group_size != -1 or entry.mse or not entry.weight_symmetric:
            raise unsupported(
                "GPTQConfig with other bits, groups, mse or asymmetric weights",
                "use kvant.quantize with weight='int4', or with MATMUL_NBITS, and algorithm='gptq'",
            )
        order = "activation" if entry.act_order else "stored"
        return f"gptq:damping={entry.perc_damp}:order={order}:block={entry.block_size}"
    if isinstance(entry, AdaRoundConfig):
        return _tuned(entry)
    name = type(entry).__name__
    remedy = {
        "AutoMixprecisionConfig": "use kvant.sensitivity, which searches for a mix of types",
        "QuarotConfig": "use kvant.quantize with algorithm='rotate', which finds the layers by itself",
    }.get(name, "use an algorithm of `kvant list algorithms`")
    raise unsupported(name, remedy)


def _on(value: bool) -> str:
    return "on" if value else "off"


def _tuned(entry: AdaRoundConfig) -> str:
    """AdaRound or AdaQuant."""
    defaults = type(entry)()
    for name in ("optim_device", "infer_device", "num_batches", "output_index", "lr_adjust", "output_qdq"):
        if getattr(entry, name) != getattr(defaults, name):
            raise unsupported(f"{name} of {type(entry).__name__}", f"leave it at {getattr(defaults, name)!r}")
    if entry.ref_model_path is not None:
        raise unsupported("ref_model_path: the float model is the reference", "leave it out")
    if set(entry.target_op_type) != set(TUNED):
        raise unsupported(f"target_op_type of {type(entry).__name__}", "leave it out; exclude nodes instead")
    text = (
        f":num_iterations={entry.num_iterations}:learning_rate={entry.learning_rate:f}:batch_size={entry.batch_size}"
        f":seed={entry.fixed_seed}:early_stop={_on(entry.early_stop)}:update_bias={_on(entry.update_bias)}"
        f":drop_ratio={entry.drop_ratio}:selective_update={_on(entry.selective_update)}"
    )
    if isinstance(entry, AdaQuantConfig):
        return f"adaquant{text}"
    first, last = entry.beta_range
    return f"adaround{text}:reg_param={entry.reg_param}:beta_range={first}..{last}:warm_start={entry.warm_start}"


def _check_tuning(algorithms: Sequence[Any], count: int) -> None:
    for entry in algorithms:
        if isinstance(entry, AdaRoundConfig) and entry.data_size < count:
            raise unsupported(
                f"data_size {entry.data_size} of {type(entry).__name__} with {count} samples: all of them are used",
                "give fewer samples, or the option CalibDataSize",
            )
