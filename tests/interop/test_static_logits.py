"""Checkpoints with static scales: the logits that their loaders compute in f32 are those of kvant's forward pass.

Both round activations to the same codes save where a last bit of f32 decides, which changes a few rows noticeably: most rows
must be equal to rounding, and what differs must be less than what quantization does.
"""

import json
import subprocess

import numpy as np
import pytest
import torch
import transformers

import quark_oracle
from conftest import example
from test_eval import TEXT

CALIBRATION = ["--num-samples", "8", "--seq-len", "64"]
QUARK = {
    "int8": ["-s", "int8"],
    "fp8": ["-s", "fp8"],
    "mxfp4_fp8": ["-s", "mxfp4_fp8"],
    "nvfp4": ["-s", "nvfp4"],
    "fp8_kv": ["-s", "fp8", "--kv-cache", "fp8"],
    "percentile": ["-s", "int8:channel+int8:tensor:percentile99.9!static"],
    "overrides": ["-s", "int8", "--override", "*.down_proj=fp8", "--override", "*.o_proj=ptpc_fp8"],
}
COMPRESSED_TENSORS = {
    "FP8": ["-s", "FP8"],
    "FP8_kv": ["-s", "FP8", "--kv-cache", "fp8"],
    "int8_static": ["-s", "int8:channel+int8:tensor!static", "-f", "compressed-tensors"],
}


@pytest.fixture(scope="module")
def calibrated(kvant, model_dir, module_path):
    """calibrated(model, name, options) -> a checkpoint with static scales."""
    root = module_path("static")
    text = root / "calibration.txt"
    text.write_text(TEXT)

    def run(model, name, options):
        out = root / f"{model}-{name}"
        done = kvant("quantize", model_dir(model), *options, "--calib", text, *CALIBRATION, "-o", out)
        assert done.returncode == 0, done.stderr
        return out

    return run


def ours(directory, tokens, tmp):
    binary = example("logits")
    tokens.astype("<u4").tofile(tmp / "tokens")
    subprocess.run([binary, directory, str(tokens.shape[1]), tmp / "tokens", tmp / "logits"], check=True, timeout=300)
    return np.fromfile(tmp / "logits", dtype="<f4").reshape(*tokens.shape, -1)


def assert_same_logits(model, directory, original, tmp):
    tokens = np.random.default_rng(1).integers(3, model.config.vocab_size, (4, 48))
    theirs, clean = alone(model.eval(), tokens), alone(load(original), tokens)
    found = ours(directory, tokens, tmp)
    rows = np.abs(found - theirs).max(-1) / np.abs(theirs).max()
    assert (rows < 1e-5).mean() > 0.5, np.sort(rows.flatten())[::16]
    assert np.square(found - theirs).mean() < 0.1 * np.square(theirs - clean).mean()


def alone(model, tokens):
    """Logits of sequences that pass one by one: Quark's dynamic scales per token are shared by the sequences of a batch."""
    with torch.no_grad():
        return np.concatenate([model(torch.tensor(row[None])).logits.numpy() for row in tokens])


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def by_quark(directory):
    """A checkpoint through Quark's own loader, computing in f32."""
    config = transformers.AutoConfig.from_pretrained(directory)
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return quark_oracle.import_model_from_safetensors(model, str(directory)).float()


@pytest.mark.parametrize("name", QUARK)
def test_static_logits_match_quark(name, calibrated, model_dir, tmp_path):
    directory = calibrated("nano_llama", name, QUARK[name])
    assert_same_logits(by_quark(directory), directory, model_dir("nano_llama"), tmp_path)


@pytest.mark.parametrize("name", COMPRESSED_TENSORS)
def test_static_logits_match_compressed_tensors(name, calibrated, model_dir, tmp_path):
    directory = calibrated("nano_llama", name, COMPRESSED_TENSORS[name])
    assert_same_logits(load(directory), directory, model_dir("nano_llama"), tmp_path)


def test_calibration_record_describes_the_data(calibrated):
    record = json.loads((calibrated("nano_mixtral", "fp8", ["-s", "fp8"]) / "calibration.json").read_text())
    data, report = record["data"], record["report"]
    assert data["samples"] == 8 and data["tokens"] == 8 * 64 and len(data["files"][0]["xxh3_128"]) == 32
    assert report["tokens"][1] == 8 * 64 and isinstance(report["filled"], list)
