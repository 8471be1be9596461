"""Families whose blocks compute something that others do not: every kind of algorithm runs on them, and what is written loads with the weights
and the activations that were meant."""

import json
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import forward_models
from conftest import example, quantize_anyway

NAMES = ("afmoe", "apertus", "bailing_hybrid", "bamba", "bitnet", "bloom_heads", "cohere2_moe", "dbrx", "deepseek_v32", "deepseek_v4", "ernie4_5_moe", "exaone_moe", "falcon_alibi", "falcon_groups", "falcon_h1", "gemma3n", "gemma4", "gemma4_layer_inputs", "gemma4_moe", "gemma4_shared",
         "granitemoehybrid", "granitemoehybrid_dense", "hunyuan_moe", "hy_v3", "jamba", "kimi_linear", "kolibri1", "lfm2_bias", "lfm2_moe", "lfm3", "llama4", "longcat", "mimo_v2_flash", "minimax", "minimax_m3", "ministral3", "mistral4", "mpt",
         "nemotron_h", "nemotron_h_dense", "olmo_hybrid", "qwen3_vl_moe")  # fmt: skip
NAMES = tuple(name for name in NAMES if name in forward_models.MODELS)
# In these all experts of a block are one tensor in transformers, which does not find them one by one; vLLM does (test_vllm.py).
UNREAD = {"dbrx", "gemma4_moe", "granitemoehybrid", "minimax_m3", "mistral4", "qwen3_vl_moe"}
# Layers of Falcon read the float weight that packed ones do not have.
UNPACKED = {"falcon_alibi", "falcon_groups"}
# transformers raises where it joins the convolutions of Kimi Linear beside packed layers.
UNPACKED |= {"bailing_hybrid", "kimi_linear"}
CALIBRATED = ("gptq", "awq:ratios=5", "smoothquant", "gptaq", "qronos", "autosmoothquant:ratios=3,gptq")


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
            quantize_anyway(kvant, model, out, "--scheme", scheme, *options, *data)
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


def closeness(a, b):
    return (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())


@pytest.fixture(scope="module")
def own_logits():
    """The same as `logits`, of kvant's forward pass."""
    binary = example("logits")

    def run(directory, tmp):
        np.random.default_rng(1).integers(0, 512, (1, 48)).astype("<u4").tofile(tmp / "tokens")
        done = subprocess.run([binary, directory, "48", tmp / "tokens", tmp / "logits"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return np.fromfile(tmp / "logits", dtype="<f4").reshape(1, 48, -1)

    return run


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNREAD | UNPACKED])
def test_integers_load_with_the_weights_of_fake_quantization(name, made):
    ours, fake = (logits(made(name, "int4:g32", "--format", layout)) for layout in ("compressed-tensors", "fake"))
    assert closeness(ours, fake) > 0.999


@pytest.mark.parametrize("name", ["gemma4_moe", "granitemoehybrid", "llama4", "qwen3_vl_moe"])
def test_experts_one_by_one_are_those_of_one_tensor(name, made, own_logits, tmp_path):
    """Of Llama 4 and Qwen3-VL-MoE, gate and up alternate in every row of the tensor."""
    ours, fake = (own_logits(made(name, "int4:g32", "--format", layout), tmp_path) for layout in ("compressed-tensors", "fake"))
    assert closeness(ours, fake) > 0.999999


# What is rounded the other way changes which keys the indexer of DeepSeek V3.2 chooses. Experts of LongCat Flash are decompressed to bf16, which its
# class does not multiply by f32.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNREAD | {"deepseek_v32", "longcat"}])
def test_fp8_loads_with_the_activations_of_kvant(name, made, own_logits, tmp_path):
    out = made(name, "FP8_DYNAMIC", "--format", "compressed-tensors")
    # What is rounded the other way changes what small random models choose and attend to.
    assert closeness(logits(out), own_logits(out, tmp_path)) > 0.97


@pytest.mark.parametrize("name", NAMES)
def test_fake_checkpoints_load(name, made):
    assert np.isfinite(logits(made(name, "int4:g32", "--format", "fake"))).all()


@pytest.mark.parametrize("algorithm", CALIBRATED)
@pytest.mark.parametrize("name", NAMES)
def test_algorithms_run(name, algorithm, made, own_logits, tmp_path):
    out = made(name, "int4:g32", "--algorithm", algorithm, "--format", "fake", calib=True)
    source = own_logits(forward_models.save(name, made.tokens.parent / name), tmp_path)
    assert closeness(own_logits(out, tmp_path), source) > 0.3


# Delta nets of OLMo Hybrid, lightning attention of MiniMax-Text-01 and the indexer of MiniMax M3 have layers whose names end in k_proj or v_proj, which the patterns
# of a cache in Quark's layout match: it is refused, as is that of DeepSeek V4.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("deepseek_v4", "minimax", "minimax_m3", "olmo_hybrid")])
def test_static_activations_and_cache_are_calibrated(name, made, own_logits, tmp_path):
    out = made(name, "fp8", "--kv-cache", "fp8", "--format", "quark", calib=True)
    source = own_logits(forward_models.save(name, made.tokens.parent / name), tmp_path)
    assert closeness(own_logits(out, tmp_path), source) > 0.3


@pytest.mark.parametrize("name", ["afmoe", "bitnet", "falcon_groups", "bamba", "falcon_h1", "granitemoehybrid_dense", "lfm2_bias", "nemotron_h_dense", "mpt", "llama4", "bloom_heads", "apertus", "mimo_v2_flash"])
def test_smoothing_keeps_the_function(name, made, own_logits, tmp_path):
    """Scales that are moved between layers change no more than rounding does."""
    source = own_logits(forward_models.save(name, made.tokens.parent / name), tmp_path)
    smoothed = own_logits(made(name, "int8:g32", "--algorithm", "smoothquant", "--format", "fake", calib=True), tmp_path)
    plain = own_logits(made(name, "int8:g32", "--format", "fake"), tmp_path)
    assert np.square(smoothed - source).mean() < 4 * np.square(plain - source).mean()


@pytest.mark.parametrize("name, path", [("llama4", "self_attn.o_proj"), ("granitemoehybrid", "shared_mlp.output_linear")])
def test_adapters_are_merged_beside_experts_one_by_one(name, path, kvant, made, tmp_path):
    """The same bytes as of the model into which the adapter was merged before."""
    source, generator = forward_models.save(name, made.tokens.parent / name), torch.Generator().manual_seed(5)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    weights, tensors = safetensors.torch.load_file(source / "model.safetensors"), {}
    for module in (f"model.layers.{block}.{path}" for block in (0, 1)):
        rows, columns = weights[f"{module}.weight"].shape
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(4, columns, generator=generator) * 0.05
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(rows, 4, generator=generator) * 0.05
    safetensors.torch.save_file(tensors, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps(dict(peft_type="LORA", r=4, lora_alpha=8, target_modules=[path.split(".")[-1]], bias="none")))
    done = kvant("convert", source, "--lora", adapter, "--to", "float", "-o", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    files = []
    for number, model in enumerate(((source, "--lora", adapter), (tmp_path / "merged",))):
        out = tmp_path / f"out-{number}"
        done = kvant("quantize", *model, "--scheme", "int4:g32", "--format", "compressed-tensors", "--no-verify", "-o", out)
        assert done.returncode == 0, done.stderr
        files.append((out / "model.safetensors").read_bytes())
    assert files[0] == files[1]
    written = safetensors.torch.load_file(tmp_path / "out-0" / "model.safetensors")
    assert any(".experts.0.gate_proj." in name for name in written)
