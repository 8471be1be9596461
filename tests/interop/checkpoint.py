"""Reads the tensors of a checkpoint directory and brings names to one form, so that two exports can be compared."""

import json
import pathlib
import re

from safetensors.torch import load_file

# Names that transformers gives to quantizer state when it maps a Quark module back to a file.
STATE_NAMES = (
    (r"\.(weight|input|output|bias)_quantizer\.scale$", r".\1_scale"),
    (r"\.(weight|input|output|bias)_quantizer\.zero_point$", r".\1_zero_point"),
    (r"\.(weight|input|output|bias)_quantizer\.0\.(scale|zero_point)$", r".\1_\2"),
    (r"\.(weight|input|output|bias)_quantizer\.1\.(scale|zero_point)$", r".\1_\2_2"),
)
# The names of Mixtral's experts and of GPT-NeoX's head differ between files and modules.
MODULE_NAMES = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"\.experts\.(\d+)\.w1\.", r".experts.\1.gate_proj."),
    (r"\.experts\.(\d+)\.w3\.", r".experts.\1.up_proj."),
    (r"\.experts\.(\d+)\.w2\.", r".experts.\1.down_proj."),
    (r"^embed_out\.", "lm_head."),
)


def canonical(name):
    for pattern, replacement in STATE_NAMES + MODULE_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def raw_tensors(directory):
    """Every tensor under the name it has on disk; sharded or not."""
    directory = pathlib.Path(directory)
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return load_file(directory / "model.safetensors")
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {name: t for shard in shards for name, t in load_file(directory / shard).items()}


def tensors(directory):
    return {canonical(name): t for name, t in raw_tensors(directory).items()}


def config(directory):
    return json.loads((pathlib.Path(directory) / "config.json").read_text())


def quantized_modules(names):
    """Modules that have a weight scale."""
    return {name.removesuffix(".weight_scale") for name in names if name.endswith(".weight_scale")}


def source_weights(directory):
    """Weights of the unquantized model by module name, fused 3-D experts split as [out, in]."""
    found = {}
    for name, t in tensors(directory).items():
        fused = re.match(r"(.*\.experts)\.(gate_up_proj|down_proj)$", name)
        if fused and t.dim() == 3:
            found.update({f"{fused[1]}.{e}.{fused[2]}": t[e].t().contiguous() for e in range(t.shape[0])})
        elif name.endswith(".weight"):
            found[name.removesuffix(".weight")] = t
    return found
