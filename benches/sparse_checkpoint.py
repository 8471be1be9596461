#!/usr/bin/env python3
"""Writes a checkpoint of the shape of Qwen3.5-MoE, experts in one tensor as published, whose weights are holes in the files: it takes no
room. For the time and the memory of models that are larger than either. Needs transformers.

    benches/sparse_checkpoint.py OUT                    20 GB: 12 blocks of 256 experts
    benches/sparse_checkpoint.py OUT --one-tensor       one block, one tensor of 10.7 GB
    benches/sparse_checkpoint.py OUT --trillion         2 TB, in a thousand files: 61 blocks of 384 experts (DeepSeek-V3's shape), without transformers
"""
import argparse
import json
from pathlib import Path

from make_checkpoint import write_shards

SHARD = 5_000_000_000

TRILLION = dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", dtype="bfloat16", hidden_size=7168, intermediate_size=18432,
    moe_intermediate_size=2048, num_hidden_layers=61, first_k_dense_replace=1, n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=8,
    n_group=1, topk_group=1, routed_scaling_factor=2.827, norm_topk_prob=True, scoring_func="sigmoid", topk_method="noaux_tc",
    num_attention_heads=64, num_key_value_heads=64, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    vocab_size=163840, max_position_embeddings=131072, rms_norm_eps=1e-6, rope_theta=50000.0, tie_word_embeddings=False, hidden_act="silu",
)


def trillion_shapes(c):
    """The tensors of a model of DeepSeek-V3's shape, as published: each expert has its own."""
    hidden, heads, nope, rope, value = (c[k] for k in ("hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        yield f"{block}.input_layernorm.weight", (hidden,)
        yield f"{block}.self_attn.q_a_proj.weight", (c["q_lora_rank"], hidden)
        yield f"{block}.self_attn.q_a_layernorm.weight", (c["q_lora_rank"],)
        yield f"{block}.self_attn.q_b_proj.weight", (heads * (nope + rope), c["q_lora_rank"])
        yield f"{block}.self_attn.kv_a_proj_with_mqa.weight", (c["kv_lora_rank"] + rope, hidden)
        yield f"{block}.self_attn.kv_a_layernorm.weight", (c["kv_lora_rank"],)
        yield f"{block}.self_attn.kv_b_proj.weight", (heads * (nope + value), c["kv_lora_rank"])
        yield f"{block}.self_attn.o_proj.weight", (hidden, heads * value)
        yield f"{block}.post_attention_layernorm.weight", (hidden,)
        is_dense = layer < c["first_k_dense_replace"]
        networks = [("", c["intermediate_size"])] if is_dense else [(f"experts.{e}.", c["moe_intermediate_size"]) for e in range(c["n_routed_experts"])]
        if not is_dense:
            networks.append(("shared_experts.", c["moe_intermediate_size"]))
            yield f"{block}.mlp.gate.weight", (c["n_routed_experts"], hidden)
            yield f"{block}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
        for name, width in networks:
            for part, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
                yield f"{block}.mlp.{name}{part}_proj.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--one-tensor", action="store_true")
    parser.add_argument("--trillion", action="store_true")
    a = parser.parse_args()
    if a.trillion:
        a.out.mkdir(parents=True)
        (a.out / "config.json").write_text(json.dumps(TRILLION))
        return report(*write_shards(a.out, trillion_shapes(TRILLION), SHARD // 2))
    import torch
    from transformers import AutoModelForCausalLM, Qwen3_5MoeTextConfig

    sizes = dict(hidden_size=2048, moe_intermediate_size=512, num_hidden_layers=12)
    if a.one_tensor:
        sizes = dict(hidden_size=4096, moe_intermediate_size=2560, num_hidden_layers=1, layer_types=["full_attention"])
    config = Qwen3_5MoeTextConfig(
        **sizes, num_experts=256, num_experts_per_tok=8, shared_expert_intermediate_size=512, vocab_size=32000,
        num_attention_heads=16, num_key_value_heads=2, head_dim=256, dtype="bfloat16", tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    a.out.mkdir(parents=True)
    config.architectures = [type(model).__name__]
    config.save_pretrained(a.out)
    shapes = ((name, tuple(tensor.shape)) for name, tensor in model.state_dict().items())
    report(*write_shards(a.out, shapes, SHARD))


def report(total, shards):
    print(f"{total / 1e9:.1f} GB in {shards} files")


if __name__ == "__main__":
    main()
