"""Sources that are not one plain graph of float32: If, Loop and Scan with weights inside, float16 and float64."""

import collections
import json
import pathlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnx_bodies

# Least SQNR in dB of the output. 8-bit activations of onnxruntime's dynamic products saturate on processors without VNNI.
LEAST = {"A8W8": 25, "WEIGHTS_INT8": 35, "INT8_DYNAMIC_QUANT": 8, "MATMUL_NBITS": 12}
TINYCNN = pathlib.Path(__file__).resolve().parents[2] / "crates/onnx/tests/data"
MODELS = onnx_bodies.BODIES | onnx_bodies.TYPES


@pytest.fixture(scope="module")
def place(module_path, kvant_onnx):  # which finds the library of onnxruntime
    """A directory of all the models and `data.npz`."""
    root = module_path("sources")
    for name, make in MODELS.items():
        onnx.save(make(), root / f"{name}.onnx")
    np.savez(root / "data.npz", **onnx_bodies.data())
    return root


def nodes(graph):
    """All nodes of a graph, those inside of others included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from nodes(inner)


def outputs(path, data):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}[session.get_inputs()[0].type]
    return np.stack([session.run(None, {"x": x.astype(dtype)})[0] for x in data["x"]])


def sqnr(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())


@pytest.mark.parametrize("runtime", ["ort", "rten"])
@pytest.mark.parametrize("preset", LEAST)
@pytest.mark.parametrize("name", MODELS)
def test_quantized_models_are_valid_and_close(kvant, place, name, preset, runtime):
    if name == "scan" and runtime == "rten" and preset == "A8W8":
        pytest.skip("the embedded engine has no Scan")
    model, out = place / f"{name}.onnx", place / f"{name}.{preset}.onnx"
    made = kvant("quantize", model, "--preset", preset, "--data", place / "data.npz", "--runtime", runtime, "-o", out, "--overwrite")
    assert made.returncode == 0, made.stderr
    onnx.checker.check_model(str(out), full_check=True)
    before, after = onnx.load(model).graph, onnx.load(out).graph
    assert [v.type.tensor_type.elem_type for v in (*before.input, *before.output)] == [
        v.type.tensor_type.elem_type for v in (*after.input, *after.output)
    ]
    data = onnx_bodies.data()
    found = sqnr(outputs(model, data), outputs(out, data))
    assert found > LEAST[preset], found


@pytest.mark.parametrize("name", onnx_bodies.BODIES)
def test_subgraph_weights_are_quantized_once(kvant, place, name):
    out = place / f"{name}.inside.onnx"
    assert kvant("quantize", place / f"{name}.onnx", "--preset", "WEIGHTS_INT8", "-o", out).returncode == 0
    graph = onnx.load(out).graph
    floats = [t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2]
    assert not floats
    made = {o for node in graph.node if node.op_type == "DequantizeLinear" for o in node.output}
    products = [node for node in nodes(graph) if node.op_type == "MatMul"]
    assert products and all(node.input[1] in made for node in products)


def test_node_with_a_subgraph_can_be_excluded(kvant, place):
    out = place / "if.excluded.onnx"
    assert kvant("quantize", place / "if.onnx", "--preset", "WEIGHTS_INT8", "-x", "if", "-o", out).returncode == 0
    inside = collections.Counter(n.input[1] for n in nodes(onnx.load(out).graph) if n.op_type == "MatMul" and n.name.startswith("then"))
    assert not any("DequantizeLinear" in name for name in inside if name != "outer_DequantizeLinear_Output"), inside


def test_graph_ends_become_float32_when_asked(kvant, place):
    out = place / "ends.onnx"
    options = ["--preset", "A8W8", "--data", place / "data.npz", "--enable-pass", "float-ends"]
    assert kvant("quantize", place / "float16.onnx", *options, "-o", out).returncode == 0
    graph = onnx.load(out).graph
    assert {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT}
    assert not [node for node in graph.node if node.op_type == "Cast"]


def test_nhwc_input_matches_nchw(kvant, tmp_path):
    model, data = TINYCNN / "tinycnn.float.onnx", dict(np.load(TINYCNN / "tinycnn.calib.npz"))
    np.savez(tmp_path / "nhwc.npz", **{name: np.moveaxis(picture, 1, -1) for name, picture in data.items()})
    plain, turned = tmp_path / "plain.onnx", tmp_path / "turned.onnx"
    for path, options in [(plain, ["--data", TINYCNN / "tinycnn.calib.npz"]), (turned, ["--data", tmp_path / "nhwc.npz", "--enable-pass", "nhwc-inputs"])]:
        made = kvant("quantize", model, "--preset", "A8W8", *options, "-o", path)
        assert made.returncode == 0, made.stderr
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    first, second = (ort.InferenceSession(p, options, providers=["CPUExecutionProvider"]) for p in (plain, turned))
    name = first.get_inputs()[0].name
    for picture in data.values():
        a = first.run(None, {name: picture})[0]
        b = second.run(None, {name: np.moveaxis(picture, 1, -1)})[0]
        assert (a == b).all() or sqnr(a, b) > 40
    # Measured against the float model with that one's data.
    told = []
    for path in (plain, turned):
        done = kvant("eval", path, "--reference", model, "--data", TINYCNN / "tinycnn.calib.npz", "--json")
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout)["outputs"][0]["sqnr_db"])
    assert abs(told[0] - told[1]) < 0.2, told
