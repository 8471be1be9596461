"""Rotated models compute what the float models compute; those that would not are refused by name."""

import numpy as np
import pytest
import transformers

import forward_models
from test_forward import TRAINED, logits, trained  # noqa: F401

# What is said of the residual streams that cannot be rotated, by the type of model or by its name here.
NORM, HEAD = "normalises what is added to the residual stream", "is the bias of a head that shares the embeddings"
REFUSED = {**dict.fromkeys(("afmoe", "axk1", "kolibri1", "bloom", "exaone4", "flex_olmo", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "glm4", "olmo2", "olmo3",
                            "olmo_hybrid", "nano_gemma2"), NORM),
           **dict.fromkeys(("ernie4_5_moe", "gptj_tied", "phi_tied"), HEAD),
           "lfm3": NORM, "opt_post_norm": "norms stand on the residual stream", "minimax": "norms stand on the residual stream",
           "deepseek_v4": "several residual streams", "xglm": "positions are computed", "mllama_text_model": "beside the residual stream",
           "longcat": "add to the residual stream what a norm gives",
           **dict.fromkeys(("kimi_k25", "lfm2_vl", "minimax_m3_vl", "mllama", "qwen3_omni_moe", "qwen3_vl_moe"), "for images or sound")}  # fmt: skip
# Weights of trained models are rounded to bfloat16 as they are stored, by which a few tokens of a mixture go to other experts. Where biases of attention are, scores that differ in the last bits of
# f32 may be rounded apart.
TOLERANCES = {"falcon_alibi": 5e-4, **dict.fromkeys(TRAINED, 3e-2), "nano_mixtral": 0.5}
ROTATIONS = ("rotate", "rotate:size=8:seed=9", "rotate:heads=off")


def differences(logits, directory, tmp, monkeypatch, rotations):
    """The largest difference of the logits of rotated models from those of the float model, as a share of the largest logit."""
    vocabulary = transformers.AutoConfig.from_pretrained(directory).get_text_config().vocab_size
    tokens = np.random.default_rng(1).integers(0, vocabulary, (2, 48))
    expected = logits(directory, tokens, tmp)
    for rotation in rotations:
        monkeypatch.setenv("KVANT_ROTATE", rotation)
        yield rotation, np.abs(logits(directory, tokens, tmp) - expected).max() / np.abs(expected).max()
        monkeypatch.delenv("KVANT_ROTATE")


@pytest.mark.parametrize("name", [*forward_models.MODELS, *TRAINED])
def test_rotation_keeps_the_logits(name, logits, kvant, tmp_path, monkeypatch):  # noqa: F811
    directory = trained(name) if name in TRAINED else forward_models.save(name, tmp_path / name)
    plan = kvant("plan", directory, "--scheme", "int8:channel", "--format", "fake", "--algorithm", "rotate")
    kind = forward_models.MODELS[name][0] if name in forward_models.MODELS else name
    if reason := REFUSED.get(kind) or REFUSED.get(name):
        assert plan.returncode == 1 and reason in plan.stderr, plan.stderr
        return
    assert plan.returncode == 0, plan.stderr
    for rotation, difference in differences(logits, directory, tmp_path, monkeypatch, ROTATIONS):
        assert difference <= TOLERANCES.get(name, 1e-4), rotation


def test_values_alone_are_rotated_where_the_stream_is_not(logits, tmp_path, monkeypatch):  # noqa: F811
    directory = forward_models.save("gemma2", tmp_path / "gemma2")
    ((_, difference),) = differences(logits, directory, tmp_path, monkeypatch, ["rotate:stream=off"])
    assert 0 < difference <= 1e-4


@pytest.mark.parametrize("name", ["gpt_oss", "llama4", "llama_tied", "gpt2"])
def test_rotated_models_are_written_as_they_are_read(name, logits, kvant, tmp_path):  # noqa: F811
    directory, out = forward_models.save(name, tmp_path / name), tmp_path / "out"
    done = kvant("quantize", directory, "--scheme", "f16", "--format", "fake", "--algorithm", "rotate", "-o", out)
    assert done.returncode == 0, done.stderr
    vocabulary = transformers.AutoConfig.from_pretrained(directory).get_text_config().vocab_size
    tokens = np.random.default_rng(1).integers(0, vocabulary, (2, 48))
    expected, found = logits(directory, tokens, tmp_path), logits(out, tokens, tmp_path)
    # Rounding may send a few tokens to other experts.
    assert np.median(np.abs(found - expected)) <= 5e-3 * np.abs(expected).max()
