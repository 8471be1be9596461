"""Each graph pass keeps what models compute, and shape inference says what onnx says.

Passes run through the example `simplify`. The models are those made here, and, where they are at hand, those of $KVANT_ONNX_MODELS
and of ../shared.
"""

import json
import os
import pathlib
import re
import subprocess

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnx_pass_models
from conftest import REPO, example

# What these change is what callers give and get; test_onnx_sources.py looks at them.
OF_THE_ENDS = {"float-ends", "nhwc-inputs"}
PASSES = sorted(re.findall(r'\bname: "([a-z0-9-]+)"', (REPO / "crates/onnx/src/pass/mod.rs").read_text()))
PASSES = [name for name in PASSES if name not in OF_THE_ENDS]


def find_models():
    folders = [REPO.parent / "shared/golden/onnx", REPO.parent / "shared/models/digits"]
    if "KVANT_ONNX_MODELS" in os.environ:
        folders.insert(0, pathlib.Path(os.environ["KVANT_ONNX_MODELS"]))
    files = [path for folder in folders for path in sorted(folder.glob("*.onnx"))]
    return [path for path in files if "golden" not in str(path) or path.name.endswith(".float.onnx")]


SHARED = {path.stem: path for path in find_models()}
SMALL = [name for name, path in SHARED.items() if path.stat().st_size < 8_000_000]


@pytest.fixture(scope="module")
def simplify(module_path):
    """simplify(model path, *selection) -> (path of the result, counts)."""
    binary = example("simplify")
    folder = module_path("passes")

    def run(path, *selection):
        output = folder / f"{path.stem}.out.onnx"
        made = subprocess.run([str(binary), str(path), str(output), *selection], capture_output=True, text=True, timeout=600)
        assert made.returncode == 0, made.stderr
        return output, json.loads(made.stdout)

    return run


@pytest.fixture(scope="module")
def made(module_path):
    """made(name) -> path of a model of onnx_pass_models."""
    folder = module_path("models")

    def make(name):
        path = folder / f"{name}.onnx"
        if not path.exists():
            onnx.save(onnx_pass_models.MODELS[name](), path)
        return path

    return make


def session(path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds(path, inputs):
    """The first test sample, or random values: a model's own data are beside it in NAME.test.npz."""
    data = path.with_suffix(".test.npz")
    if data.exists():
        with np.load(data) as arrays:
            if all(i.name in arrays for i in inputs):
                return {i.name: arrays[i.name][:1] for i in inputs}
    random = np.random.default_rng(7)
    result = {}
    for value in inputs:
        shape = [d if isinstance(d, int) else 2 for d in value.shape]
        if value.type == "tensor(float)":
            result[value.name] = random.standard_normal(shape).astype(np.float32)
        elif value.type == "tensor(bool)":
            result[value.name] = random.integers(0, 2, shape).astype(bool)
        else:
            result[value.name] = random.integers(0, 8, shape).astype(np.int64)
    return result


def run(path, values):
    made = session(path)
    return [o.name for o in made.get_outputs()], made.run(None, values)


def assert_same(before, after):
    values = feeds(before, session(before).get_inputs())
    names, expected = run(before, values)
    new_names, found = run(after, values)
    assert new_names == names
    for name, a, b in zip(names, expected, found):
        assert a.shape == b.shape and a.dtype == b.dtype, name
        if a.dtype.kind == "f":
            scale = max(1e-6, float(np.abs(a).max(initial=0)))
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(b, a, err_msg=name)


def all_passes():
    return [f"+{name}" for name in PASSES]


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("selection", ["default", "all"])
def test_passes_keep_outputs(simplify, name, selection):
    after, _ = simplify(SHARED[name], *(all_passes() if selection == "all" else []))
    onnx.checker.check_model(str(after), full_check=True)
    assert_same(SHARED[name], after)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("single", PASSES)
def test_each_pass_alone_keeps_outputs(simplify, name, single):
    after, _ = simplify(SHARED[name], "none", f"+{single}")
    assert_same(SHARED[name], after)


@pytest.mark.parametrize("name", onnx_pass_models.MODELS)
def test_pass_fires_on_its_small_model(simplify, made, name):
    """Each of these has something for the pass it is named after, and only the pass alone must find it."""
    before = made(name)
    single = name.split(".")[0]
    after, counts = simplify(before, "none", f"+{single}")
    assert counts[single] > 0
    onnx.checker.check_model(str(after), full_check=True)
    assert_same(before, after)
    everything, _ = simplify(before, *all_passes())
    onnx.checker.check_model(str(everything), full_check=True)
    assert_same(before, everything)


@pytest.mark.parametrize("name", onnx_pass_models.OLD)
@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_newer_opsets_keep_outputs(simplify, tmp_path, name, opset):
    before = tmp_path / "old.onnx"
    old = onnx_pass_models.OLD[name]()
    onnx.save(old, before)
    if old.opset_import[0].version >= opset:
        pytest.skip("newer already")
    after, _ = simplify(before, "none", f"opset={opset}")
    made = onnx.load(after)
    assert made.opset_import[0].version == opset
    onnx.checker.check_model(made, full_check=True)
    assert_same(before, after)
    assert_same(before, simplify(before, f"opset={opset}", *all_passes())[0])


@pytest.mark.parametrize("name", SMALL)
def test_opset_21_keeps_outputs(simplify, name):
    after, _ = simplify(SHARED[name], "opset=21")
    onnx.checker.check_model(str(after), full_check=True)
    assert_same(SHARED[name], after)


def shapes(model):
    result = {}
    for value in [*model.graph.value_info, *model.graph.output]:
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type"):
            dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
            result[value.name] = (tensor.elem_type, dims if tensor.HasField("shape") else None)
    return result


def without_types(path, folder):
    """The model with nothing said of its inner tensors."""
    model = onnx.load(path)
    del model.graph.value_info[:]
    bare = folder / path.name
    onnx.save(model, bare)
    return bare


@pytest.fixture(params=[*SHARED, *onnx_pass_models.MODELS, *onnx_pass_models.OLD])
def any_model(request, made, tmp_path):
    if request.param in SHARED:
        return SHARED[request.param]
    if request.param in onnx_pass_models.MODELS:
        return made(request.param)
    onnx.save(onnx_pass_models.OLD[request.param](), tmp_path / "old.onnx")
    return tmp_path / "old.onnx"


def test_inferred_shapes_match_onnx(simplify, tmp_path, any_model):
    bare = without_types(any_model, tmp_path)
    after, _ = simplify(bare, "none", "+function-inlining", "+shape-inference")
    ours = shapes(onnx.load(after, load_external_data=False))
    theirs = shapes(onnx.shape_inference.infer_shapes(onnx.load(bare), data_prop=True))
    missing = []
    for tensor, (kind, dims) in theirs.items():
        if tensor not in ours:
            missing.append((tensor, dims))
            continue
        own_kind, own_dims = ours[tensor]
        assert own_kind == kind, tensor
        if dims is None:
            continue
        if own_dims is None:
            missing.append((tensor, dims))
            continue
        assert len(own_dims) == len(dims), tensor
        for own, other in zip(own_dims, dims):
            if isinstance(own, int) and isinstance(other, int):
                assert own == other, (tensor, own_dims, dims)
            elif isinstance(other, int):
                missing.append((tensor, dims, own_dims))
    print(f"{any_model.stem}: onnx knows {len(theirs)}, unknown here: {missing}")
    assert len(missing) <= len(theirs) // 50, missing


@pytest.mark.parametrize("name", ["tinycnn", "tinytransformer"])
def test_simplified_names_match_quark(simplify, name):
    """Tensors and constants are called as in AMD Quark's quantized model, and folded weights are the same."""
    golden = REPO.parent / "shared/golden/onnx" / f"A8W8-{name}.onnx"
    if not golden.exists():
        pytest.skip("the golden models are not at hand")
    after, _ = simplify(SHARED[f"{name}.float"], "+matmul-add-to-gemm", "+copy-shared-bias")
    ours, theirs = onnx.load(after).graph, onnx.load(golden).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in ours.initializer}
    codes = {t.name: onnx.numpy_helper.to_array(t) for t in theirs.initializer}
    inner = {o for node in theirs.node for o in node.output if "Linear" not in node.op_type}
    inner = {tensor.removesuffix("_QuantizeLinear_Input") for tensor in inner}
    assert {o for node in ours.node for o in node.output} == inner
    quantized = {t.removesuffix("_quantized") for t in codes if t.endswith("_quantized")}
    kept = {t for t in codes if not t.endswith(("_scale", "_zero_point", "_quantized"))}
    assert set(constants) == quantized | kept
    for tensor in quantized:
        scale = codes.get(f"{tensor}_quantized_scale", codes.get(f"{tensor}_scale"))
        error = np.abs(codes[f"{tensor}_quantized"] * scale - constants[tensor]).max()
        assert error <= 0.5001 * float(scale.max()), tensor
