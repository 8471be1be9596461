"""Heads that share the embeddings and get a weight of their own where an override names them, loaded by transformers."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import forward_models
from test_forward import logits, reference, trained  # noqa: F401 (a fixture)

TIED = ("bloom", "cohere", "gemma3", "granite", "lfm2", "llama_tied", "mpt", "nano_gemma2", "nano_opt", "nano_qwen3", "phi_tied", "starcoder2")


@pytest.mark.parametrize("name", TIED)
def test_named_heads_are_separated_and_load(name, kvant, logits, tmp_path):  # noqa: F811
    model = trained(name) if name.startswith("nano") else forward_models.save(name, tmp_path / "model", tie_word_embeddings=True)
    before = load_file(model / "model.safetensors")
    assert "lm_head.weight" not in before
    out = tmp_path / "out"
    done = kvant("quantize", model, "--scheme", "int8:g32", "--override", "lm_head=int8:channel", "--format", "compressed-tensors", "-o", out)
    assert done.returncode == 0 and "the head gets a separate weight, `lm_head.weight`" in done.stderr, done.stderr
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
    [embeddings] = [tensor for key, tensor in before.items() if key.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embeddings.weight"))]
    loaded = reference(out)
    assert torch.equal(loaded.get_input_embeddings().weight.detach().float(), embeddings.float())
    tokens = np.random.default_rng(1).integers(0, len(embeddings), (2, 40))
    with torch.no_grad():
        expected = loaded(torch.tensor(tokens)).logits.float().numpy()
    head = loaded.get_output_embeddings()
    step = embeddings.float().abs().amax(1, keepdim=True) / 127
    codes = load_file(out / "model.safetensors")
    assert any(key.startswith("lm_head.weight_") for key in codes), "the head has codes"
    # transformers decompresses in the type of the model.
    assert (head.weight.detach().float() - embeddings.float()).abs().le(step * 0.5 + embeddings.float().abs() * 2e-3).all()
    ours = logits(out, tokens, tmp_path)
    assert np.abs(ours - expected).max() <= 1e-3 * np.abs(expected).max()


def test_other_rules_do_not_separate_heads(kvant, tmp_path):
    model = forward_models.save("llama_tied", tmp_path / "model")
    done = kvant("quantize", model, "--scheme", "int8:g32", "--override", "*=int8:channel", "--exclude", "lm_head", "-o", tmp_path / "out")
    assert done.returncode == 0 and json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True, done.stderr
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
