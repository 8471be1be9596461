"""Scripts for onnxruntime's quantizer with only their imports changed."""

from __future__ import annotations

import contextlib
import inspect
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnxruntime.quantization")

import onnx_nets as nets  # noqa: E402
from onnx_nets import NETS, Reader, constants_of, differences  # noqa: E402

import kvant  # noqa: E402
import kvant.compat.onnxruntime as compat  # noqa: E402
import kvant.compat.onnxruntime.quantization as quantization  # noqa: E402

GOLDEN = Path(__file__).parents[3] / "tests/golden/onnx"
U8 = {"activation_type": "QUInt8"}


def arguments(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the members of a module's own enumerations."""
    kinds = {"activation_type": "QuantType", "weight_type": "QuantType", "quant_format": "QuantFormat"}
    kinds["calibrate_method"] = "CalibrationMethod"
    return {name: getattr(module, kinds[name])[value] if name in kinds else value for name, value in given.items()}


def all_constants(model: Any) -> dict[str, numpy.ndarray]:
    """The initializers of a graph and of the bodies of its If, whose names may have been made unique."""
    bodies = [attribute.g for node in model.graph.node if node.op_type == "If" for attribute in node.attribute]
    tensors = [tensor for graph in (model.graph, *bodies) for tensor in graph.initializer]
    return {tensor.name.replace("_1", ""): onnx.numpy_helper.to_array(tensor) for tensor in tensors}


def both(tmp_path: Path, model: Any, given: dict[str, Any], reader: Reader | None = None) -> list[Any]:
    """What onnxruntime and Kvant write for the same arguments."""
    made = []
    source = tmp_path / "model.onnx"
    onnx.save(model, source)
    for name, module in (("expected", reference), ("made", quantization)):
        path = tmp_path / f"{name}.onnx"
        with (tmp_path / "log").open("w") as log, contextlib.redirect_stdout(log):
            if reader is None:
                module.quantize_dynamic(str(source), str(path), **arguments(module, given))
            else:
                reader.rewind()
                module.quantize_static(str(source), str(path), reader, **arguments(module, given))
        made.append(onnx.load(path))
    return made


def test_names_and_signatures_are_those_of_onnxruntime() -> None:
    for name in quantization.__all__:
        assert getattr(compat, name) is getattr(quantization, name)
    for name in ("quantize_static", "quantize_dynamic", "quantize", "StaticQuantConfig", "DynamicQuantConfig"):
        ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (quantization, reference))
        assert list(ours) == list(theirs), name
        for parameter in ours:
            left, right = ours[parameter].default, theirs[parameter].default
            assert getattr(left, "name", left) == getattr(right, "name", right), (name, parameter)
    for name in ("QuantType", "QuantFormat", "CalibrationMethod"):
        ours, theirs = getattr(quantization, name), getattr(reference, name)
        assert {member.name: member.value for member in ours} == {member.name: member.value for member in theirs}
    from kvant.compat.onnxruntime.quantization.quantize import quantize

    assert quantization.quantize is quantize


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    "given",
    [
        U8,
        {**U8, "weight_type": "QUInt8"},
        {**U8, "weight_type": "QUInt4"},
        {**U8, "per_channel": True},
        {**U8, "weight_type": "QUInt8", "per_channel": True},
        {**U8, "weight_type": "QUInt8", "extra_options": {"WeightSymmetric": True}},
        {**U8, "calibrate_method": "Entropy"},
        {**U8, "calibrate_method": "Percentile"},
        {**U8, "calibrate_method": "Percentile", "extra_options": {"CalibPercentile": 90}},
        {**U8, "calibrate_method": "Percentile", "extra_options": {"CalibTensorRangeSymmetric": False}},
        {**U8, "extra_options": {"UseQDQContribOps": True}},
        {**U8, "extra_options": {"CalibMovingAverage": True}},
        {"per_channel": True, "extra_options": {"CalibMovingAverage": True, "ActivationSymmetric": False}},
        {},
        {"per_channel": True},
        {"extra_options": {"WeightSymmetric": False}},
        {**U8, "extra_options": {"WeightSymmetric": False}},
        {"activation_type": "QUInt16"},
        {"activation_type": "QUInt16", "weight_type": "QInt16"},
    ],
)
def test_pairs_have_the_scales_and_codes_of_onnxruntime(net: str, given: dict[str, Any], tmp_path: Path) -> None:
    model = NETS[net]()
    expected, made = both(tmp_path, model, given, Reader(model))
    assert differences(expected, made) == []
    assert sorted(node.op_type for node in expected.graph.node) == sorted(node.op_type for node in made.graph.node)


def test_moving_averages_of_single_batches(tmp_path: Path) -> None:
    model = nets.products()
    reader = Reader(model)
    reader.set_range = lambda start_index, end_index: setattr(
        reader, "remaining", iter(reader.batches[start_index:end_index])
    )
    reader.__class__ = type("Ranged", (Reader,), {"__len__": lambda self: len(self.batches)})
    options = {"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.25, "CalibStridedMinMax": 1}
    expected, made = both(tmp_path, model, {**U8, "extra_options": options}, reader)
    assert differences(expected, made) == []


@pytest.mark.parametrize("given", [{}, {"per_channel": True}, {"calibrate_method": "Percentile"}])
def test_symmetric_activations_have_no_pair_before_relu(given: dict[str, Any], tmp_path: Path) -> None:
    before_relu = {"convolutions": ["a", "c1"], "products": ["a1"], "attention": []}
    for net in NETS:
        model = NETS[net]()
        options = {**given, "extra_options": {"ActivationSymmetric": True}}
        expected, made = both(tmp_path, model, options, Reader(model, rows=3))
        names = before_relu[net]
        assert differences(expected, made) == sorted(
            f"{name}_{end}" for name in names for end in ("scale", "zero_point")
        )


@pytest.mark.parametrize("given", [U8, {**U8, "per_channel": True}, {**U8, "weight_type": "QUInt8"}])
def test_integer_operators_have_the_codes_of_onnxruntime(given: dict[str, Any], tmp_path: Path) -> None:
    # The same tensor behind another name: the output of a Relu that is part of the operator before it.
    renamed = {"convolutions": {"a": "r2", "c1": "r1"}, "products": {"a1": "r1"}, "attention": {}}
    for net in NETS:
        model = NETS[net]()
        expected, made = both(tmp_path, model, {**given, "quant_format": "QOperator"}, Reader(model))
        for tensor in expected.graph.initializer:
            for old, new in renamed[net].items():
                for end in ("scale", "zero_point"):
                    tensor.name = f"{new}_{end}" if tensor.name == f"{old}_{end}" else tensor.name
        # The scale of Softmax is that of its values instead of 1/256.
        assert differences(expected, made) == (["p_scale"] if net == "attention" else [])


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"weight_type": "QUInt8"},
        {"extra_options": {"WeightSymmetric": False}},
        {"per_channel": True},
        {"per_channel": True, "weight_type": "QUInt8"},
        {"reduce_range": True},
        {"op_types_to_quantize": ["MatMul"]},
    ],
)
def test_dynamic_quantization_has_the_codes_of_onnxruntime(net: str, given: dict[str, Any], tmp_path: Path) -> None:
    expected, made = both(tmp_path, NETS[net](), given)
    # The bias of a convolution has the shape that the Add after it needs, without a Reshape.
    reshaped = {"b1", "b1_channels", "c1_bias_reshape_shape"} if net == "convolutions" else set()
    assert set(differences(expected, made)) <= reshaped


@pytest.mark.parametrize("given", [{}, {"per_channel": True}, {"weight_type": "QUInt8"}])
@pytest.mark.parametrize("inside", [False, True])
def test_products_in_bodies_of_if(given: dict[str, Any], inside: bool, tmp_path: Path) -> None:
    model = nets.conditional()
    expected, made = both(tmp_path, model, {**given, "extra_options": {"EnableSubgraph": inside}})
    left, right = all_constants(expected), all_constants(made)
    assert set(left) == set(right) and ("wb0_quantized" in left) == inside
    assert all(numpy.allclose(left[name], right[name], rtol=1e-6, atol=0) for name in left)


@pytest.mark.parametrize("given", [U8, {**U8, "per_channel": True}])
def test_transformer(given: dict[str, Any], tmp_path: Path) -> None:
    model = onnx.load(GOLDEN / "tinytransformer.float.onnx")
    reader = Reader(nets.products())
    with numpy.load(GOLDEN / "tinytransformer.calib.npz") as data:
        reader.batches = [{"ids": row[numpy.newaxis]} for row in data["ids"]]
    expected, made = both(tmp_path, model, given, reader)
    assert differences(expected, made) == []
    with pytest.warns(kvant.KvantWarning, match="Gather reads stay in float"):
        expected, made = both(tmp_path, model, {})
    assert {name for name in differences(expected, made) if not name.startswith("emb")} == set()


def test_batch_normalization_is_folded_by_the_preprocessing(tmp_path: Path) -> None:
    source, processed = tmp_path / "float.onnx", tmp_path / "processed.onnx"
    onnx.save(nets.normalized(), source)
    quantization.quant_pre_process(str(source), str(processed), skip_symbolic_shape=True)
    model = onnx.load(processed)
    assert all(node.op_type != "BatchNormalization" for node in model.graph.node)
    expected, made = both(tmp_path, model, U8, Reader(model))
    assert differences(expected, made) == []
    # Without that step, everything but the normalization's own constants is the same.
    expected, made = both(tmp_path, nets.normalized(), U8, Reader(model))
    assert {name.split("_")[0] for name in differences(expected, made)} == {"g", "b"}


def test_reduced_range_and_biases_in_float(tmp_path: Path) -> None:
    model = nets.convolutions()
    expected, made = both(tmp_path, model, {**U8, "reduce_range": True}, Reader(model))
    assert differences(expected, made) == []
    expected, made = both(tmp_path, model, {**U8, "extra_options": {"QuantizeBias": False}}, Reader(model))
    assert [name for name in differences(expected, made) if not name.startswith("b")] == []


def test_chosen_nodes_and_types_of_tensors(tmp_path: Path) -> None:
    model = nets.products()
    for given in (
        {"nodes_to_quantize": ["mm1", "gemm"]},
        {"nodes_to_exclude": ["gemm"]},
        {"op_types_to_quantize": ["MatMul"]},
    ):
        expected, made = both(tmp_path, model, {**U8, **given}, Reader(model))
        assert differences(expected, made) == []
    model = nets.attention()
    for layout in ("QDQ", "QOperator"):
        given = {**U8, "quant_format": layout, "extra_options": {"MatMulConstBOnly": True}}
        expected, made = both(tmp_path, model, given, Reader(model))
        # As above, Softmax has the scale of its values.
        assert set(differences(expected, made)) <= ({"p_scale"} if layout == "QOperator" else set())
    # Transpose and Reshape behind a product in float.
    for force in (False, True):
        given = {"nodes_to_exclude": ["mm_values"], "extra_options": {"ForceQuantizeNoInputCheck": force}}
        expected, made = both(tmp_path, model, {**U8, **given}, Reader(model))
        assert differences(expected, made) == []
        assert ("o_scale" in constants_of(made)) == force


def test_smoothquant_changes_weights(tmp_path: Path) -> None:
    model = nets.products()
    made = []
    for options in ({}, {"SmoothQuant": True, "SmoothQuantAlpha": 0.7}):
        quantization.quantize_static(model, tmp_path / "q.onnx", Reader(model, 8), extra_options=options)
        made.append(onnx.load(tmp_path / "q.onnx"))
    assert {"w1_quantized", "w2_quantized"} & set(differences(*made))


def test_overrides_of_single_tensors(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    model = nets.products()
    onnx.save(model, source)
    made = []
    for module in (reference, quantization):
        override = {"w1": [{"quant_type": module.QuantType.QUInt8, "symmetric": False}]}
        options = {"TensorQuantOverrides": override}
        module.quantize_static(
            source, tmp_path / "q.onnx", Reader(model), activation_type=module.QuantType.QUInt8, extra_options=options
        )
        made.append(onnx.load(tmp_path / "q.onnx"))
    assert differences(*made) == []
    assert constants_of(made[1])["w1_quantized"].dtype == numpy.uint8


def test_models_in_memory_configurations_and_batches_of_several_sizes(tmp_path: Path) -> None:
    model = nets.products()
    reader = Reader(model)
    reader.batches = [{"x": numpy.repeat(batch["x"], n + 1, axis=0)} for n, batch in enumerate(reader.batches)]
    made = []
    for module in (reference, quantization):
        reader.rewind()
        config = module.StaticQuantConfig(reader, activation_type=module.QuantType.QUInt8)
        module.quantize(model, tmp_path / "q.onnx", config)
        made.append(onnx.load(tmp_path / "q.onnx"))
    assert differences(*made) == []
    # Objects of onnxruntime itself count too.
    reader.rewind()
    config = reference.StaticQuantConfig(reader, activation_type=reference.QuantType.QUInt8)
    quantization.quantize(model, tmp_path / "q.onnx", config)
    assert differences(made[0], onnx.load(tmp_path / "q.onnx")) == []
    made = []
    for module in (reference, quantization):
        module.quantize(model, tmp_path / "q.onnx", module.DynamicQuantConfig())
        made.append(onnx.load(tmp_path / "q.onnx"))
    assert differences(*made) == []


def test_large_models_in_memory_keep_their_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvant.compat import _onnx

    monkeypatch.setattr(_onnx, "_LARGEST_MESSAGE", 0)
    # Tensors below a kilobyte stay in the message.
    weight = numpy.ones((6, 512), "float32")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "mm")
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", n]) for name, n in (("x", 6), ("y", 512))
    )
    graph = onnx.helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(weight, "w")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    quantization.quantize_dynamic(model, tmp_path / "q.onnx")
    assert numpy.array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), weight)
    assert model.graph.initializer[0].data_location == onnx.TensorProto.DEFAULT


def test_external_data(tmp_path: Path) -> None:
    model = nets.products()
    quantization.quantize_static(model, tmp_path / "q.onnx", Reader(model), use_external_data_format=True)
    assert any(path.name.startswith("q.onnx") and path.name != "q.onnx" for path in tmp_path.iterdir())


def refused(tmp_path: Path, error: type[Exception], **given: Any) -> str:
    """The message of a call that is refused, which writes nothing."""
    model = nets.products()
    with pytest.raises(error) as caught:
        quantization.quantize_static(model, tmp_path / "q.onnx", Reader(model), **given)
    assert not (tmp_path / "q.onnx").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"AddQDQPairToWeight": True},
        {"ActivationRestrictedAsymmetric": True},
        {"BlockSize": 32},
        {"CalibMovingAverage": True, "CalibStridedMinMax": 2},
        {"CalibTensorRangeSymmetric": True},
        {"DedicatedQDQPair": True},
        {"DefaultTensorType": 10},
        {"EnableSubgraph": True},
        {"MinimumRealRange": 0.1},
        {"OpTypesToExcludeOutputQuantization": ["MatMul"]},
        {"QDQDisableWeightAdjustForInt32Bias": True},
        {"QDQKeepRemovableActivations": True},
        {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 0}},
        {"SmoothQuantFolding": False},
        {"TensorQuantOverrides": {"w1": [{"scale": 1.0, "zero_point": 0}]}},
        {"extra.Sigmoid.nnapi": True},
    ],
)
def test_unsupported_options_are_named_with_the_reason(options: dict[str, Any], tmp_path: Path) -> None:
    message = refused(tmp_path, kvant.UnsupportedError, extra_options=options)
    assert next(iter(options)) in message and "hint: " in message


def test_other_requests_that_are_refused(tmp_path: Path) -> None:
    kinds = quantization.QuantType
    assert "Unknown" in refused(tmp_path, kvant.UsageError, extra_options={"Unknown": 1})
    assert "QInt8" in refused(tmp_path, kvant.UsageError, weight_type=kinds.QUInt8)
    assert "7.5" in refused(tmp_path, kvant.UnsupportedError, weight_type=kinds.QInt4)
    assert "FP8" in refused(tmp_path, kvant.UnsupportedError, activation_type=kinds.QFLOAT8E4M3FN)
    assert "providers" in refused(tmp_path, kvant.UnsupportedError, calibration_providers=["CUDAExecutionProvider"])
    assert "cache" in refused(tmp_path, kvant.UnsupportedError, calibration_cache_path=tmp_path / "cache")
    method = quantization.CalibrationMethod.Distribution
    assert "fp8" in refused(tmp_path, kvant.UnsupportedError, calibrate_method=method)
    assert "none of these" in refused(tmp_path, kvant.UsageError, op_types_to_quantize=["Conv"])
    with pytest.raises(kvant.UsageError, match="calibration_data_reader"):
        quantization.quantize_static(nets.products(), tmp_path / "q.onnx")
    with pytest.raises(kvant.UsageError, match="no data"):
        quantization.quantize_static(nets.products(), tmp_path / "q.onnx", Reader(nets.products(), count=0))
    for batch, problem in (
        ({"y": numpy.zeros((1, 3), "float32")}, "has no input 'y', and needs the input 'x'"),
        ({"x": numpy.zeros((1, 3), "float32"), "mask": numpy.zeros(1)}, "has no input 'mask'"),
    ):
        reader = type("Wrong", (), {"rest": iter([batch]), "get_next": lambda self: next(self.rest, None)})()
        with pytest.raises(kvant.UsageError, match=problem) as caught:
            quantization.quantize_static(nets.products(), tmp_path / "q.onnx", reader)
        assert "inputs of the graph: x" in caught.value.remedy
    with pytest.raises(kvant.UnsupportedError, match="MatMulConstBOnly"):
        quantization.quantize_dynamic(nets.products(), tmp_path / "q.onnx", extra_options={"MatMulConstBOnly": False})


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(nets.products(), tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(kvant.MissingExtraError, match=r"kvant\[onnx\]"):
        quantization.quantize_dynamic(tmp_path / "model.onnx", tmp_path / "q.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(kvant.UnsupportedError, match="quant_pre_process"):
        quantization.quant_pre_process("model.onnx", "out.onnx")


def test_warnings_for_what_has_no_effect(tmp_path: Path) -> None:
    model = nets.products()
    with pytest.warns(kvant.KvantWarning, match="no absent"):
        quantization.quantize_dynamic(model, tmp_path / "q.onnx", nodes_to_exclude=["absent"])
