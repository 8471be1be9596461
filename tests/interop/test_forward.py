"""The forward pass and the perplexity, against transformers in f32."""

import json
import math
import os
import pathlib
import subprocess

import numpy as np
import pytest
import torch
import transformers

import forward_models
import models
from conftest import REPO, example

TRAINED = ("nano_llama", "nano_qwen3", "nano_mixtral", "nano_opt", "nano_gemma2", "small")
WINDOW = 256


@pytest.fixture(scope="module")
def logits():
    """logits(directory, tokens) -> array [sequences, length, vocabulary] of kvant's forward pass."""
    binary = example("logits")

    def run(directory, tokens, tmp):
        tokens.astype("<u4").tofile(tmp / "tokens")
        command = [binary, directory, tokens.shape[1], tmp / "tokens", tmp / "logits"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return np.fromfile(tmp / "logits", dtype="<f4").reshape(*tokens.shape, -1)

    return run


def reference(directory):
    # Only the eager attention of transformers has soft-caps and sinks; that of Falcon adds ALiBi's biases twice.
    config = transformers.AutoConfig.from_pretrained(directory)
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    kind = forward_models.model_class(config)
    loaded = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention)
    return loaded.eval()


def assert_same_logits(logits, directory, shape, tmp):
    model = reference(directory)
    tokens = np.random.default_rng(1).integers(0, model.config.get_text_config().vocab_size, shape)
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    ours = logits(directory, tokens, tmp)
    assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()


def trained(name):
    found = models.find_shared(name, REPO, os.environ.get("KVANT_MODELS"))
    return found or pytest.skip(f"{name} is not at hand")


@pytest.mark.parametrize("name", forward_models.MODELS)
def test_logits_of_generated_models_match_transformers(name, logits, tmp_path):
    assert_same_logits(logits, forward_models.save(name, tmp_path / name), (2, 96), tmp_path)


def test_logits_of_the_part_that_thinks_match_transformers(logits, tmp_path):
    config = transformers.Qwen3OmniMoeConfig(thinker_config=forward_models.OMNI, enable_audio_output=False)
    model = transformers.Qwen3OmniMoeForConditionalGeneration._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path / "whole")
    tokens = np.random.default_rng(1).integers(0, 512, (2, 48))
    with torch.no_grad():
        expected = model.thinker(input_ids=torch.tensor(tokens)).logits.numpy()
    ours = logits(tmp_path / "whole", tokens, tmp_path)
    assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", TRAINED)
def test_logits_of_trained_models_match_transformers(name, logits, tmp_path):
    # 300 is longer than the sliding window of nano_gemma2 and no multiple of any block.
    assert_same_logits(logits, trained(name), (2, 300), tmp_path)


def expected_perplexity(directory, text):
    """Windows of the whole text, tokenized once; every token but the first of each is scored."""
    tokens = transformers.AutoTokenizer.from_pretrained(directory)(text, return_tensors="pt").input_ids[0]
    windows = tokens[: len(tokens) // WINDOW * WINDOW].view(-1, WINDOW)
    model, total = reference(directory), 0.0
    with torch.no_grad():
        for batch in windows.split(8):
            scores = model(batch).logits[:, :-1].log_softmax(-1)
            total -= scores.gather(-1, batch[:, 1:, None]).double().sum().item()
    return math.exp(total / (len(windows) * (WINDOW - 1))), len(windows)


@pytest.mark.parametrize("name", TRAINED)
def test_perplexity_matches_transformers(name, kvant, tmp_path):
    directory = trained(name)
    found = pathlib.Path(os.environ.get("KVANT_TEXT", REPO.parent / "shared" / "text" / "evaluation.txt"))
    text = found.read_text()[:60_000] if found.exists() else pytest.skip(f"{found} is not at hand")
    (tmp_path / "text.txt").write_text(text)
    done = kvant("eval", directory, "--data", tmp_path / "text.txt", "--seq-len", WINDOW, "--json")
    assert done.returncode == 0, done.stderr
    ours, (expected, windows) = json.loads(done.stdout), expected_perplexity(directory, text)
    assert (ours["windows"], ours["tokens"]) == (windows, windows * (WINDOW - 1))
    assert ours["perplexity"] == pytest.approx(expected, rel=1e-5)


def test_fake_quantized_checkpoint_is_evaluated(kvant, quantized, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 200)
    perplexities = [
        json.loads(kvant("eval", directory, "--data", text, "--seq-len", 64, "--json").stdout)["perplexity"]
        for directory in (trained("nano_llama"), quantized("nano_llama", "int4_wo_32", "--format", "fake"))
    ]
    assert perplexities[0] != perplexities[1] and all(math.isfinite(p) for p in perplexities)
