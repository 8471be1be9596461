"""Checkpoints made by calibrated algorithms: their loaders compute the logits that kvant's forward pass computes, and the
configuration of the algorithms in config.json is one that AMD Quark reads.
"""

import json

import pytest
import torch

from test_eval import TEXT
from test_static_logits import assert_same_logits, by_quark, load

CALIBRATION = ["--num-samples", "8", "--seq-len", "64"]
QUARK = {
    "gptq": ["-s", "uint4_wo_32", "-a", "gptq"],
    "gptaq": ["-s", "int4_wo_128", "-a", "gptaq"],
    "qronos": ["-s", "int4_wo_128", "-a", "qronos"],
    "awq": ["-s", "uint4_wo_128", "-a", "awq"],
    "awq_gptq": ["-s", "mxfp4", "-a", "awq,gptq"],
    "smoothquant": ["-s", "int8", "-a", "smoothquant,gptq"],
    "autosmoothquant": ["-s", "int8", "-a", "autosmoothquant"],
}
COMPRESSED_TENSORS = {
    "gptq": ["-s", "W4A16", "-a", "gptq"],
    "awq": ["-s", "W4A16_ASYM", "-a", "awq"],
    "smoothquant": ["-s", "int8:channel+int8:tensor!static", "-f", "compressed-tensors", "-a", "smoothquant,gptq"],
}


@pytest.fixture(scope="module")
def calibrated(kvant, model_dir, module_path):
    """calibrated(model, name, options) -> a checkpoint made with calibration data."""
    root = module_path("algorithms")
    text = root / "calibration.txt"
    text.write_text(TEXT)

    def run(model, name, options):
        out = root / f"{model}-{name}"
        if out.exists():
            return out
        done = kvant("quantize", model_dir(model), *options, "--calib", text, *CALIBRATION, "-o", out)
        assert done.returncode == 0, done.stderr
        return out

    return run


@pytest.mark.parametrize("name", QUARK)
def test_logits_match_amd_quark(name, calibrated, model_dir, tmp_path):
    directory = calibrated("nano_llama", name, QUARK[name])
    assert_same_logits(by_quark(directory), directory, model_dir("nano_llama"), tmp_path)


@pytest.mark.parametrize("model", ["nano_qwen3", "nano_mixtral", "nano_opt", "nano_gemma2"])
def test_smoothing_is_folded_into_norms_biases_and_routers(model, calibrated, model_dir, tmp_path):
    """Scales move through every kind of link; a float copy of the result shows whether both ends were written."""
    options = ["-s", "int8:channel", "-a", "smoothquant:alpha=0.8,gptq", "-f", "fake"]
    directory = calibrated(model, "folded", options)
    theirs, original = load(directory), load(model_dir(model))
    tokens = torch.arange(5, 69)[None]
    with torch.no_grad():
        found, expected = theirs(tokens).logits, original(tokens).logits
    # A router's last bit may send a token elsewhere; a scale that only one end has would change everything.
    assert (found - expected).square().mean() < 1e-3 * expected.square().mean()
    changed = [name for name, value in original.state_dict().items() if not torch.equal(value, theirs.state_dict()[name])]
    assert any("norm" in name for name in changed), changed


@pytest.mark.parametrize("name", COMPRESSED_TENSORS)
def test_logits_match_compressed_tensors(name, calibrated, model_dir, tmp_path):
    directory = calibrated("nano_llama", f"ct_{name}", COMPRESSED_TENSORS[name])
    assert_same_logits(load(directory), directory, model_dir("nano_llama"), tmp_path)


@pytest.mark.parametrize("name", QUARK)
def test_amd_quark_reads_the_algorithm_config(name, calibrated):
    from quark.torch.quantization.config.config import QConfig

    directory = calibrated("nano_llama", name, QUARK[name])
    written = json.loads((directory / "config.json").read_text())["quantization_config"]
    config = QConfig.from_dict(written)
    names = [algorithm.name for algorithm in config.algo_config]
    spelled = {"smooth": "smoothquant"}
    asked = [part.split(":")[0] for part in QUARK[name][3].split(",")]
    assert [spelled.get(name, name) for name in names] == asked
