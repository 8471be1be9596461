"""Layouts other than Q/DQ pairs through kvant: dynamic quantization beside onnxruntime's, whole models in 16-bit floats, and
integer operators beside the pairs they stand for. All are valid models; onnxruntime runs them as they are."""

import collections

import numpy as np
import onnx
import pytest
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
def test_dynamic_is_no_further_from_the_float_model_than_onnxruntimes(made, onnx_model, tmp_path, name, preset):
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
def test_dynamic_convolutions_are_no_further_either(made, onnx_model, tmp_path, name):
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


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "unet", "yolo", "bert", "minilm", "decoder", "recurrent"])
def test_float16_is_near_and_half_the_size(made, onnx_model, name):
    model, path = onnx_model(name), made(name, "FP16_MODEL")
    check(path, model)
    found = onnx_oracle.sqnr(model, path, model.with_suffix(".test.npz"))
    assert min(found.values()) > LEAST.get(name, 50), found
    floats = lambda p: sum(np.prod(t.dims) * 4 for t in onnx.load(p).graph.initializer if t.data_type == onnx.TensorProto.FLOAT)  # noqa: E731
    assert floats(path) < 0.05 * floats(model)


@pytest.mark.parametrize("name", ["resnet50", "unet", "yolo", "bert", "decoder", "recurrent"])
def test_bfloat16_is_valid(made, onnx_model, name):
    # onnxruntime's CPU kernels know no bfloat16: types are all that can be checked here.
    model, path = onnx_model(name), made(name, "BF16_MODEL")
    check(path, model)
    large = [t.data_type for t in onnx.load(path).graph.initializer if np.prod(t.dims) > 1024 and t.data_type != onnx.TensorProto.INT64]
    assert large and set(large) == {onnx.TensorProto.BFLOAT16}


def test_a_float16_model_is_left(made, kvant, tmp_path):
    again = tmp_path / "again.onnx"
    done = kvant("quantize", made("unet", "FP16_MODEL"), "--preset", "FP16_MODEL", "-o", again)
    assert done.returncode == 0, done.stderr
    assert operators(again) == operators(made("unet", "FP16_MODEL"))


@pytest.mark.parametrize("preset", ["A8W8", "U8S8_AAWS", "U8U8_AAWA"])
@pytest.mark.parametrize("name", ["unet", "mobilenet_v2", "yolo", "bert", "resnet50"])
def test_integer_operators_compute_what_their_pairs_do(kvant_onnx, onnx_model, tmp_path, name, preset):
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
