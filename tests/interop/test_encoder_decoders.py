"""Encoder-decoders: the forward pass, calibrated quantization and evaluation, against transformers in f32."""

import json
import subprocess

import numpy as np
import pytest
import torch

import encoder_decoder_models
from conftest import example
from test_encoders import PACKED, RECIPES, token_file


@pytest.fixture(scope="module")
def logits():
    """logits(directory, tokens, tmp) -> those of kvant's forward pass: see encoder_decoder_models.logits."""
    binary = example("logits")

    def run(directory, tokens, tmp):
        tokens.astype("<u4").tofile(tmp / "tokens")
        command = [binary, directory, tokens.shape[1], tmp / "tokens", tmp / "numbers"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return np.fromfile(tmp / "numbers", dtype="<f4").reshape(tokens.shape[0], tokens.shape[1] + 1, -1)

    return run


@pytest.mark.parametrize("name", encoder_decoder_models.MODELS)
def test_logits_of_generated_models_match_transformers(name, logits, tmp_path):
    directory = encoder_decoder_models.save(name, tmp_path / name)
    model = encoder_decoder_models.load(directory)
    tokens = np.random.default_rng(1).integers(4, model.config.vocab_size, (2, 60))
    expected = encoder_decoder_models.logits(model, torch.tensor(tokens)).numpy()
    found = logits(directory, tokens, tmp_path)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


# The classes of T5 read the float weights of their layers, which packed ones do not have.
QUANTIZED = [("t5", recipe) for recipe in RECIPES if recipe not in PACKED]
QUANTIZED += [("bart", recipe) for recipe in RECIPES]
QUANTIZED += [(name, recipe) for name in ("t5_gated", "umt5") for recipe in ("static", "smoothquant")]
QUANTIZED += [(name, recipe) for name in ("mbart", "pegasus") for recipe in ("static", "awq")]


def log_likelihoods(all_logits, tokens):
    """Of each token, as the row before predicts it."""
    rows = torch.log_softmax(torch.tensor(all_logits[:, :-1]).double(), -1)
    return rows, rows.gather(-1, torch.tensor(tokens)[..., None])[..., 0]


@pytest.mark.parametrize(("name", "recipe"), QUANTIZED)
def test_quantized_checkpoints_compute_in_transformers_what_kvant_evaluates(name, recipe, kvant, logits, tmp_path):
    source, out = encoder_decoder_models.save(name, tmp_path / "model"), tmp_path / "out"
    model = encoder_decoder_models.load(source)
    file, tokens = token_file(model, tmp_path / "tokens.jsonl")
    options = [*RECIPES[recipe], "-f", "compressed-tensors", "--num-samples", "16", "--seq-len", "48"]
    done = kvant("quantize", source, *options, "--calib", file, "-o", out)
    assert done.returncode == 0, done.stderr
    loaded, report = type(model).from_pretrained(out, dtype="auto", attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    theirs = encoder_decoder_models.logits(loaded.eval(), torch.tensor(tokens)).numpy()
    found, float_found = logits(out, tokens, tmp_path), logits(source, tokens, tmp_path)
    # A value at the edge of two codes of an activation may get either.
    assert np.square(found - theirs).sum() < 1e-3 * np.square(theirs).sum()
    assert np.square(found - float_found).sum() > 0

    done = kvant("eval", out, "--reference", source, "--data", file, "--seq-len", "48", "--json")
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    (rows, of_tokens), (expected, _) = log_likelihoods(found, tokens), log_likelihoods(float_found, tokens)
    assert (ours["tokens"], ours["windows"]) == (tokens.size, len(tokens))
    assert ours["perplexity"] == pytest.approx(float(torch.exp(-of_tokens.mean())), rel=1e-4)
    assert ours["kl_mean"] == pytest.approx(float((expected.exp() * (expected - rows)).sum(-1).mean()), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["t5", "bart", "mbart"])
def test_learned_rounding_runs_in_both_stacks(name, kvant, tmp_path):
    source = encoder_decoder_models.save(name, tmp_path / "model")
    file, _ = token_file(None, tmp_path / "tokens.jsonl")
    tuned = ("-a", "autoround:iterations=40", "--calib", file, "--num-samples", "16", "--seq-len", "48")
    losses = {}
    for folder, options in (("nearest", ()), ("tuned", tuned)):
        done = kvant("quantize", source, "-s", "int4:g32", "-f", "fake", *options, "-o", tmp_path / folder)
        assert done.returncode == 0, done.stderr
        done = kvant("eval", tmp_path / folder, "--reference", source, "--data", file, "--seq-len", "48", "--json")
        losses[folder] = json.loads(done.stdout)["kl_mean"]
    assert losses["tuned"] < losses["nearest"], losses


def test_encoder_decoders_are_refused_where_one_text_is_continued(kvant, tmp_path):
    source = encoder_decoder_models.save("t5", tmp_path / "model")
    file, _ = token_file(None, tmp_path / "tokens.jsonl", 4)
    refusals = [
        ("generate", source, "--prompt", "x"),
        ("convert", source, "--to", "onnx", "-o", tmp_path / "graph"),
        ("quantize", source, "-s", "int8", "-o", tmp_path / "out", "--calib", file, "--max-kl", "0.1"),
        ("quantize", source, "-s", "int8:channel", "--kv-cache", "fp8", "-o", tmp_path / "out", "--calib", file),
        ("quantize", source, "-s", "Q4_K_M", "-o", tmp_path / "out.gguf"),
    ]
    for arguments in refusals:
        done = kvant(*arguments)
        assert done.returncode in (1, 2) and ("encoder" in done.stderr or "cannot be written as GGUF" in done.stderr), (arguments, done.stderr)
    done = kvant("eval", source, "--data", file, "--seq-len", "48", "--stride", "8")
    assert done.returncode == 2 and "do not overlap" in done.stderr, done.stderr
