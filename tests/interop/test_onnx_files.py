"""ONNX models in files of other kinds: external data, models beyond what protobuf holds, and what must be refused."""

import os
import pathlib
import subprocess
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnx_large
import onnx_oracle
from conftest import BINARIES

HEAVY = pytest.mark.skipif(not os.environ.get("KVANT_HEAVY"), reason="$KVANT_HEAVY asks for tests of gigabytes")


def data_of(model):
    return model.with_suffix(".calib.npz")


def test_external_data_is_read(kvant_onnx, onnx_model, tmp_path):
    """Weights outside the model file change nothing."""
    inside = onnx_model("recurrent")
    outside = onnx_large.externalise(inside, tmp_path / "outside.onnx")
    results = [kvant_onnx(m, "A8W8", data_of(inside), tmp_path / f"q{i}.onnx") for i, m in enumerate((inside, outside))]
    found = [onnx_oracle.outputs(p, onnx_oracle.samples(inside.with_suffix(".test.npz"))) for p in results]
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])


def test_small_chain_has_finite_noise(kvant_onnx, tmp_path):
    model = onnx_large.write_chain(tmp_path / "chain.onnx", 0.003, width=128)
    out = kvant_onnx(model, "A8W8", data_of(model), tmp_path / "q.onnx")
    assert min(onnx_oracle.sqnr(model, out, data_of(model)).values()) > 10


def private_peak(command):
    """Exit code and the peak of private memory of a command, in bytes; mapped files do not count. Linux."""
    process, peak = subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True), 0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak, *(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))])
        except OSError:
            pass
        time.sleep(0.01)
    assert process.returncode == 0, process.stderr.read()
    return peak


@HEAVY
def test_three_gigabytes_within_one_of_private_memory(tmp_path):
    model = onnx_large.write_chain(tmp_path / "chain.onnx", 3)
    out = tmp_path / "q.onnx"
    peak = private_peak([BINARIES / "kvant", "quantize", model, "--preset", "A8W8", "--data", data_of(model), "-o", out])
    assert peak < 1e9
    assert sum(p.stat().st_size for p in tmp_path.glob("q.onnx*")) < 0.3 * 3e9
    onnx.checker.check_model(str(out))
    found = onnx_oracle.outputs(out, onnx_oracle.samples(data_of(model)))
    assert all(np.isfinite(v).all() and v.std() > 0 for v in found.values())


def relu_model(path, nodes=None, inputs=("x",), initializers=()):
    """A model of the given nodes between `x` and `y`, not checked."""
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])  # noqa: E731
    nodes = nodes or [helper.make_node("Relu", ["x"], ["y"], "relu")]
    graph = helper.make_graph(nodes, "g", [value(i) for i in inputs], [value("y")], list(initializers))
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    return path


def refused(kvant, model, data, tmp_path, *words):
    out = tmp_path / "q.onnx"
    done = kvant("quantize", model, "--preset", "A8W8", "--data", data, "-o", out)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "panicked" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not out.exists()


@pytest.fixture
def four(tmp_path):
    np.savez(tmp_path / "four.npz", x=np.ones((3, 4), np.float32))
    return tmp_path / "four.npz"


def test_truncated_file_is_refused(kvant, onnx_model, tmp_path):
    whole = onnx_model("recurrent")
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    refused(kvant, cut, data_of(whole), tmp_path, "cut.onnx")


def test_text_is_refused(kvant, four, tmp_path):
    (tmp_path / "text.onnx").write_text("this is no model\n" * 100)
    refused(kvant, tmp_path / "text.onnx", four, tmp_path, "text.onnx")


def test_cycle_is_refused(kvant, four, tmp_path):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], "first"), helper.make_node("Relu", ["a"], ["b"], "second"), helper.make_node("Relu", ["b"], ["y"], "last")]
    refused(kvant, relu_model(tmp_path / "cycle.onnx", nodes), four, tmp_path)


def test_missing_input_is_refused(kvant, four, tmp_path):
    model = relu_model(tmp_path / "hole.onnx", [helper.make_node("Add", ["x", "nowhere"], ["y"], "add")])
    refused(kvant, model, four, tmp_path, "nowhere")


def test_duplicate_tensor_is_refused(kvant, four, tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"], "one"), helper.make_node("Abs", ["x"], ["y"], "two")]
    refused(kvant, relu_model(tmp_path / "twice.onnx", nodes), four, tmp_path, "y")


def test_external_data_outside_the_folder_is_refused(kvant, four, tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    (tmp_path / "inner").mkdir()
    weight = onnx_large.external("w", [4], "../secret.bin", 0, 16)
    model = relu_model(tmp_path / "inner" / "escape.onnx", [helper.make_node("Add", ["x", "w"], ["y"], "add")], initializers=[weight])
    refused(kvant, model, four, tmp_path, "secret.bin")


def test_truncated_external_data_is_refused(kvant, four, tmp_path):
    (tmp_path / "short.bin").write_bytes(bytes(8))
    weight = onnx_large.external("w", [4], "short.bin", 0, 16)
    model = relu_model(tmp_path / "short.onnx", [helper.make_node("Add", ["x", "w"], ["y"], "add")], initializers=[weight])
    refused(kvant, model, four, tmp_path, "short.bin")


def test_data_without_the_input_is_refused(kvant, tmp_path):
    np.savez(tmp_path / "other.npz", other=np.ones((3, 4), np.float32), more=np.ones((3, 4), np.float32))
    refused(kvant, relu_model(tmp_path / "m.onnx"), tmp_path / "other.npz", tmp_path, "x")


def test_data_of_another_shape_is_refused(kvant, tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.ones((3, 5), np.float32))
    refused(kvant, relu_model(tmp_path / "m.onnx"), tmp_path / "wide.npz", tmp_path, "x")


def test_unknown_preset_is_refused(kvant, four, tmp_path):
    done = kvant("quantize", relu_model(tmp_path / "m.onnx"), "--preset", "A7W9", "--data", four, "-o", tmp_path / "q.onnx")
    assert done.returncode == 2 and "A7W9" in done.stderr


def test_output_is_not_overwritten_unasked(kvant, kvant_onnx, onnx_model, tmp_path):
    model = onnx_model("recurrent")
    out = kvant_onnx(model, "A8W8", data_of(model), tmp_path / "q.onnx")
    again = ["quantize", model, "--preset", "A8W8", "--data", data_of(model), "-o", out]
    assert kvant(*again).returncode != 0
    assert kvant(*again, "--overwrite").returncode == 0


def test_presets_and_passes_are_listed(kvant):
    presets, passes = kvant("list", "presets"), kvant("list", "passes")
    assert presets.returncode == passes.returncode == 0
    assert all(name in presets.stdout for name in ("XINT8", "A8W8", "A16W8", "BF16", "BFP16", "S8S8_AAWS", "U8S8_AAWS", "INT16_CNN"))
    assert len(passes.stdout.splitlines()) >= 10
