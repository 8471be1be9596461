"""Layouts other than Q/DQ pairs through kvant: dynamic quantization beside onnxruntime's, whole models in 16-bit floats, and
integer operators beside the pairs they stand for. All are valid models; onnxruntime runs them as they are."""

import collections

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

import onnx_oracle

SLACK = 0.1  # dB
# The preset, and onnxruntime's arguments for the same.
DYNAMIC = {
    "UINT8_DYNAMIC_QUANT": {"weight_type": quantization.QuantType.QUInt8},
    "INT8_DYNAMIC_QUANT": {"weight_type": quantization.QuantType.QInt8, "per_channel": True},
}


@pytest.fixture(scope="module")
def made(kvant, onnx_model, module_path):
    """made(name, preset, *options) -> path of a model quantized without data, made once."""
    root, known = module_path("layouts"), {}

    def run(name, preset, *options):
        out = root / ("-".join([name, preset, *options]).replace("/", "_") + ".onnx")
        if out not in known:
            done = kvant("quantize", onnx_model(name), "--preset", preset, "-o", out, *options)
            assert done.returncode == 0, done.stderr
            known[out] = done
        return out

    return run


def operators(path):
    return collections.Counter(node.op_type for node in onnx.load(path).graph.node)


def check(path, model):
    """A valid model of the same inputs and outputs."""
    onnx.checker.check_model(str(path), full_check=True)
    before, after = (onnx.load(p).graph for p in (model, path))
    assert [(v.name, v.type) for v in before.input] == [(v.name, v.type) for v in after.input]
    types = lambda graph: [(v.name, v.type.tensor_type.elem_type) for v in graph.output]  # noqa: E731
    assert types(before) == types(after)


@pytest.mark.parametrize("preset", DYNAMIC)
@pytest.mark.parametrize("name", ["bert", "minilm", "recurrent"])
def test_dynamic_sqnr_is_no_worse_than_onnxruntime(made, onnx_model, tmp_path, name, preset):
    # By default onnxruntime quantizes embeddings as well, which moves the SQNR by chance: the same nodes are compared.
    model, path = onnx_model(name), made(name, preset)
    check(path, model)
    theirs, test = tmp_path / "theirs.onnx", model.with_suffix(".test.npz")
    quantization.quantize_dynamic(model, theirs, op_types_to_quantize=["MatMul"], **DYNAMIC[preset])
    a, b = (onnx_oracle.sqnr(model, p, test) for p in (path, theirs))
    assert operators(path)["MatMulInteger"] == operators(theirs)["MatMulInteger"] > 0
    assert operators(path)["DynamicQuantizeLinear"] == operators(theirs)["DynamicQuantizeLinear"]
    assert all(a[output] >= b[output] - SLACK for output in a), (a, b)


@pytest.mark.parametrize("name", ["unet", "mobilenet_v2"])
def test_dynamic_convolution_sqnr_is_no_worse_than_onnxruntime(made, onnx_model, tmp_path, name):
    # A scale for each channel of a convolution: onnxruntime has one for all.
    model, path = onnx_model(name), made(name, "INT8_DYNAMIC_QUANT")
    check(path, model)
    assert operators(path)["ConvInteger"] == operators(model)["Conv"]
    theirs, test = tmp_path / "theirs.onnx", model.with_suffix(".test.npz")
    quantization.quantize_dynamic(model, theirs, **DYNAMIC["INT8_DYNAMIC_QUANT"])
    a, b = (onnx_oracle.sqnr(model, p, test) for p in (path, theirs))
    assert all(a[output] >= b[output] - SLACK for output in a), (a, b)


# Where 50 dB are not to be had: 11 bits in 52 convolutions one behind the other, without a norm between.
LEAST = {"mobilenet_v2": 45}


@pytest.mark.parametrize("name", ["mobilenet_v2", "unet", "yolo", "bert", "minilm", "decoder", "recurrent"])
def test_float16_is_close_and_half_the_size(made, onnx_model, name):
    model, path = onnx_model(name), made(name, "FP16_MODEL")
    check(path, model)
    found = onnx_oracle.sqnr(model, path, model.with_suffix(".test.npz"))
    assert min(found.values()) > LEAST.get(name, 50), found
    floats = lambda p: sum(np.prod(t.dims) * 4 for t in onnx.load(p).graph.initializer if t.data_type == onnx.TensorProto.FLOAT)  # noqa: E731
    assert floats(path) < 0.05 * floats(model)


@pytest.mark.parametrize("name", ["mobilenet_v2", "unet", "yolo", "bert", "decoder", "recurrent"])
def test_bfloat16_is_valid(made, onnx_model, name):
    # onnxruntime's CPU kernels know no bfloat16: types are all that can be checked here.
    model, path = onnx_model(name), made(name, "BF16_MODEL")
    check(path, model)
    large = [t.data_type for t in onnx.load(path).graph.initializer if np.prod(t.dims) > 1024 and t.data_type != onnx.TensorProto.INT64]
    assert large and set(large) == {onnx.TensorProto.BFLOAT16}


def half(model, out):
    """The model with all floats of 16 bits, its inputs and outputs too."""
    graph = (loaded := onnx.load(model)).graph
    narrow = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = narrow
    onnx.save(loaded, out)
    return out


def test_model_already_of_the_dtype_is_refused(kvant, onnx_model, tmp_path):
    model = half(onnx_model("unet"), tmp_path / "half.onnx")
    for command in ("plan", "quantize"):
        done = kvant(command, model, "--preset", "FP16_MODEL", *(["-o", tmp_path / "x.onnx"] if command == "quantize" else []))
        assert done.returncode == 1 and "nothing would be converted to float16" in done.stderr, done.stderr


def test_float16_model_converts_to_bfloat16(kvant, onnx_model, tmp_path):
    model, out = half(onnx_model("unet"), tmp_path / "half.onnx"), tmp_path / "brain.onnx"
    done = kvant("quantize", model, "--preset", "BF16_MODEL", "-o", out)
    assert done.returncode == 0, done.stderr
    check(out, model)
    large = {t.data_type for t in onnx.load(out).graph.initializer if np.prod(t.dims) > 1024}
    assert large == {TensorProto.BFLOAT16}


def test_float64_model_converts_to_float16(kvant, tmp_path):
    rng = np.random.default_rng(0)
    first, second = (numpy_helper.from_array(rng.standard_normal((64, 64)), name) for name in ("w1", "w2"))
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Relu", ["h"], ["r"]), helper.make_node("MatMul", ["r", "w2"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n", 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "double", ends[:1], ends[1:], [first, second])
    model, out = tmp_path / "double.onnx", tmp_path / "half.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    done = kvant("quantize", model, "--preset", "FP16_MODEL", "-o", out)
    assert done.returncode == 0, done.stderr
    check(out, model)
    assert {t.data_type for t in onnx.load(out).graph.initializer} == {TensorProto.FLOAT16}
    x = {"x": rng.standard_normal((4, 64))}
    a, b = (onnxruntime.InferenceSession(p, providers=["CPUExecutionProvider"]).run(None, x)[0] for p in (model, out))
    assert np.abs(a - b).max() < 0.02 * np.abs(a).max()


@pytest.mark.parametrize("activation", ["int4", "uint4"])
@pytest.mark.parametrize("weight", ["int4", "uint4", "int8", "uint8", "int16"])
def test_int4_activations_are_refused_by_the_plan_or_run(kvant, onnx_model, tmp_path, activation, weight):
    """ONNX Runtime makes QLinearConv of 4-bit data with 8-bit weights and a MaxPool of 4-bit codes, for which it has no kernels."""
    for name in ("unet", "yolo", "bert"):
        model = onnx_model(name)
        options = [model, "--preset", "A8W8", "--activation", activation, "--weight", weight]
        planned = kvant("plan", *options)
        found = {node.op_type for node in onnx.load(model).graph.node}
        refused = "Conv" in found and weight.endswith("int8") or bool(found & {"MaxPool", "Clip"})
        assert (planned.returncode, "has no kernel for" in planned.stderr) == ((1, True) if refused else (0, False)), planned.stderr
        if not refused:
            done = kvant("quantize", *options, "--data", model.with_suffix(".calib.npz"), "--num-samples", 2, "-o", tmp_path / f"{name}.onnx")
            assert done.returncode == 0, done.stderr


def test_int4_types_raise_the_ir_version(kvant, onnx_model, tmp_path):
    model, out = onnx_model("bert"), tmp_path / "out.onnx"
    options = ["--preset", "A8W4", "--form", "microsoft", "--data", model.with_suffix(".calib.npz"), "--num-samples", 2]
    done = kvant("quantize", model, *options, "-o", out)
    assert done.returncode == 0, done.stderr
    assert onnx.load(out).ir_version >= 10
    onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("preset", ["A8W8", "U8S8_AAWS", "U8U8_AAWA"])
@pytest.mark.parametrize("name", ["unet", "mobilenet_v2", "yolo", "bert"])
def test_integer_operators_match_their_pairs(kvant_onnx, onnx_model, tmp_path, name, preset):
    model = onnx_model(name)
    data, test = (model.with_suffix(f".{kind}.npz") for kind in ("calib", "test"))
    pairs = kvant_onnx(model, preset, data, tmp_path / "pairs.onnx")
    path = kvant_onnx(model, preset, data, tmp_path / "integers.onnx", "--layout", "qoperator")
    check(path, model)
    count = operators(path)
    assert count["Conv"] == count["Gemm"] == count["MatMul"] == 0
    products = count["QLinearConv"] + count["QGemm"] + count["QLinearMatMul"]
    float_count = operators(pairs)
    assert products == float_count["Conv"] + float_count["Gemm"] + float_count["MatMul"]
    assert count["DequantizeLinear"] < float_count["DequantizeLinear"] / 2
    if preset.startswith("U8S8"):
        path = onnx_oracle.with_unsigned_weights(path, tmp_path / "unsigned.onnx")
    a, b = (onnx_oracle.sqnr(model, p, test) for p in (path, pairs))
    assert all(a[output] >= b[output] - 0.5 for output in a), (a, b)


def test_types_without_kernels_are_refused(kvant, onnx_model, tmp_path):
    done = kvant("quantize", onnx_model("recurrent"), "--preset", "UINT8_DYNAMIC_QUANT", "--weight", "int4", "-o", tmp_path / "x.onnx")
    assert done.returncode != 0 and "only int8 and uint8" in done.stderr
