"""GGUF files in transformers, which reads their weights and a part of their metadata: Kvant names it where its logits are right."""

import json

import pytest
import torch
import transformers

from test_gguf import byte_tokenizer

pytest.importorskip("gguf")

BASE = dict(vocab_size=512, hidden_size=256, intermediate_size=384, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=512)  # fmt: skip
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)  # fmt: skip


def rope(part, base=10000.0):
    return dict(rope_type="default", rope_theta=base, partial_rotary_factor=part)


MODELS = {
    "llama": lambda: transformers.LlamaConfig(**BASE, head_dim=64),
    "llama_attention_bias": lambda: transformers.LlamaConfig(**BASE, attention_bias=True),
    "llama_mlp_bias": lambda: transformers.LlamaConfig(**BASE, mlp_bias=True),
    "llama3": lambda: transformers.LlamaConfig(**BASE, rope_parameters=LLAMA3),
    "mixtral": lambda: transformers.MixtralConfig(**BASE, num_local_experts=4),
    "qwen2": lambda: transformers.Qwen2Config(**BASE),
    "qwen3": lambda: transformers.Qwen3Config(**BASE, head_dim=128),
    "qwen3_narrow": lambda: transformers.Qwen3Config(**BASE, head_dim=64),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**BASE, head_dim=128, **EXPERTS),
    "qwen2_narrow": lambda: transformers.Qwen2Config(**BASE, head_dim=64),
    "qwen3_bias": lambda: transformers.Qwen3Config(**BASE, head_dim=128, attention_bias=True),
    "phi3": lambda: transformers.Phi3Config(**BASE, pad_token_id=0, sliding_window=None),
    "phi3_partial": lambda: transformers.Phi3Config(**BASE, pad_token_id=0, rope_parameters=rope(0.5)),
    "gemma2": lambda: transformers.Gemma2Config(**BASE, head_dim=256),
    "gemma2_caps": lambda: transformers.Gemma2Config(**BASE, head_dim=256, attn_logit_softcapping=20.0, final_logit_softcapping=5.0),
    "gemma2_narrow": lambda: transformers.Gemma2Config(**BASE, head_dim=128, query_pre_attn_scalar=128),
    "gemma3": lambda: transformers.Gemma3TextConfig(**BASE, head_dim=256),
    "gemma3_bias": lambda: transformers.Gemma3TextConfig(**BASE, head_dim=256, attention_bias=True),
    "gemma3_narrow": lambda: transformers.Gemma3TextConfig(**BASE, head_dim=128, query_pre_attn_scalar=128),
    "starcoder2": lambda: transformers.Starcoder2Config(**BASE, sliding_window=None),
    "starcoder2_base": lambda: transformers.Starcoder2Config(**BASE, sliding_window=None, rope_parameters=rope(1.0, 1e5)),
    "nemotron": lambda: transformers.NemotronConfig(**BASE),
    "nemotron_whole": lambda: transformers.NemotronConfig(**BASE, rope_parameters=rope(1.0)),
    "nemotron_eps": lambda: transformers.NemotronConfig(**BASE, norm_eps=1e-3),
    "nemotron_bias": lambda: transformers.NemotronConfig(**BASE, attention_bias=True),
    "nemotron_mlp_bias": lambda: transformers.NemotronConfig(**BASE, mlp_bias=True),
    "stablelm": lambda: transformers.StableLmConfig(**BASE),
    "stablelm_bias": lambda: transformers.StableLmConfig(**BASE, use_qkv_bias=True),
    "stablelm_parallel": lambda: transformers.StableLmConfig(**BASE, use_parallel_residual=True),
    "stablelm_norms": lambda: transformers.StableLmConfig(**BASE, qk_layernorm=True),
    "stablelm_half": lambda: transformers.StableLmConfig(**BASE, rope_parameters=rope(0.5)),
    "stablelm_base": lambda: transformers.StableLmConfig(**BASE, rope_parameters=rope(0.25, 5e5)),
    "olmo2": lambda: transformers.Olmo2Config(**BASE, pad_token_id=0),
}


# llama.cpp, whose format it is, does not load such files.
REFUSED = {"qwen2_narrow", "qwen3_bias", "gemma3_bias"}


def distinct(model):
    """Biases, norms and attention that matter, so that a missing term is seen."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif parameter.ndim == 2:
                parameter.mul_(4)
    return model


def distance(model, directory, file):
    """How far transformers' logits of the file are from the model's; None where it does not load."""
    try:
        read = transformers.AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return None
    tokens = torch.arange(5, 69)[None]
    with torch.no_grad():
        ours, own = read.eval()(tokens).logits, model.eval()(tokens).logits
    return float((ours - own).norm() / own.norm())


@pytest.mark.parametrize("name", MODELS)
def test_transformers_is_listed_where_its_logits_match(kvant, tmp_path, name):
    torch.manual_seed(0)
    model = distinct(transformers.AutoModelForCausalLM.from_config(MODELS[name]()).float())
    source, out = tmp_path / "source", tmp_path / "model.gguf"
    model.save_pretrained(source)
    byte_tokenizer(BASE["vocab_size"]).save(str(source / "tokenizer.json"))
    made = kvant("quantize", source, "--scheme", "F32", "--format", "gguf", "-o", out)
    if name in REFUSED:
        reasons = ("llama.cpp's graph", "has no place in a file of the architecture")
        assert made.returncode == 1 and any(reason in made.stderr for reason in reasons), made.stderr
        return
    assert made.returncode == 0, made.stderr
    found = distance(model, tmp_path, out.name)
    right = found is not None and found < 1e-5
    assert ("gguf_file=" in made.stderr + made.stdout) == right, (found, made.stderr)
    verdicts = json.loads(kvant("verify", out, "--json").stdout)["loaders"]
    assert {v["id"]: v["loads"] for v in verdicts}["transformers"] == ("yes" if right else "no"), found
