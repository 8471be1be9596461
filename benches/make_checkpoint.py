#!/usr/bin/env python3
"""Writes a Llama-shaped checkpoint of random bf16 weights, sharded, for benchmarks. Needs numpy alone.

The default has 1.1 billion parameters (2.2 GB); --layers 88 makes 8 GB. Weights are normal with a standard deviation of
0.02, and one input channel in 64 is eight times larger, like the outliers of trained models. Blocks repeat a few random
matrices, so that writing is limited by the disk.
"""
import argparse
import json
import struct
from pathlib import Path

import numpy as np


def tensor_shapes(a):
    head = a.hidden // a.heads
    yield "model.embed_tokens.weight", (a.vocab, a.hidden)
    for layer in range(a.layers):
        block = f"model.layers.{layer}"
        yield f"{block}.input_layernorm.weight", (a.hidden,)
        yield f"{block}.self_attn.q_proj.weight", (a.heads * head, a.hidden)
        yield f"{block}.self_attn.k_proj.weight", (a.kv_heads * head, a.hidden)
        yield f"{block}.self_attn.v_proj.weight", (a.kv_heads * head, a.hidden)
        yield f"{block}.self_attn.o_proj.weight", (a.hidden, a.heads * head)
        yield f"{block}.post_attention_layernorm.weight", (a.hidden,)
        yield f"{block}.mlp.gate_proj.weight", (a.ffn, a.hidden)
        yield f"{block}.mlp.up_proj.weight", (a.ffn, a.hidden)
        yield f"{block}.mlp.down_proj.weight", (a.hidden, a.ffn)
    yield "model.norm.weight", (a.hidden,)
    yield "lm_head.weight", (a.vocab, a.hidden)


def to_bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def fill_shards(shapes, limit):
    shards, size = [[]], 0
    for name, shape in shapes:
        length = 2 * int(np.prod(shape))
        if size and size + length > limit:
            shards.append([])
            size = 0
        shards[-1].append((name, shape, length))
        size += length
    return shards


def write_shard(path, shard, weights):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, length in shard:
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + length]}
        offset += length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if weights is None:
            file.truncate(8 + len(text) + offset)
            return
        for _, shape, _ in shard:
            file.write(weights(shape))


def write_shards(out, shapes, limit, weights=None):
    """Writes shards of at most so many bytes with their index, without weights as holes; returns bytes and number."""
    shards, index = fill_shards(shapes, limit), {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(out / name, shard, weights)
        index |= {tensor: name for tensor, _, _ in shard}
    total = sum(length for shard in shards for _, _, length in shard)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (out / "model.safetensors.index.json").write_text(text)
    return total, len(shards)


def weight_source(seed):
    rng, made = np.random.default_rng(seed), {}

    def weights(shape):
        if len(shape) == 1:
            return to_bf16(np.ones(shape)).tobytes()
        if shape not in made:
            values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
            values[:, ::64] *= 8
            made[shape] = to_bf16(values).tobytes()
        return made[shape]

    return weights


def config(a):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": a.hidden, "intermediate_size": a.ffn,
        "num_hidden_layers": a.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads,
        "head_dim": a.hidden // a.heads, "vocab_size": a.vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    sizes = {"hidden": 2048, "layers": 22, "ffn": 5632, "heads": 32, "kv-heads": 4, "vocab": 32000, "shard-mb": 500, "seed": 0}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    total, shards = write_shards(a.out, tensor_shapes(a), a.shard_mb * 1_000_000, weight_source(a.seed))
    (a.out / "config.json").write_text(json.dumps(config(a), indent=1))
    print(f"{total / 1e9:.2f} GB in {shards} shards")


if __name__ == "__main__":
    main()
