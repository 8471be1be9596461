"""Quantized biases of checkpoints: the same tensors as amd-quark's export, and the same values as floats."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import checkpoint
import quark_oracle
from test_quark_layout import assert_same_tensors

INT8, CHANNELS = ("int8", "tensor", None, True), ("int8", "channel", None, True)
# Schemes of weights and biases, with Quark's specifications of both.
CASES = {
    ("int8:channel", "int8:tensor"): (CHANNELS, INT8),
    ("int8:tensor", "int8:channel"): (INT8, CHANNELS),
    ("int4:g32", "int8:tensor"): (("int4", "group", 32, True), INT8),
    ("uint8:channel:zp", "uint8:tensor:zp"): (("uint8", "channel", None, False), ("uint8", "tensor", None, False)),
}


def anyway(bias):
    """No loader reads biases with a scale for each value: amd-quark raises on its own."""
    return ["--no-verify"] if bias == "int8:channel" else []


@pytest.fixture(scope="module", params=["bf16", "f32"])
def source(request, model_dir, tmp_path_factory):
    """A model whose linear layers have biases."""
    if request.param == "bf16":
        return model_dir("nano_opt")
    out = tmp_path_factory.mktemp("biases") / "opt_f32"
    AutoModelForCausalLM.from_pretrained(model_dir("nano_opt"), dtype=torch.float32).save_pretrained(out)
    return out


@pytest.mark.parametrize("schemes", CASES, ids="+".join)
def test_biases_are_stored_as_quark_stores_them(kvant, source, schemes, tmp_path):
    (scheme, bias), specs = schemes, [quark_oracle.weight_spec(*spec) for spec in CASES[schemes]]
    ours, theirs, again = tmp_path / "ours", tmp_path / "theirs", tmp_path / "again"
    quark_oracle.export_spec(source, specs[0], theirs, specs[1])
    done = kvant("quantize", source, "--scheme", scheme, "--bias", bias, "--format", "quark", *anyway(bias), "-o", ours)
    assert done.returncode == 0, done.stderr
    assert any(name.endswith(".bias_scale") for name in checkpoint.tensors(theirs))
    assert_same_tensors(checkpoint.tensors(ours), checkpoint.tensors(theirs))
    # Quark's own configuration asks for the same.
    done = kvant("quantize", source, "--recipe", theirs / "config.json", *anyway(bias), "-o", again)
    assert done.returncode == 0, done.stderr
    assert_same_tensors(checkpoint.tensors(again), checkpoint.tensors(theirs))
    for folder in (ours, theirs):
        verified = kvant("verify", folder)
        assert (verified.returncode == 0) == (not anyway(bias)), verified.stdout + verified.stderr


@pytest.mark.parametrize("schemes", CASES, ids="+".join)
def test_biases_lie_on_the_grid_of_quarks(kvant, source, schemes, tmp_path):
    scheme, bias = schemes
    frozen = quark_oracle.frozen_spec(source, *(quark_oracle.weight_spec(*spec) for spec in CASES[schemes]))
    expected = {name: module.bias.detach() for name, module in frozen.named_modules() if type(module).__name__ == "QuantLinear"}
    codes, fake, floats = tmp_path / "codes", tmp_path / "fake", tmp_path / "floats"
    for out, format in ((codes, "quark"), (fake, "fake")):
        done = kvant("quantize", source, "--scheme", scheme, "--bias", bias, "--format", format, *anyway(bias), "-o", out)
        assert done.returncode == 0, done.stderr
    # What was written is read back.
    done = kvant("convert", codes, "--to", "float", "-o", floats)
    assert done.returncode == 0, done.stderr
    original = checkpoint.raw_tensors(source)
    for folder in (fake, floats):
        stored = checkpoint.raw_tensors(folder)
        assert expected and any(not torch.equal(stored[f"{name}.bias"], original[f"{name}.bias"]) for name in expected)
        for name, values in expected.items():
            assert torch.equal(stored[f"{name}.bias"], values.to(stored[f"{name}.bias"].dtype)), (folder.name, name)


def test_formats_without_a_place_are_refused(kvant, source, tmp_path):
    for format in ("compressed-tensors", "torchao"):
        line = ["quantize", source, "--scheme", "int8:channel", "--bias", "int8:tensor", "--format", format, "-o", tmp_path / "out"]
        done = kvant(*line, "--json")
        assert done.returncode == 1 and not (tmp_path / "out").exists()
        error = json.loads(done.stderr.splitlines()[-1]) if done.stderr.startswith("{") else {"error": done.stderr}
        assert f"the format {format} has no place for quantized biases" in json.dumps(error), done.stderr
        assert "--format quark" in done.stderr


def test_biases_of_graphs_and_models_without_are_refused(kvant, model_dir, source, tmp_path):
    graph = kvant("quantize", source, "--scheme", "int8:channel", "--bias", "int32", "-o", tmp_path / "out")
    assert graph.returncode == 2 and "ONNX graphs" in graph.stderr
    absent = kvant("quantize", model_dir("nano_llama"), "--scheme", "int8:channel", "--bias", "int8:tensor", "-o", tmp_path / "out")
    assert absent.returncode == 1 and "no quantized layer has a bias" in absent.stderr, absent.stderr
