"""Families whose blocks compute something that others do not: every kind of algorithm runs on them, and what is written loads with the weights
and the activations that were meant."""

import json
import math

import numpy as np
import pytest
import torch
import transformers

import forward_models

NAMES = ("afmoe", "apertus", "bitnet", "bloom_heads", "cohere2_moe", "ernie4_5_moe", "exaone_moe", "falcon_alibi", "falcon_groups", "gemma4", "gemma4_shared", "hunyuan_moe",
         "hy_v3", "llama4", "mimo_v2_flash", "ministral3", "mistral4", "mpt", "qwen3_vl_moe")  # fmt: skip
# In these all experts of a block are one tensor, and loaders do not find them one by one.
FUSED = {"llama4", "mistral4", "qwen3_vl_moe"}
CALIBRATED = ("gptq", "awq", "smoothquant", "gptaq", "qronos", "autosmoothquant,gptq")


@pytest.fixture(scope="module")
def made(kvant, module_path):
    """made(name, ...) -> the output of `kvant quantize` for a model."""
    root = module_path("families")
    tokens = root / "tokens.npy"
    np.save(tokens, np.random.default_rng(3).integers(0, 512, (8, 64)).astype(np.uint32))

    def make(name, scheme, *options, calib=False):
        model = forward_models.save(name, root / name)
        out = root / "-".join([name, scheme, *options]).replace("/", "_").replace(":", "_")
        if not out.exists():
            data = ["--calib", tokens] if calib else []
            done = kvant("quantize", model, "--scheme", scheme, *options, *data, "-o", out)
            assert done.returncode == 0, done.stderr
        return out

    make.tokens = tokens
    return make


def logits(directory):
    config = transformers.AutoConfig.from_pretrained(directory)
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    model, report = forward_models.model_class(config).from_pretrained(
        directory, dtype=torch.float32, attn_implementation=attention, output_loading_info=True)  # fmt: skip
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    tokens = torch.tensor(np.random.default_rng(1).integers(0, 512, (1, 48)))
    with torch.no_grad():
        return model.eval()(tokens).logits.numpy()


@pytest.mark.parametrize("scheme,layout", [("int4:g32", "compressed-tensors"), ("FP8_DYNAMIC", "compressed-tensors")])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FUSED])
def test_layouts_load_with_the_weights_of_fake_quantization(name, scheme, layout, made):
    ours, fake = logits(made(name, scheme, "--format", layout)), logits(made(name, scheme, "--weights-only", "--format", "fake"))
    size = np.abs(fake).max()
    # Codes are decoded in bfloat16 or with quantized inputs; other weights would be off by the size of logits.
    closeness = (ours * fake).sum() / np.sqrt((ours**2).sum() * (fake**2).sum())
    assert np.isfinite(ours).all() and size > 0 and closeness > 0.97, closeness


@pytest.mark.parametrize("name", NAMES)
def test_fake_checkpoints_load(name, made):
    assert np.isfinite(logits(made(name, "int4:g32", "--format", "fake"))).all()


def perplexity(kvant, directory, tokens):
    done = kvant("eval", directory, "--data", tokens, "--seq-len", 64, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["perplexity"]


@pytest.mark.parametrize("algorithm", CALIBRATED)
@pytest.mark.parametrize("name", NAMES)
def test_algorithms_run(name, algorithm, made, kvant):
    out = made(name, "int4:g32", "--algorithm", algorithm, "--format", "fake", calib=True)
    assert math.isfinite(perplexity(kvant, out, made.tokens))


@pytest.mark.parametrize("name", NAMES)
def test_static_activations_and_cache_are_calibrated(name, made, kvant):
    out = made(name, "fp8", "--kv-cache", "fp8", "--format", "quark", calib=True)
    assert math.isfinite(perplexity(kvant, out, made.tokens))


@pytest.mark.parametrize("name", ["afmoe", "bitnet", "falcon_groups", "mpt", "llama4", "bloom_heads", "apertus"])
def test_smoothing_keeps_the_function(name, made, kvant):
    """Scales that are moved between layers change nothing where weights are not rounded to speak of."""
    source = logits(forward_models.save(name, made.tokens.parent / name))
    smoothed = logits(made(name, "int8:g32", "--algorithm", "smoothquant", "--format", "fake", calib=True))
    assert np.abs(source - smoothed).max() < 0.1 * np.abs(source).max()
