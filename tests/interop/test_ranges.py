"""Ranges in files of other tools: onnxruntime's own code reads what Kvant writes, and Kvant what onnxruntime writes."""

import json
import struct

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization import calibrate, quant_utils
from onnxruntime.quantization.CalTableFlatBuffers import TrtTable

SAMPLES = 16


class Reader(quantization.CalibrationDataReader):
    def __init__(self, values):
        self.values = iter(values)

    def get_next(self):
        value = next(self.values, None)
        return None if value is None else {"x": value[None]}


@pytest.fixture(scope="module")
def net(module_path):
    """A small network with data: `net.onnx` and `calib.npz` in a directory."""
    root = module_path("ranges")
    rng = np.random.default_rng(7)
    weight = lambda name, *shape: numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)  # noqa: E731
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["conv"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"], "relu"),
        helper.make_node("Conv", ["relu", "w2"], ["features"], "conv2"),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["y"], "gemm"),
    ]
    constants = [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 8, 1, 1), weight("w3", 8, 4), weight("b3", 4)]
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    graph = helper.make_graph(nodes, "net", [value("x", [1, 3, 8, 8])], [value("y", [1, 4])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, root / "net.onnx")
    np.savez(root / "calib.npz", x=rng.standard_normal((SAMPLES, 3, 8, 8)).astype(np.float32))
    return root


@pytest.fixture
def quantized(kvant, net):
    def run(out, preset, *options):
        done = kvant("quantize", net / "net.onnx", "--preset", preset, "-o", out, "--runtime", "rten", *options)
        assert done.returncode == 0, done.stderr
        return onnx.load(out).graph

    return run


def scales(graph):
    """Scale and zero point by the tensor that QuantizeLinear reads."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            # The input of a graph output's QuantizeLinear is the output's tensor under another name.
            name = node.input[0].removesuffix("_QuantizeLinear_Input")
            found[name] = [constants[name].item() for name in node.input[1:]]
    return found


def calibrated(net, preset_method=quantization.CalibrationMethod.MinMax):
    """The ranges that onnxruntime's calibrator finds."""
    augmented = net / "augmented.onnx"
    calibrator = calibrate.create_calibrator(
        net / "net.onnx", augmented_model_path=str(augmented), calibrate_method=preset_method
    )
    calibrator.collect_data(Reader(np.load(net / "calib.npz")["x"]))
    return calibrator.compute_data()


def test_onnxruntime_quantizes_with_the_table_of_kvant(net, quantized, tmp_path):
    table = tmp_path / "calibration.json"
    ours = quantized(tmp_path / "ours.onnx", "U8S8_AAWS", "--data", net / "calib.npz", "--calibration-method", "minmax",
                     "--save-ranges", table)  # fmt: skip
    read = calibrate.load_tensors_data(table)
    theirs = calibrated(net)
    assert read.calibration_method == calibrate.CalibrationMethod.MinMax
    for name, data in read.items():
        low, high = (float(end.item()) for end in data.range_value)
        expected = [float(np.asarray(end).item()) for end in theirs["relu" if name == "conv" else name].range_value]
        np.testing.assert_allclose([low, high], expected, rtol=1e-4, atol=1e-5, err_msg=name)
    out = tmp_path / "theirs.onnx"
    quantization.quantize_static(
        net / "net.onnx",
        out,
        None,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        calibration_cache_path=table,
    )
    made = scales(onnx.load(out).graph)
    for name, (scale, zero) in scales(ours).items():
        assert made[name][1] == zero, name
        np.testing.assert_allclose(made[name][0], scale, rtol=1e-6, err_msg=name)


def test_tables_of_onnxruntime_are_read(net, quantized, tmp_path):
    data = calibrated(net)
    (tmp_path / "dict").mkdir()
    # Without the tensor that is not quantized, and in both forms of its JSON.
    quant_utils.write_calibration_table(dict(data.items()), str(tmp_path / "dict"))
    calibrate.save_tensors_data(data, tmp_path / "data.json")
    graphs = [
        quantized(tmp_path / f"{at}.onnx", "U8S8_AAWS", "--ranges", file)
        for at, file in enumerate([tmp_path / "dict" / "calibration.json", tmp_path / "data.json"])
    ]
    assert scales(graphs[0]) == scales(graphs[1])
    for name, (scale, zero) in scales(graphs[0]).items():
        low, high = (float(np.asarray(end).item()) for end in data[name].range_value)
        low, high = min(low, 0.0), max(high, 0.0)
        np.testing.assert_allclose(scale, (high - low) / 255, rtol=1e-6, err_msg=name)
        assert abs(zero - round(-low / scale)) <= 1, name
    # Its tables for execution providers have the larger end of a range.
    for at, file in enumerate(["calibration.flatbuffers", "calibration.cache"]):
        graph = quantized(tmp_path / f"magnitudes{at}.onnx", "A8W8", "--ranges", tmp_path / "dict" / file)
        for name, (scale, _) in scales(graph).items():
            high = max(float(np.asarray(end).item()) for end in data[name].range_value)
            np.testing.assert_allclose(scale, high / 127, rtol=1e-6, err_msg=name)


def test_tables_for_execution_providers(net, quantized, tmp_path):
    """Read as ONNX Runtime's providers read them, with its schema and line by line."""
    known = scales(quantized(tmp_path / "net.onnx", "A8W8", "--data", net / "calib.npz", "--save-ranges", tmp_path / "c.cache"))
    lines = (tmp_path / "c.cache").read_text().splitlines()
    assert lines[0] == "TRT-8601-EntropyCalibration2"
    cache = {}
    for line in lines[1:]:
        name, _, digits = line.partition(":")
        cache[name] = struct.unpack("!f", bytes.fromhex(digits.strip()))[0]
    assert {name: cache[name] for name in known} == {name: np.float32(scale) for name, (scale, _) in known.items()}
    quantized(tmp_path / "again.onnx", "A8W8", "--ranges", tmp_path / "c.cache", "--save-ranges", tmp_path / "c.flatbuffers")
    table = TrtTable.TrtTable.GetRootAs((tmp_path / "c.flatbuffers").read_bytes(), 0)
    entries = [table.Dict(at) for at in range(table.DictLength())]
    magnitudes = {entry.Key().decode(): float(entry.Value()) for entry in entries}
    assert magnitudes.keys() == cache.keys()
    for name, magnitude in magnitudes.items():
        np.testing.assert_allclose(magnitude, 127 * cache[name], rtol=1e-6, err_msg=name)
    assert (tmp_path / "net.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()


@pytest.mark.parametrize("version", ["aimet", "aimet-1.0.0", "aimet-2.0.0"])
def test_encodings_are_those_of_the_graph(net, quantized, tmp_path, version):
    file = tmp_path / "net.encodings"
    options = "--data", net / "calib.npz", "--per-channel", "--save-ranges", file, "--ranges-format", version
    known = scales(quantized(tmp_path / "net.onnx", "U8S8_AAWS", *options))
    encodings = json.loads(file.read_text())
    weight = numpy_helper.to_array(next(t for t in onnx.load(net / "net.onnx").graph.initializer if t.name == "w1"))
    expected = np.abs(weight).reshape(8, -1).max(axis=1) / 127
    for name, (scale, zero) in known.items():
        if version == "aimet":
            [found] = encodings["activation_encodings"][name]
            assert (found["scale"], found["offset"], found["bitwidth"], found["is_symmetric"]) == (scale, -zero, 8, "False")
            np.testing.assert_allclose([found["min"], found["max"]], [-zero * scale, (255 - zero) * scale])
            of_weight = [channel["scale"] for channel in encodings["param_encodings"]["w1"]]
            assert {(channel["offset"], channel["is_symmetric"]) for channel in encodings["param_encodings"]["w1"]} == {(-128, "True")}
        elif version == "aimet-1.0.0":
            found = {tensor["name"]: tensor for tensor in encodings["activation_encodings"]}[name]
            assert (found["scale"], found["offset"], found["bw"], found["enc_type"]) == ([scale], [-zero], 8, "PER_TENSOR")
            of_weight = {tensor["name"]: tensor for tensor in encodings["param_encodings"]}["w1"]["scale"]
        else:
            tensors = {tensor["name"]: tensor for tensor in encodings["encodings"]}
            assert (tensors[name]["y_scale"], tensors[name]["output_dtype"]) == (scale, "uint8")
            assert tensors[name].get("y_zero_point", 0) == zero
            assert (tensors["w1"]["axis"], tensors["w1"]["output_dtype"]) == (0, "int8")
            of_weight = tensors["w1"]["y_scale"]
        np.testing.assert_allclose(of_weight, expected, rtol=1e-6)
