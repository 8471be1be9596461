"""onnxruntime's functions over `kvant.quantize`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

import kvant
from kvant._errors import KvantWarning, usage_error
from kvant.compat._onnx import PRODUCTS, Graph, batches, codes_words, dynamic_overrides, model_file, samples
from kvant.compat._shared import escaped, unsupported
from kvant.compat.onnxruntime._types import (
    CalibrationMethod,
    QuantConfig,
    QuantFormat,
    QuantType,
    named,
)

if TYPE_CHECKING:
    import onnx

_ELEMENTS = {
    QuantType.QInt8: "int8",
    QuantType.QUInt8: "uint8",
    QuantType.QInt16: "int16",
    QuantType.QUInt16: "uint16",
    QuantType.QUInt4: "uint4",
}

# What onnxruntime quantizes by default, without operators that Kvant leaves in float.
_INTEGER_OPS = (
    *("Add", "ArgMax", "AveragePool", "Clip", "Concat", "Conv", "Gather", "Gemm", "GlobalAveragePool", "LeakyRelu"),
    *("MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Softmax", "Split", "Squeeze"),
    *("Transpose", "Unsqueeze", "Where"),
)
PAIR_OPS = (
    *_INTEGER_OPS,
    *("ConvTranspose", "CumSum", "GatherElements", "InstanceNormalization", "LayerNormalization", "Slice", "TopK"),
)

# Passes that change the graph: it is quantized as it is given, as onnxruntime does.
_PASSES = (
    *("batch-norm-folding", "batch-norm-to-conv", "bias-fusion", "clip-to-relu", "constant-folding"),
    *("copy-shared-bias", "dead-nodes", "duplicate-nodes", "gelu-fusion", "identity", "instance-norm-fusion"),
    *("l2-norm-fusion", "layer-norm-fusion", "matmul-add-to-gemm"),
    *("reduce-mean-to-global-average-pool", "scale-folding", "split-large-pool", "split-to-slice"),
)

# Options that have one value, and why.
_FIXED: dict[str, tuple[Any, str, str]] = {
    "extra.Sigmoid.nnapi": (False, "outputs of Sigmoid get the scale that their values need", "leave it out"),
    "ActivationRestrictedAsymmetric": (False, "zero points follow from ranges", "use ActivationSymmetric"),
    "AddQDQPairToWeight": (False, "weights are stored as codes", "leave it out"),
    "BlockSize": (0, "a weight has one scale, or one for each channel", "use kvant.quantize(model, 'MATMUL_NBITS')"),
    "DedicatedQDQPair": (False, "nodes that read the same tensor share its pair", "leave it out"),
    "MinimumRealRange": (None, "ranges are those of the data", "leave it out"),
    "OpTypesToExcludeOutputQuantization": (
        [],
        "a tensor is quantized for the node that writes it and for those that read it",
        "name tensors in float with kvant.quantize(overrides={'NAME': 'keep'})",
    ),
    "QDQDisableWeightAdjustForInt32Bias": (False, "biases would be clipped", "leave it out"),
    "QDQKeepRemovableActivations": (False, "clipping is part of QuantizeLinear", "use ActivationSymmetric"),
    "QDQOpTypePerChannelSupportToAxis": ({}, "the axis is that of output channels", "leave it out"),
    "SmoothQuantFolding": (True, "factors are folded where that is possible", "leave it out"),
}
_OPTIONS = {
    *_FIXED,
    *("ActivationSymmetric", "CalibMaxIntermediateOutputs", "CalibMovingAverage", "CalibMovingAverageConstant"),
    *("CalibPercentile", "CalibStridedMinMax", "CalibTensorRangeSymmetric", "DefaultTensorType", "EnableSubgraph"),
    *("ForceQuantizeNoInputCheck", "MatMulConstBOnly", "QuantizeBias", "SmoothQuant", "SmoothQuantAlpha"),
    *("TensorQuantOverrides", "UseQDQContribOps", "WeightSymmetric"),
}
# What changes nothing where activations get their scales when the model runs.
_ONLY_STATIC = (
    *("ActivationSymmetric", "CalibMovingAverage", "CalibStridedMinMax", "SmoothQuant", "TensorQuantOverrides"),
    "UseQDQContribOps",
)
_BODIES = ("If", "Loop", "Scan")
_OVERRIDES = {"quant_type", "symmetric"}


def quantize_static(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str],
    calibration_data_reader: Any = None,
    quant_format: Any = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibration_providers: Sequence[Any] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
) -> None:
    """Quantizes weights and activations with calibration data.

    The graph is quantized as it is given, with the scales, zero points and codes of onnxruntime 1.31. On purpose these
    are different:

    * symmetric activations: no pair between an operator and the Relu, LeakyRelu or Clip after it;
    * AveragePool has a separate output scale;
    * BatchNormalization stays in float: fold it first, as `quant_pre_process` does;
    * constants of Add, Mul and similar: `reduce_range` counts for them;
    * QOperator: Softmax has the scale of its values, and operators whose neighbours are float may differ;
    * SmoothQuant is Kvant's, which needs no neural-compressor.

    Args:
        model_input: The model or its file.
        model_output: The file to write.
        calibration_data_reader: An object whose `get_next` gives batches by inputs, and None at the end.
        quant_format: Q/DQ pairs, or integer operators.
        op_types_to_quantize: The only operators that are quantized.
        per_channel: Whether weights have one scale for each output channel.
        reduce_range: Whether weights use half of their codes.
        activation_type: The type of activations.
        weight_type: The type of weights.
        nodes_to_quantize: The only nodes that are quantized.
        nodes_to_exclude: Nodes that stay in float.
        use_external_data_format: Whether weights go to a separate file.
        calibrate_method: How ranges of activations are found. Entropy gives what onnxruntime's 128 bins give: the
            minimum and the maximum. `kvant.quantize` has a search.
        calibration_providers: Only the CPU's.
        extra_options: onnxruntime's options.
        calibration_cache_path: Not supported.

    Raises:
        UnsupportedError: Kvant does not do what an argument or an option asks for.
        UsageError: An unknown option, a missing file, no data.
    """
    options = dict(extra_options or {})
    layout = named(QuantFormat, quant_format, "quant_format")
    activation = _element(activation_type, "activation_type")
    weight = _element(weight_type, "weight_type")
    method = named(CalibrationMethod, calibrate_method, "calibrate_method")
    _check_options(options)
    _check_types(activation, weight, layout)
    if calibration_providers and any(_provider(entry) != "CPUExecutionProvider" for entry in calibration_providers):
        raise unsupported("calibration_providers other than the CPU's", "leave calibration_providers out")
    if calibration_cache_path is not None:
        raise unsupported("calibration_cache_path: ranges are not kept in files", "leave calibration_cache_path out")
    if calibration_data_reader is None:
        raise usage_error("quantize_static needs a calibration_data_reader", "give one, or use quantize_dynamic")
    if options.get("EnableSubgraph"):
        raise unsupported(
            "extra_options EnableSubgraph of static quantization", "leave it out, or use quantize_dynamic"
        )
    symmetric = bool(options.get("ActivationSymmetric", False))
    keywords: dict[str, Any] = {
        "activation": activation,
        "weight": weight,
        "symmetric": symmetric,
        "graph_format": "qdq" if layout is QuantFormat.QDQ else "qoperator",
        "calibration_method": _method(method, options, symmetric),
    }
    if layout is QuantFormat.QDQ:
        keywords["bias"] = "int32-all" if options.get("QuantizeBias", True) else "float"
    if options.get("UseQDQContribOps"):
        keywords["op_domain"] = "microsoft"
    if options.get("SmoothQuant"):
        keywords["algorithm"] = f"smoothquant:alpha={float(options.get('SmoothQuantAlpha', 0.5))}"
    with model_file(model_input) as path:
        graph = Graph(path)
        kinds = PAIR_OPS if layout is QuantFormat.QDQ else _INTEGER_OPS
        chosen = _Selection(graph, op_types_to_quantize, kinds, nodes_to_quantize, nodes_to_exclude)
        chosen.exclude_op_types = list(_BODIES)
        # onnxruntime reads this for integer operators only.
        if options.get("MatMulConstBOnly") and layout is QuantFormat.QOperator:
            chosen.leave_out_products_of_activations()
        if not options.get("ForceQuantizeNoInputCheck"):
            chosen.exclude += graph.moves_in_float(chosen.nodes)
        overrides = _weights(graph, chosen, weight, options, per_channel, layout)
        if (activation, symmetric) != (weight, not weight.startswith("u")):
            words = f"{activation}:tensor:minmax:{codes_words(symmetric)}"
            overrides.update(dict.fromkeys(graph.operands(chosen.nodes), words))
        overrides.update(_given_overrides(options.get("TensorQuantOverrides") or {}))
        overrides = {escaped(name): words for name, words in overrides.items()}
        found = batches(calibration_data_reader, graph)
        if method is CalibrationMethod.Percentile:
            found = _as_one_batch(graph, path, found)
        _run(
            path,
            model_output,
            "INT8_CNN_DEFAULT",
            chosen,
            overrides,
            use_external_data_format,
            per_channel=per_channel,
            reduce_range=reduce_range,
            data=samples(found),
            num_samples=len(found),
            **keywords,
        )


def quantize_dynamic(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Quantizes weights; activations get their scales when the model runs. Scales and codes are onnxruntime's.

    Args:
        model_input: The model or its file.
        model_output: The file to write.
        op_types_to_quantize: The only operators that are quantized. MatMul includes Gemm, as in onnxruntime.
        per_channel: Whether weights of matrix products have one scale for each output channel.
        reduce_range: Whether weights use half of their codes.
        weight_type: QInt8 or QUInt8.
        nodes_to_quantize: The only nodes that are quantized.
        nodes_to_exclude: Nodes that stay in float.
        use_external_data_format: Whether weights go to a separate file.
        extra_options: onnxruntime's options.

    Raises:
        UnsupportedError: Kvant does not do what an argument or an option asks for, or does not quantize an operator
            that onnxruntime does: Attention, EmbedLayerNormalization or LSTM. Tables of Gather stay in float with
            a KvantWarning.
        UsageError: An unknown option, a missing file.
    """
    options = dict(extra_options or {})
    weight = _element(weight_type, "weight_type")
    if weight not in ("int8", "uint8"):
        raise unsupported(f"weight_type {weight_type} of dynamic quantization", "use QInt8 or QUInt8")
    _check_options(options)
    if not options.get("MatMulConstBOnly", True):
        raise unsupported("MatMulConstBOnly=False: products of two activations stay in float", "leave it out")
    for name in _ONLY_STATIC:
        if options.get(name):
            raise unsupported(f"extra_options {name} of dynamic quantization", "leave it out, or use quantize_static")
    with model_file(model_input) as path:
        graph = Graph(path)
        given = list(op_types_to_quantize or [])
        if "MatMul" in given:
            given.append("Gemm")
        default = ("Conv", "Gemm", "MatMul", *_NOT_DYNAMIC)
        chosen = _Selection(graph, given, default, nodes_to_quantize, nodes_to_exclude)
        for node in chosen.nodes:
            if node.op_type in _NOT_DYNAMIC:
                raise unsupported(
                    f"{node.op_type} (node {node.name!r}) is not quantized dynamically",
                    f"list op_types_to_quantize without {node.op_type}, or exclude the node",
                )
        tables = [
            node.input[0]
            for node in graph.nodes
            if node.op_type == "Gather"
            and node.input[0] in graph.float_constants
            and node.name not in chosen.exclude
            and (not given or "Gather" in given)
        ]
        if tables:
            message = f"tables that Gather reads stay in float, onnxruntime quantizes them: {', '.join(tables)}"
            warnings.warn(message, KvantWarning, stacklevel=2)
        if not options.get("EnableSubgraph", False):
            chosen.exclude_op_types = list(_BODIES)
        overrides = dynamic_overrides(graph, chosen.nodes, weight, _is_symmetric(weight, options), per_channel)
        _run(
            path,
            model_output,
            "UINT8_DYNAMIC_QUANT",
            chosen,
            overrides,
            use_external_data_format,
            weight=weight,
            reduce_range=reduce_range,
        )


def quantize(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str],
    quant_config: QuantConfig,
) -> None:
    """Quantizes as a configuration says; onnxruntime's own configurations count too.

    Raises:
        UnsupportedError: Kvant does not do what the configuration asks for.
        UsageError: The configuration is wrong.
    """
    common = {
        "op_types_to_quantize": quant_config.op_types_to_quantize,
        "nodes_to_quantize": quant_config.nodes_to_quantize,
        "nodes_to_exclude": quant_config.nodes_to_exclude,
        "per_channel": quant_config.per_channel,
        "reduce_range": quant_config.reduce_range,
        "weight_type": quant_config.weight_type,
        "use_external_data_format": quant_config.use_external_data_format,
        "extra_options": getattr(quant_config, "extra_options", None),
    }
    if not hasattr(quant_config, "calibration_data_reader"):
        quantize_dynamic(model_input, model_output, **common)
        return
    quantize_static(
        model_input,
        model_output,
        quant_config.calibration_data_reader,
        quant_format=getattr(quant_config, "quant_format", QuantFormat.QDQ),
        activation_type=quant_config.activation_type,
        calibrate_method=getattr(quant_config, "calibrate_method", CalibrationMethod.MinMax),
        calibration_providers=getattr(quant_config, "calibration_providers", None),
        **common,
    )


def quant_pre_process(*arguments: Any, **keywords: Any) -> None:
    """Optimizes a float model and infers shapes, with onnxruntime's function of the same name and arguments.

    `kvant.quantize` needs no such step.

    Raises:
        UnsupportedError: onnxruntime is not installed.
    """
    try:
        from onnxruntime.quantization import quant_pre_process as pre_process
    except ImportError:
        raise unsupported(
            "quant_pre_process runs in onnxruntime, which is not installed",
            "leave the step out and quantize with kvant.quantize, which folds and fuses by itself",
        ) from None
    pre_process(*arguments, **keywords)


# What onnxruntime quantizes dynamically and Kvant does not, next to tables of Gather.
_NOT_DYNAMIC = ("Attention", "EmbedLayerNormalization", "LSTM")


class _Selection:
    """The nodes that are quantized."""

    def __init__(
        self,
        graph: Graph,
        op_types: Sequence[str] | None,
        default: Sequence[str],
        only: Sequence[str] | None,
        exclude: Sequence[str] | None,
    ) -> None:
        self.op_types = sorted(graph.op_types.intersection(op_types or default))
        self.only = _known(graph, only, "nodes_to_quantize")
        self.exclude = _known(graph, exclude, "nodes_to_exclude")
        if (op_types and not self.op_types) or (only and not self.only):
            raise usage_error(
                "the graph has none of these operators or nodes", "give operators or nodes that the graph has"
            )
        self.graph = graph
        self.exclude_op_types: list[str] = []

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes."""
        return [
            node
            for node in self.graph.nodes
            if node.op_type in self.op_types
            and node.name not in self.exclude
            and (not self.only or node.name in self.only)
        ]

    def leave_out_products_of_activations(self) -> None:
        """Leaves each MatMul without a constant matrix in float.

        Raises:
            UnsupportedError: One has no name.
        """
        for node in self.graph.nodes:
            if node.op_type == "MatMul" and node.input[1] not in self.graph.constants:
                if not node.name:
                    raise unsupported("MatMulConstBOnly with nodes that have no names", "name the nodes")
                self.exclude.append(node.name)


def _known(graph: Graph, names: Sequence[str] | None, argument: str) -> list[str]:
    """Names that the graph has; the others have no effect, as in onnxruntime, but are named."""
    missing = [name for name in names or [] if name not in graph.names]
    if missing:
        warnings.warn(f"{argument}: the graph has no {', '.join(missing)}", KvantWarning, stacklevel=4)
    return [name for name in names or [] if name in graph.names]


def _run(
    path: Path,
    output: str | os.PathLike[str],
    scheme: str,
    chosen: _Selection,
    overrides: Mapping[str, str],
    external: bool,
    **keywords: Any,
) -> None:
    kvant.quantize(
        path,
        scheme,
        output=output,
        op_types=[kind for kind in chosen.op_types if scheme != "UINT8_DYNAMIC_QUANT" or kind in PRODUCTS] or None,
        nodes=[escaped(name) for name in chosen.only] or None,
        exclude=[escaped(name) for name in chosen.exclude] or None,
        exclude_op_types=[kind for kind in chosen.exclude_op_types if kind in chosen.graph.op_types] or None,
        overrides=overrides or None,
        disable_pass=_PASSES,
        external_data="always" if external else None,
        overwrite=True,
        **keywords,
    )


def _element(given: Any, argument: str) -> str:
    kind = named(QuantType, given, argument)
    if kind is QuantType.QFLOAT8E4M3FN:
        raise unsupported(f"{argument} QFLOAT8E4M3FN", "use kvant.quantize(model, 'FP8'), whose scales differ")
    if kind is QuantType.QInt4:
        raise unsupported(
            f"{argument} QInt4: Kvant's symmetric codes are -7 to 7, onnxruntime's are clipped at 7 of 7.5",
            "use QUInt4, or kvant.quantize with weight='int4'",
        )
    return _ELEMENTS[kind]


def _check_types(activation: str, weight: str, layout: QuantFormat) -> None:
    if activation == "int8" and weight == "uint8":
        raise usage_error("activation_type QInt8 with weight_type QUInt8", "use QInt8 for weights too")
    if layout is QuantFormat.QOperator and {activation, weight} - {"int8", "uint8"}:
        raise unsupported("QOperator with other types than 8-bit integers", "use QuantFormat.QDQ")


def _check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise usage_error(f"extra_options has the unknown key {name!r}", f"known are {', '.join(sorted(_OPTIONS))}")
        if name in _FIXED:
            only, reason, remedy = _FIXED[name]
            if value != only and (value or only):
                raise unsupported(f"extra_options {name}={value!r}: {reason}", remedy)
    if options.get("DefaultTensorType", 1) != 1:
        raise unsupported("extra_options DefaultTensorType: types are inferred", "leave it out")


def _provider(entry: Any) -> Any:
    return entry[0] if isinstance(entry, tuple) else entry


def _method(method: CalibrationMethod, options: Mapping[str, Any], symmetric: bool) -> str:
    """The method that finds ranges of activations."""
    if method is CalibrationMethod.Distribution:
        raise unsupported("calibrate_method Distribution, which is for fp8", "use MinMax, Entropy or Percentile")
    if method is not CalibrationMethod.MinMax and options.get("CalibStridedMinMax"):
        raise unsupported("CalibStridedMinMax with a histogram, which covers all batches", "leave it out")
    if method is not CalibrationMethod.Percentile:
        if options.get("CalibTensorRangeSymmetric") and not symmetric:
            raise unsupported(
                "CalibTensorRangeSymmetric with asymmetric codes, which loses half of them",
                "use ActivationSymmetric instead",
            )
        is_averaged = method is CalibrationMethod.MinMax and options.get("CalibMovingAverage")
        return _average(options) if is_averaged else "minmax"
    both_tails = options.get("CalibTensorRangeSymmetric", True) is False
    if symmetric and both_tails:
        raise unsupported(
            "CalibTensorRangeSymmetric=False with symmetric codes: the percentile counts magnitudes", "leave it out"
        )
    name = "percentile" if symmetric or both_tails else "magnitude-percentile"
    return f"{name}{float(options.get('CalibPercentile', 99.999))}"


def _average(options: Mapping[str, Any]) -> str:
    """The average of the ranges of batches: their mean in each stride, and the moving average of these means."""
    stride = options.get("CalibStridedMinMax")
    if not stride:
        return "mean"
    weight = float(options.get("CalibMovingAverageConstant", 0.01))
    if stride != 1 or not 0 < weight < 1:
        raise unsupported(
            f"CalibMovingAverage with CalibStridedMinMax={stride!r} and CalibMovingAverageConstant={weight}",
            "leave CalibStridedMinMax out, or give 1 and a constant between 0 and 1",
        )
    return f"ema{1 - weight:.9f}"


def _is_symmetric(weight: str, options: Mapping[str, Any]) -> bool:
    given = options.get("WeightSymmetric")
    return not weight.startswith("u") if given is None else bool(given)


def _weights(
    graph: Graph, chosen: _Selection, weight: str, options: Mapping[str, Any], per_channel: bool, layout: QuantFormat
) -> dict[str, str]:
    """Overrides for weights whose codes are not what the preset makes of their type."""
    # Pairs with a scale for each channel are always symmetric.
    of_tensors = _is_symmetric(weight, options)
    of_products = of_tensors or (per_channel and layout is QuantFormat.QDQ)
    is_signed = not weight.startswith("u")
    made = {}
    if of_products is not is_signed:
        words = f"{weight}:{'channel' if per_channel else 'tensor'}:{codes_words(of_products)}"
        made.update(dict.fromkeys(graph.weights(chosen.nodes), words))
    if of_tensors is not is_signed:
        words = f"{weight}:tensor:{codes_words(of_tensors)}"
        made.update(dict.fromkeys(graph.factors(chosen.nodes), words))
    return made


def _given_overrides(given: Mapping[str, Any]) -> dict[str, str]:
    """Overrides of single tensors."""
    made = {}
    for name, entries in given.items():
        entry = entries[0] if entries else {}
        others = sorted(key for one in entries for key in one if key not in _OVERRIDES)
        if others or len(entries) > 1:
            raise unsupported(
                f"TensorQuantOverrides of {name!r} with {', '.join(others) or 'several channels'}",
                f"give {' and '.join(sorted(_OVERRIDES))}, which Kvant reads",
            )
        words = [_element(entry["quant_type"], f"quant_type of {name!r}")] if "quant_type" in entry else []
        words += [codes_words(bool(entry["symmetric"]))] if "symmetric" in entry else []
        if words:
            made[name] = ":".join(words)
    return made


def _as_one_batch(graph: Graph, path: Path, found: list[dict[str, numpy.ndarray]]) -> list[dict[str, numpy.ndarray]]:
    """All batches as one, whose histogram is onnxruntime's.

    Otherwise the first batch would determine the width of the bins. This needs a model whose batch is open, and whose
    rows do not depend on one another, which the outputs show.
    """
    is_open = {
        entry.name: not entry.type.tensor_type.shape.dim[0].HasField("dim_value")
        for entry in graph.inputs
        if entry.type.tensor_type.shape.dim
    }
    if len(found) == 1 or not all(is_open.get(name, False) for name in found[0]):
        return found
    if any(len({batch[name].shape[1:] for batch in found}) > 1 for name in found[0]):
        return found
    try:
        import onnxruntime
    except ImportError:
        return found
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    one = {name: numpy.concatenate([batch[name] for batch in found]) for name in found[0]}
    try:
        together = session.run(None, one)
        apart = [numpy.concatenate(parts) for parts in zip(*(session.run(None, batch) for batch in found), strict=True)]
    except Exception:  # noqa: BLE001
        return found
    same = all(
        a.shape == b.shape and numpy.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(together, apart, strict=True)
    )
    return [one] if same else found
