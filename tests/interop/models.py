"""Tiny random-weight checkpoints of many architectures, made by transformers with fixed seeds."""

import pathlib

import torch
import transformers

BASE = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=0)
EXPERTS = dict(moe_intermediate_size=128, num_experts=4, num_experts_per_tok=2)
DEEPSEEK = dict(num_key_value_heads=4, moe_intermediate_size=128, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                first_k_dense_replace=1, kv_lora_rank=64, q_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32)
GPT2 = dict(vocab_size=512, n_embd=128, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0)

# name -> (config class of transformers, arguments beside BASE, dtype)
GENERATED = {
    "phi3": ("Phi3Config", dict(pad_token_id=0), "bfloat16"),
    "qwen2": ("Qwen2Config", {}, "bfloat16"),
    "qwen2_moe": ("Qwen2MoeConfig", dict(EXPERTS, shared_expert_intermediate_size=256), "bfloat16"),
    "qwen3_moe": ("Qwen3MoeConfig", dict(EXPERTS, head_dim=32), "bfloat16"),
    "deepseek_v2": ("DeepseekV2Config", dict(DEEPSEEK, n_shared_experts=2), "bfloat16"),
    "deepseek_v3": ("DeepseekV3Config", dict(DEEPSEEK, n_shared_experts=1), "bfloat16"),
    "gpt_oss": ("GptOssConfig", dict(num_local_experts=4, num_experts_per_tok=2, head_dim=32, intermediate_size=128, sliding_window=64,
                                     pad_token_id=0), "bfloat16"),
    "gemma": ("GemmaConfig", dict(head_dim=32, pad_token_id=0), "bfloat16"),
    "gemma3_text": ("Gemma3TextConfig", dict(head_dim=32, pad_token_id=0, sliding_window=64, query_pre_attn_scalar=32), "bfloat16"),
    "mistral": ("MistralConfig", {}, "bfloat16"),
    "gpt_neox": ("GPTNeoXConfig", dict(num_key_value_heads=None), "bfloat16"),
    "llama_f32": ("LlamaConfig", {}, "float32"),
    "llama_f16": ("LlamaConfig", {}, "float16"),
    "llama_tied": ("LlamaConfig", dict(tie_word_embeddings=True), "bfloat16"),
}  # fmt: skip
SHARED = ("nano_llama", "nano_qwen3", "nano_mixtral", "nano_opt", "nano_gemma2")
MIXTURES = ("nano_mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")


def fill(model, seed):
    """Normal weights of a size like trained ones, biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2 or "bias" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.05)


def save(name, config, dtype, out):
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    fill(model, seed=sum(map(ord, name)))
    model.save_pretrained(out)
    return out


def generate(name, root):
    """The directory of the generated checkpoint `name` under `root`, made on first use."""
    out = pathlib.Path(root) / name
    if out.exists():
        return out
    if name == "gpt2":
        return save(name, transformers.GPT2Config(**GPT2), "bfloat16", out)
    if name == "odd_llama":  # a hidden size that no group of 128 or 64 divides
        return save(name, transformers.LlamaConfig(**{**BASE, "hidden_size": 96}), "bfloat16", out)
    kind, extra, dtype = GENERATED[name]
    arguments = {k: v for k, v in {**BASE, **extra}.items() if v is not None}
    return save(name, getattr(transformers, kind)(**arguments), dtype, out)


def shared_directories(repo, override):
    """Where the trained models may be: an override, the repository, a sibling checkout of shared data."""
    return [pathlib.Path(p) for p in (override, repo / "tests" / "models", repo.parent / "shared" / "models") if p]


def find_shared(name, repo, override):
    for root in shared_directories(repo, override):
        if (root / name / "config.json").exists():
            return root / name
    return None
