#!/usr/bin/env python3
"""Writes a checkpoint of the shape of Qwen3.5-MoE, experts in one tensor as published, whose weights are holes in the files: it takes no
room. For the time and the memory of models that are larger than either. Needs transformers.

    benches/sparse_checkpoint.py OUT                    20 GB: 12 blocks of 256 experts
    benches/sparse_checkpoint.py OUT --one-tensor       one block, one tensor of 10.7 GB
"""
import argparse
from pathlib import Path

import torch
from make_checkpoint import write_shards
from transformers import AutoModelForCausalLM, Qwen3_5MoeTextConfig

SHARD = 5_000_000_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--one-tensor", action="store_true")
    a = parser.parse_args()
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
    total, shards = write_shards(a.out, shapes, SHARD)
    print(f"{total / 1e9:.1f} GB in {shards} files")


if __name__ == "__main__":
    main()
