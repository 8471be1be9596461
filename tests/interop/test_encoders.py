"""Encoders: the forward pass, calibrated quantization and evaluation, against transformers in f32."""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import torch

import encoder_models
from conftest import REPO


@pytest.fixture(scope="module")
def encode():
    """encode(directory, tokens, tmp) -> all numbers that kvant's forward pass gives: last hidden states, then readouts."""
    binary = pathlib.Path(os.environ.get("KVANT_LOGITS", REPO / "target" / "release" / "examples" / "logits"))
    if not binary.exists():
        pytest.skip(f"{binary} is missing: cargo build --release --example logits, or set $KVANT_LOGITS")

    def run(directory, tokens, tmp):
        tokens.astype("<u4").tofile(tmp / "tokens")
        command = [binary, directory, tokens.shape[1], tmp / "tokens", tmp / "out"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return np.fromfile(tmp / "out", dtype="<f4")

    return run


def tokens_for(model, shape, seed=1):
    """Some tokens, among them padding and masks, which some encoders treat in a way of their own."""
    tokens = np.random.default_rng(seed).integers(4, model.config.vocab_size, shape)
    tokens[0, 5], tokens[-1, 9] = model.config.pad_token_id or 0, getattr(model.config, "mask_token_id", None) or 3
    return tokens


@pytest.mark.parametrize("name", encoder_models.MODELS)
def test_outputs_of_generated_models_match_transformers(name, encode, tmp_path):
    directory = encoder_models.save(name, tmp_path / name)
    model = encoder_models.load(directory)
    tokens = tokens_for(model, (2, 96))
    hidden, readouts = encoder_models.outputs(model, torch.tensor(tokens))
    found = encode(directory, tokens, tmp_path)
    assert found.size == hidden.size + sum(readout.size for readout in readouts)
    for expected in [hidden, *readouts]:
        ours, found = found[: expected.size].reshape(expected.shape), found[expected.size :]
        assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()
