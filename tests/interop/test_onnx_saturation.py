"""What a default session of onnxruntime makes of int8 weights: its kernels saturate on processors without VNNI, and Kvant tells."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture(scope="module")
def place(module_path, kvant_onnx):  # which finds the library of onnxruntime
    """A perceptron with weights as torch draws them, evenly: half of their codes are beyond half of the range."""
    root, random = module_path("saturation"), np.random.default_rng(0)
    sizes = [20, 64, 64, 10]
    weights = [random.uniform(-0.3, 0.3, pair).astype("f") for pair in zip(sizes, sizes[1:])]
    nodes = [helper.make_node("Gemm", [f"x{i}" if i else "x", f"w{i}"], [f"y{i}"]) for i in range(3)]
    nodes += [helper.make_node("Relu", [f"y{i}"], [f"x{i + 1}"]) for i in range(3)]
    value = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width])
    constants = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    graph = helper.make_graph([nodes[i] for i in (0, 3, 1, 4, 2)], "mlp", [value("x", 20)], [value("y2", 10)], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), root / "mlp.onnx")
    np.savez(root / "data.npz", x=random.standard_normal((64, 20)).astype("f"))
    return root


def output(path, data):
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": data})[0].astype(np.float64)


@pytest.mark.parametrize("options", [[], ["--activation", "uint8"], ["--weight", "uint8"], ["--reduce-range"]], ids=lambda o: "-".join(o) or "A8W8")
def test_eval_matches_a_default_session(kvant, place, options):
    model, data, out = place / "mlp.onnx", place / "data.npz", place / f"q{''.join(options)}.onnx"
    made = kvant("quantize", model, "--preset", "A8W8", "--data", data, *options, "-o", out)
    assert made.returncode == 0, made.stderr
    wide = not {"--weight", "--reduce-range"} & set(options)
    assert ("can saturate" in made.stderr) == wide, made.stderr
    assert ("can saturate" in kvant("verify", out, "--wide").stdout) == wide

    done = kvant("eval", out, "--reference", model, "--data", data, "--runtime", "ort", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["outputs"][0]
    x = np.load(data)["x"]
    r, q = output(model, x), output(out, x)
    measured = 10 * np.log10((r**2).sum() / ((r - q) ** 2).sum())
    assert found["sqnr_db"] == pytest.approx(measured, abs=0.1)
    codes = found["unoptimized_sqnr_db"]
    assert codes > 30 and ("integer kernels" in done.stderr) == (measured < codes - 1)
    assert wide or measured > 30


def test_quantize_reports_match_a_default_session(kvant, place):
    model, data, out = place / "mlp.onnx", place / "data.npz", place / "reported.onnx"
    arguments = ["quantize", model, "--preset", "A8W8", "--data", data, "--num-samples", "32", "-o", out, "--runtime", "ort"]
    done = kvant(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    quality = json.loads(done.stdout)["quality"]
    x = np.load(data)["x"][32:]
    r, q = output(model, x), output(out, x)
    measured = 10 * np.log10((r**2).sum() / ((r - q) ** 2).sum())
    [found] = quality["outputs"]
    assert found["sqnr_db"] == pytest.approx(measured, abs=0.1)
    if measured > found["unoptimized_sqnr_db"] - 3:
        pytest.skip("this processor does not saturate")
    assert found["unoptimized_sqnr_db"] > measured + 5
    gated = kvant(*arguments, "--overwrite", "--min-sqnr", str(measured + 3), "--report", place / "r.json")
    assert gated.returncode == 1 and "without graph optimizations" in gated.stderr, gated.stderr
    suggestions = json.loads((place / "r.json").read_text())["quality"]["suggestions"]
    assert [remedy["option"] for remedy in suggestions[:2]] == ["--reduce-range", "--weight uint8"]
