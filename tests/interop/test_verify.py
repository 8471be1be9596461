"""`kvant verify` against what loaders do: a checkpoint that it passes loads, one in which it finds that it would not load does not."""

import json
import pathlib
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import FP8Experts

import foreign_layouts
import models
from conftest import REPO
from loading import load_with_transformers

# Layouts of Kvant that transformers loads, and amd-quark's own.
WRITTEN = ["int4_wo_128", "ptpc_fp8", "W4A16", "W4A16_ASYM", "W8A8", "FP8_DYNAMIC", "NVFP4A16", "MXFP4A16"]


@pytest.fixture
def verify(kvant):
    """verify(directory, *options) -> (exit code, the object)."""

    def run(directory, *options):
        done = kvant("verify", directory, "--json", *options)
        return done.returncode, json.loads(done.stdout)

    return run


@pytest.fixture
def copy(tmp_path):
    """copy(directory) -> a copy that may be broken."""
    return lambda directory: pathlib.Path(shutil.copytree(directory, tmp_path / "copy"))


def loads(directory):
    """Whether transformers loads every tensor, and computes numbers."""
    try:
        model = load_with_transformers(directory)
        with torch.no_grad():
            return bool(model(torch.arange(32).reshape(1, 32)).logits.isfinite().all())
    except Exception as problem:
        print(f"transformers: {problem}")
        return False


def verdict(found, loader):
    return next(row for row in found["loaders"] if row["id"] == loader)["loads"]


@pytest.mark.parametrize("scheme", WRITTEN)
def test_written_checkpoints_pass_and_load(verify, quantized, scheme):
    out = quantized("nano_llama", scheme)
    code, found = verify(out)
    assert code == 0 and not [f for f in found["findings"] if f["severity"] == "error"], found["findings"]
    assert loads(out) == (verdict(found, "transformers") == "yes")


def drop(directory, end):
    file = directory / "model.safetensors"
    tensors = load_file(file)
    gone = [name for name in tensors if name.endswith(end)]
    assert gone
    save_file({name: t for name, t in tensors.items() if name not in gone[:1]}, file, metadata={"format": "pt"})


def edit(directory, end, value):
    file = directory / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(end))
    tensors[name] = value(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


def restate(directory, change):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def group_of_64(config):
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 64


BROKEN = {
    "no scales": lambda d: drop(d, "down_proj.weight_scale"),
    "no embedding": lambda d: drop(d, "embed_tokens.weight"),
    "no shape": lambda d: drop(d, "weight_shape"),
    "another group": lambda d: restate(d, group_of_64),
    "NaN scale": lambda d: edit(d, "q_proj.weight_scale", lambda t: t * float("nan")),
    "NaN norm": lambda d: edit(d, "model.norm.weight", lambda t: t * float("nan")),
    "short file": lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-1]),
}


@pytest.mark.parametrize("breaking", BROKEN)
def test_broken_checkpoints_fail_and_do_not_load(verify, quantized, copy, breaking):
    directory = copy(quantized("nano_llama", "W4A16"))
    BROKEN[breaking](directory)
    code, found = verify(directory)
    assert code == 1 and not found["passes"], found
    assert not loads(directory)


@pytest.mark.parametrize("made", ["awq", "gptq", "gptq v2", "gptq act order", "fp8 block"])
def test_foreign_layouts_pass(verify, model_dir, tmp_path, made, monkeypatch):
    # 5.16.1 asks this table for models without experts too, and goes on with None.
    monkeypatch.setitem(FP8Experts._impl_tp_layer_overrides, None, {})
    """Layers made from the layouts' descriptions, in a whole model."""
    source = pathlib.Path(model_dir("nano_llama"))
    tensors, config = {}, {}
    make = {
        "awq": lambda w: foreign_layouts.awq(w, 32),
        "gptq": lambda w: foreign_layouts.gptq(w, 4, 32, 1, False),
        "gptq v2": lambda w: foreign_layouts.gptq(w, 4, 32, 2, False),
        "gptq act order": lambda w: foreign_layouts.gptq(w, 4, 32, 1, True),
        "fp8 block": lambda w: foreign_layouts.fp8(w, (128, 128)),
    }[made]
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        layer, _, config = make(tensor.float())
        tensors.update({f"{name.removesuffix('.weight')}.{key}": value.contiguous() for key, value in layer.items()})
    out = tmp_path / "made"
    shutil.copytree(source, out)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    restate(out, lambda c: c.update(quantization_config=config))
    code, found = verify(out)
    assert code == 0, found["findings"]
    if made == "fp8 block":
        assert loads(out) == (verdict(found, "transformers") == "yes")
    scale = "weight_scale_inv" if made == "fp8 block" else "scales"
    edit(out, f"up_proj.{scale}", lambda t: -t)
    assert verify(out)[0] == 1


def test_amd_quark_exports_pass(verify, reference, model_dir):
    """What amd-quark saves itself; its own names are known."""
    out = pathlib.Path(reference("nano_llama", "int4_wo_128"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(model_dir("nano_llama")) / file, out / file)
    code, found = verify(out)
    assert code == 0, found["findings"]


def test_small_models_pass(verify):
    for name in models.SHARED:
        found = models.find_shared(name, REPO, None)
        if found:
            code, report = verify(found)
            assert code == 0 and verdict(report, "transformers") == "yes", report
