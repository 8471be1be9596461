"""`kvant graph to-qoperator`, `to-qdq` and `retype`: what onnxruntime computes with the graphs they write, in round trips."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_packaged
from onnx_packaged import NETWORKS, QDQ, QOPERATOR, by_onnxruntime

# Where to get a quantized graph from, by its name.
MAKERS = ("kvant A8W8", "kvant A8W8 channels", "kvant U8S8_AAWS", "onnxruntime u8s8", "onnxruntime s8s8")

# Values whose codes may differ by one lie so close to the middle between two codes, in codes. Measured: less than 2e-5.
TIE = 1e-4
# onnxruntime's kernel sums exponentials as integers, and rounds elsewhere.
INEXACT = ("QLinearSoftmax",)


def session(path, optimized):
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    source = path if isinstance(path, bytes) else str(path)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def outputs(path, samples, optimized=False):
    opened = session(path, optimized)
    first = {name: values[:1] for name, values in samples.items()}
    return opened.run(None, {i.name: first[i.name] for i in opened.get_inputs()})


def operators(path):
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def initializers(path):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}


def with_outputs(model, names):
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return session(model.SerializeToString(), False)


def compare_operators(pairs, other, samples):
    """Asserts that each operator of one graph gives the codes that the pairs of another give of the same codes: codes differ by at most one, and
    only where the value is in the middle between two codes. Returns how many tensors were compared.

    Outputs of whole networks do not show this: where one code of one tensor of detection changes by one, its pairs give outputs of 2 to 14 dB beside
    those without the change."""
    first = {name: values[:1] for name, values in samples.items()}
    model, quantized = onnx.load(str(other)), onnx.load(str(pairs))
    makers = {output: node.op_type for node in model.graph.node for output in node.output if output}
    ends = [output.name for output in model.graph.output]
    given = dict(zip(makers, with_outputs(model, makers).run(None, first)))
    quantizers = {node.output[0]: node for node in quantized.graph.node if node.op_type == "QuantizeLinear" and node.output[0] in given}
    feeds = dict(first)
    for node in quantized.graph.node:
        for at, name in enumerate(node.input):
            if name in quantizers:
                node.input[at] = f"given {name}"
                feeds[node.input[at]] = given[name]
    code = lambda values: helper.np_dtype_to_tensor_dtype(values.dtype)  # noqa: E731
    quantized.graph.input.extend(helper.make_tensor_value_info(name, code(feeds[name]), feeds[name].shape) for name in feeds if name not in first)
    floats = [node.input[0] for node in quantizers.values() if node.input[0] not in first]
    names = list(dict.fromkeys([*quantizers, *floats, *ends]))
    opened = with_outputs(quantized, names)
    found = first | dict(zip(names, opened.run(None, {i.name: feeds[i.name] for i in opened.get_inputs()})))
    scales = initializers(pairs)
    for name, node in quantizers.items():
        apart = np.abs(found[name].astype(int) - given[name].astype(int))
        assert apart.max() <= 1, (name, makers[name], apart.max())
        values = found[node.input[0]][apart > 0].astype(np.float64) / scales[node.input[1]]
        from_tie = np.abs(values - np.floor(values) - 0.5)
        assert makers[name] in INEXACT or from_tie.max(initial=0) < TIE, (name, makers[name], from_tie.max())
    for name in ends:
        if makers[name] != "DequantizeLinear":
            np.testing.assert_allclose(found[name], given[name], rtol=1e-4, atol=1e-5)
    return len(quantizers)


@pytest.fixture
def graph(kvant, tmp_path):
    """graph(tool, source, name, *options) -> (path of the result, the changes)."""

    def run(tool, source, name, *options):
        done = kvant("graph", tool, source, *options, "-o", tmp_path / name, "--overwrite", "--json")
        assert done.returncode == 0, done.stderr
        onnx.checker.check_model(str(tmp_path / name), full_check=True)
        return tmp_path / name, json.loads(done.stdout)["changes"]

    return run


@pytest.fixture(scope="session")
def quantized(kvant_onnx, tmp_path_factory):
    """quantized(network, maker, form) -> path, made once."""
    place = tmp_path_factory.mktemp("quantized")
    made = {}

    def make(name, maker, form=QDQ):
        key = (name, maker, form)
        if key not in made:
            network, out = NETWORKS[name], place / f"{name} {maker} {form}.onnx"
            tool, preset, *options = maker.split()
            if tool == "onnxruntime":
                by_onnxruntime(network, preset, form, out)
            else:
                data = place / f"{name}.npz"
                np.savez(data, **network.samples(3))
                options = ["--per-channel"] if options else []
                kvant_onnx(network.file(), preset, data, out, "--no-verify", *options)
            made[key] = out
        return made[key]

    return make


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_qoperator_and_back_compute_what_the_pairs_do(quantized, graph, name, maker):
    source = quantized(name, maker)
    samples = NETWORKS[name].samples(1)
    joined, changes = graph("to-qoperator", source, "joined.onnx")
    assert changes["operators"] > 0
    assert any(operator.startswith("QLinear") or operator == "QGemm" for operator in operators(joined))
    back, reverse = graph("to-qdq", joined, "back.onnx")
    assert reverse["left"] == 0
    assert not any(operator.startswith("QLinear") or operator == "QGemm" for operator in operators(back))
    # Codes and scales are those of the source, and there are no others but those of biases.
    held, kept = initializers(source), initializers(back)
    codes = {key: values for key, values in held.items() if values.dtype in (np.int8, np.uint8, np.int32) and values.size > 1}
    missing = [key for key, values in codes.items() if key in kept and not np.array_equal(kept[key], values)]
    assert not missing
    assert compare_operators(source, joined, samples) >= changes["operators"]
    assert compare_operators(source, back, samples) >= changes["operators"]
    # onnxruntime makes the same kernels of the pairs.
    if changes["left"] == 0 and "s8s8" not in maker and "A8W8" not in maker:
        for a, b in zip(outputs(joined, samples, True), outputs(back, samples, True)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("types", ["u8s8", "s8s8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_integer_operators_of_onnxruntime_become_pairs(quantized, graph, name, types):
    source = quantized(name, f"onnxruntime {types}", QOPERATOR)
    samples = NETWORKS[name].samples(1)
    pairs, changes = graph("to-qdq", source, "pairs.onnx")
    left = {operator for operator in operators(pairs) if operator.startswith("Q") and operator != "QuantizeLinear"}
    assert changes["operators"] > 0 and not left
    assert compare_operators(pairs, source, samples) >= changes["operators"]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_retyped_codes_stand_for_the_same_values(quantized, graph, name, maker):
    source = quantized(name, maker)
    samples = NETWORKS[name].samples(1)
    types = "s8s8" if "u8s8" in maker.lower() else "u8s8"
    other, changes = graph("retype", source, "other.onnx", "--to", types)
    assert changes["activations"] > 0 and changes["left"] == 0
    of_activations = np.int8 if types == "s8s8" else np.uint8
    model = onnx.load(str(other))
    held = initializers(other)
    assert all(held[node.input[2]].dtype == of_activations for node in model.graph.node if node.op_type == "QuantizeLinear")
    back, _ = graph("retype", other, "back.onnx", "--to", "u8s8" if types == "s8s8" else "s8s8")
    expected = outputs(source, samples)
    for path in (other, back):
        for a, b in zip(expected, outputs(path, samples)):
            np.testing.assert_array_equal(a, b)
    # Constants that were int8 beside uint8 activations are uint8 now; all others have the bytes that they had.
    before, after = initializers(source), initializers(back)
    same = [key for key, values in before.items() if key in after and values.dtype == after[key].dtype]
    assert len(same) > len(before) / 2 and all(np.array_equal(after[key], before[key]) for key in same)


def byte_model(nodes, ends, held, opset=13):
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    tensors = [numpy_helper.from_array(np.asarray(values), name) for name, values in held.items()]
    return helper.make_model(helper.make_graph(nodes, "graph", *ends, tensors), opset_imports=opsets, ir_version=8)


def one_operator(operator, element, rng):
    """A graph with one integer operator on random codes: (model, feeds)."""
    info = np.iinfo(element)
    code = {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8}[element]
    codes = lambda *shape: rng.integers(info.min, info.max + 1, shape).astype(element)  # noqa: E731
    point = lambda: element(rng.integers(info.min // 2 + 60, info.min // 2 + 120))  # noqa: E731
    held = {"xs": np.float32(0.05), "xz": point(), "ys": np.float32(0.07), "yz": point(), "as": np.float32(0.03), "az": point()}
    x, a = ("x", "xs", "xz"), ("a", "as", "az")
    feeds, attributes, domain = {"x": codes(1, 4, 6, 6)}, {}, "com.microsoft"
    match operator:
        case "QLinearConv":
            held |= {"w": rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8), "ws": rng.uniform(0.01, 0.02, 8).astype(np.float32)}
            held |= {"wz": np.zeros(8, np.int8), "b": rng.integers(-3000, 3000, 8).astype(np.int32)}
            held["ys"], inputs, attributes, domain = np.float32(0.3), [*x, "w", "ws", "wz", "ys", "yz", "b"], {"pads": [1] * 4}, ""
        case "QLinearMatMul":
            held |= {"w": rng.integers(-127, 128, (6, 5)).astype(np.int8), "ws": rng.uniform(0.01, 0.02, 5).astype(np.float32)}
            held |= {"wz": np.zeros(5, np.int8), "ys": np.float32(0.2)}
            inputs, domain = [*x, "w", "ws", "wz", "ys", "yz"], ""
        case "QGemm":
            held |= {"w": rng.integers(-127, 128, (7, 16)).astype(np.int8), "ws": rng.uniform(0.01, 0.02, 7).astype(np.float32)}
            held |= {"wz": np.zeros(7, np.int8), "b": rng.integers(-3000, 3000, 7).astype(np.int32), "ys": np.float32(0.3)}
            feeds, attributes = {"x": codes(3, 16)}, {"transB": 1, "alpha": 1.0}
            inputs = [*x, "w", "ws", "wz", "b", "ys", "yz"]
        case "QLinearAdd" | "QLinearMul":
            feeds["a"] = codes(1, 4, 1, 6)
            inputs = [*x, *a, "ys", "yz"]
            held["ys"] = np.float32(0.07 if operator == "QLinearAdd" else 0.2)
        case "QLinearConcat":
            feeds["a"] = codes(1, 2, 6, 6)
            inputs, attributes = ["ys", "yz", *x, *a], {"axis": 1}
        case _:
            inputs = [*x, "ys", "yz"]
            attributes = {"QLinearLeakyRelu": {"alpha": 0.1}, "QLinearAveragePool": {"kernel_shape": [2, 2]}, "QLinearSoftmax": {"axis": -1, "opset": 13}}.get(operator, {})
            if operator in ("QLinearSigmoid", "QLinearSoftmax"):
                held |= {"ys": np.float32(1 / 256), "yz": element(info.min)}
    node = helper.make_node(operator, inputs, ["y"], "n", domain=domain, **attributes)
    declared = [helper.make_tensor_value_info(name, code, values.shape) for name, values in feeds.items()]
    made = byte_model([node], (declared, [helper.make_tensor_value_info("y", code, None)]), held)
    shape = session(made.SerializeToString(), False).run(None, feeds)[0].shape
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", code, shape))
    return made, feeds


ONE = ["QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu"]
ONE += ["QLinearSoftmax", "QLinearGlobalAveragePool", "QLinearAveragePool"]


@pytest.mark.parametrize("element", [np.uint8, np.int8])
@pytest.mark.parametrize("operator", ONE)
def test_pairs_give_the_codes_of_the_kernel_within_one(graph, tmp_path, operator, element):
    model, feeds = one_operator(operator, element, np.random.default_rng(5))
    source = tmp_path / "one.onnx"
    onnx.save(model, source)
    pairs, changes = graph("to-qdq", source, "pairs.onnx")
    assert changes == {"operators": 1, "left": 0}
    expected, found = (session(path, False).run(None, feeds)[0] for path in (source, pairs))
    assert expected.dtype == found.dtype and len(np.unique(expected)) > 3
    assert np.abs(expected.astype(int) - found.astype(int)).max() <= 1
    joined, changes = graph("to-qoperator", pairs, "joined.onnx")
    assert changes == {"operators": 1, "left": 0} and operator in operators(joined)
    np.testing.assert_array_equal(session(joined, False).run(None, feeds)[0], expected)


@pytest.mark.parametrize("name", ["tinycnn", "tinytransformer"])
def test_sixteen_bits_and_biases_are_retyped_exactly(kvant_onnx, kvant, graph, tmp_path, name):
    network = NETWORKS[name]
    data = onnx_packaged.DATA / f"{name}.calib.npz"
    wide = kvant_onnx(network.file(), "A16W8", data, tmp_path / "wide.onnx")
    samples = network.samples(1)
    held = {node.op_type: initializers(wide)[node.input[2]].dtype for node in onnx.load(str(wide)).graph.node if node.op_type == "QuantizeLinear"}
    signed = held["QuantizeLinear"] == np.int16
    other, _ = graph("retype", wide, "other.onnx", "--to", "u16s8" if signed else "s16s8")
    for a, b in zip(outputs(wide, samples), outputs(other, samples)):
        np.testing.assert_array_equal(a, b)
    bytes_ = kvant_onnx(network.file(), "A8W8", data, tmp_path / "bytes.onnx")
    done = kvant("graph", "retype", bytes_, "--bias", "int16", "-o", tmp_path / "narrow.onnx")
    codes = [values for values in initializers(bytes_).values() if values.dtype == np.int32]
    fits = all(np.abs(values).max() < 2**15 for values in codes)
    assert (done.returncode == 0) == (fits and bool(codes)), done.stderr
    if done.returncode == 0:
        for a, b in zip(outputs(bytes_, samples), outputs(tmp_path / "narrow.onnx", samples)):
            np.testing.assert_array_equal(a, b)
    else:
        assert "int16 does not hold" in done.stderr or "no codes" in done.stderr, done.stderr
