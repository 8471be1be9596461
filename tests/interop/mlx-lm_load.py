"""Loads checkpoints with mlx-lm and runs them on MLX's CPU backend: a line of JSON for each, its logits in `CHECKPOINT.npy`.

python mlx-lm_load.py CHECKPOINT...
"""

import json
import os
import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_config, load_model

# What published configurations have and neither transformers 5 nor Kvant writes.
PUBLISHED = {"glm_moe_dsa": dict(topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1)}
TOKENS = np.random.default_rng(1).integers(0, 512, (1, 48)).astype(np.uint32)


def published(config):
    """The keys of a configuration as published ones have them. Kvant writes those that depend on the model beside codes."""
    rope = config.get("rope_parameters") or {}
    keys = dict(PUBLISHED.get(config["model_type"], {}))
    if "quantization" in config:
        return keys
    if config["model_type"] == "apertus":
        keys |= dict(mlp_bias=False, post_norm=False, qk_norm=True)
    if "sliding_attention" in rope:
        keys |= dict(rope_local_base_freq=rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    if "rope_theta" in rope:
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        keys |= dict(rope_theta=rope["rope_theta"], rope_scaling=scaling if scaling.get("rope_type") != "default" else None)
    if "num_local_experts" in config:
        keys |= dict(num_experts=config["num_local_experts"])
    return keys


def run(checkpoint):
    path = pathlib.Path(checkpoint)
    model, _ = load_model(path, model_config=published(load_config(path)))
    # 16-bit products of CPUs are summed in another order than Kvant's.
    model.set_dtype(mx.float32)
    logits = model(mx.array(TOKENS))
    np.save(f"{checkpoint}.npy", np.array(logits.astype(mx.float32)))
    return dict(ok=True)


def report(checkpoint):
    try:
        found = run(checkpoint)
    except Exception as error:  # Whatever mlx-lm raises is its answer.
        found = dict(ok=False, error=f"{type(error).__name__}: {error}"[:500])
    print(json.dumps(dict(found, checkpoint=checkpoint)), flush=True)


for checkpoint in sys.argv[1:]:
    # MLX ends the process over some models. What it has imported is shared.
    if (child := os.fork()) == 0:
        report(checkpoint)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status != 0:
        print(json.dumps(dict(ok=False, error=f"ended with status {status}", checkpoint=checkpoint)), flush=True)
