"""Kvant's graphs in a default session of onnxruntime, whose optimizations make int32 codes of biases and kernels that bound their scales."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

NODE = helper.make_node


def write(path, nodes, weights, shape, outputs):
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    constants = [numpy_helper.from_array(array.astype("f"), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", [value("x", ["N", *shape])], [value("out", ["N", outputs])], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def place(module_path, kvant_onnx):  # which finds the library of onnxruntime
    root, random = module_path("default-session"), np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape)
    head = [NODE("GlobalAveragePool", ["r"], ["p"], name="pool"), NODE("Flatten", ["p"], ["f"]), NODE("Gemm", ["f", "v", "c"], ["out"], transB=1)]
    conv = [NODE("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]), NODE("Relu", ["a"], ["r"])]
    weights = {"w": draw(16, 3, 3, 3) * 0.3, "b": draw(16), "v": draw(10, 16) * 0.1, "c": draw(10)}
    write(root / "biases.onnx", conv + head, weights, [3, 12, 12], 10)
    np.savez(root / "biases.npz", x=(draw(48, 3, 12, 12) * 2e-2).astype("f"))
    # Averages of normalized channels are next to nothing.
    norm = [NODE("Conv", ["x", "w"], ["a"]), NODE("InstanceNormalization", ["a", "g", "o"], ["r"])]
    weights = {"w": draw(16, 3, 3, 3), "g": np.ones(16), "o": np.zeros(16), "v": draw(10, 16), "c": draw(10)}
    write(root / "pool.onnx", norm + head, weights, [3, 12, 12], 10)
    np.savez(root / "pool.npz", x=draw(48, 3, 12, 12).astype("f"))
    return root


def sqnr(float_path, path, data):
    run = lambda path: ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": data})[0].astype(np.float64)
    r, q = run(float_path), run(path)
    return 10 * np.log10((r**2).sum() / ((r - q) ** 2).sum())


KEEP = ["--override", "b=keep", "--override", "c=keep"]


@pytest.mark.parametrize("options", [[], ["--bias", "float"], ["--bias", "int16"], KEEP, ["--form", "microsoft"], ["--per-channel"]], ids=" ".join)
@pytest.mark.parametrize("preset", ["A16W16", "INT16_CNN", "A16W8", "S16S8_ASWS", "U16S8_AAWS", "S16S16_MIXED_S8S8", "INT16_TRANSFORMER"])
def test_16_bit_bias_codes_run_in_a_default_session(kvant, place, preset, options):
    model, data, out = place / "biases.onnx", place / "biases.npz", place / f"{preset}{''.join(options)}.onnx".replace("--", "-")
    done = kvant("quantize", model, "--preset", preset, "--data", data, "--num-samples", "32", *options, "-o", out)
    assert done.returncode == 0, done.stderr
    # Weights of 8 bits bound it for some.
    least = 70 if preset in ("A16W16", "INT16_CNN", "INT16_TRANSFORMER") else 40
    assert sqnr(model, out, np.load(data)["x"][32:]) > least


@pytest.mark.parametrize("options", [[], ["--bias", "float"]], ids=" ".join)
def test_biases_beyond_int32_run_in_a_default_session(kvant, place, options):
    model, data, out = place / "large.onnx", place / "large.npz", place / f"bytes{len(options)}.onnx"
    source = onnx.load(place / "biases.onnx")
    for constant in source.graph.initializer:
        if constant.name in "bv":
            factor = 1e6 if constant.name == "b" else 1e-3
            constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant) * np.float32(factor), constant.name))
    onnx.save(source, model)
    np.savez(data, x=np.load(place / "biases.npz")["x"])
    done = kvant("quantize", model, "--preset", "A8W8", "--data", data, *options, "-o", out, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert sqnr(model, out, np.load(data)["x"]) > 30


def test_pools_the_kernel_refuses_run_in_a_default_session(kvant, place):
    model, data, out = place / "pool.onnx", place / "pool.npz", place / "pool.q.onnx"
    done = kvant("quantize", model, "--preset", "A8W8", "--data", data, "--num-samples", "32", "-o", out, "--json", "--min-sqnr", "20")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "p" in [name for name, _ in said["report"]["left_in_float"]] and said["quality"]["warnings"] == [], said
    assert sqnr(model, out, np.load(data)["x"][32:]) > 20
    # Such a graph of others is recognized.
    graph = onnx.load(out)
    graph.graph.initializer.extend([numpy_helper.from_array(np.float32(1e-9), "tiny"), numpy_helper.from_array(np.int8(0), "zero")])
    at = next(i for i, node in enumerate(graph.graph.node) if node.op_type == "GlobalAveragePool")
    pool = graph.graph.node[at]
    pool.output[0] = "p_float"
    pair = [NODE("QuantizeLinear", ["p_float", "tiny", "zero"], ["p_codes"]), NODE("DequantizeLinear", ["p_codes", "tiny", "zero"], ["p"])]
    nodes = [*graph.graph.node[: at + 1], *pair, *graph.graph.node[at + 1 :]]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    broken = place / "broken.onnx"
    onnx.save(graph, broken)
    with pytest.raises(Exception, match="out of computation range"):
        sqnr(model, broken, np.load(data)["x"][32:])
    done = kvant("verify", broken, "--for", "onnxruntime", "--wide")
    assert done.returncode == 1 and "--override 'p_float=keep'" in done.stdout, done.stdout + done.stderr

def test_what_onnxruntime_cannot_open_fails_verification_and_is_not_written(kvant, place):
    """No rule of Kvant's knows it: onnxruntime is asked."""
    model, out = place / "mismatch.onnx", place / "mismatch.q.onnx"
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 3]), ("out", [5]))]
    weight = numpy_helper.from_array(np.linspace(-1, 1, 15, dtype="f").reshape(3, 5), "w")
    # The first dimension is 2.
    axes = numpy_helper.from_array(np.array([0], dtype=np.int64), "axes")
    nodes = [NODE("MatMul", ["x", "w"], ["h"], name="product"), NODE("Squeeze", ["h", "axes"], ["out"], name="squeezed")]
    graph = helper.make_graph(nodes, "net", types[:1], types[1:], [weight, axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    verified = kvant("verify", model, "--json")
    [finding] = json.loads(verified.stdout)["findings"]
    assert (verified.returncode, finding["check"], finding["severity"]) == (1, "opening", "error")
    refused = kvant("quantize", model, "--preset", "WEIGHTS_INT8", "-o", out)
    assert refused.returncode == 1 and "does not open the result" in refused.stderr and "--no-verify" in refused.stderr
    assert not out.exists()
    assert kvant("quantize", model, "--preset", "WEIGHTS_INT8", "-o", out, "--no-verify").returncode == 0 and out.exists()


def test_float8_that_a_default_session_cannot_open_is_reported(kvant, place):
    model, data, out = place / "clip.onnx", place / "clip.npz", place / "clip.q.onnx"
    draw = np.random.default_rng(1).standard_normal
    nodes = [NODE("MatMul", ["x", "w"], ["a"], name="m"), NODE("Clip", ["a", "low", "high"], ["b"]), NODE("MatMul", ["b", "v"], ["out"], name="n")]
    write(model, nodes, {"w": draw((4, 5)), "v": draw((5, 3)), "low": np.array(-1), "high": np.array(1)}, [4], 3)
    np.savez(data, x=draw((32, 2, 4)).astype("f"))
    done = kvant("quantize", model, "--preset", "FP8", "--data", data, "--runtime", "ort", "-o", out)
    assert done.returncode == 0 and "warning: onnxruntime does not run it with its graph optimizations" in done.stderr, done.stderr
    assert kvant("verify", out, "--for", "onnxruntime").returncode == 1
