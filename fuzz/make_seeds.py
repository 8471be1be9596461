#!/usr/bin/env python3
"""Writes small inputs from which fuzzers start, into fuzz/seeds.

    python3 fuzz/make_seeds.py --kvant target/release/kvant

Needs numpy, safetensors, tokenizers and torch: the environment of tests/interop/requirements.txt.
"""
import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 300, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float16",
    "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] | trim }}{% endfor %}"
# Schemes with the formats that hold them; the number is the fuzz target's for the scheme to quantize to.
CHECKPOINTS = {
    "quark-int4": ["int4:g32", "quark"],
    "compressed-tensors-int4": ["int4:g32", "compressed-tensors"],
    "compressed-tensors-fp8": ["FP8_DYNAMIC", "compressed-tensors"],
    "compressed-tensors-mxfp4": ["MXFP4A16", "compressed-tensors"],
    "compressed-tensors-nvfp4": ["NVFP4A16", "compressed-tensors"],
    "awq": ["uint4:g32:zp", "awq"],
    "gptq": ["int4:g32", "gptq"],
    "mlx": ["uint4:g32:zp", "mlx"],
    "torchao": ["FP8_DYNAMIC", "torchao"],
}
RECIPES = {
    0: 'scheme = "int4:g32"\nalgorithm = ["awq", "gptq:damping=0.05"]\nexclude = ["lm_head"]\n\n[[override]]\nlayers = "re:.*down_proj"\nscheme = "int8:channel"\n',
    2: "quant_stage:\n  quant_modifiers:\n    GPTQModifier:\n      ignore: [lm_head]\n      scheme: W4A16\n      targets: [Linear]\n",
    3: json.dumps({"bits": 4, "group_size": 32, "sym": True, "iters": 10, "layer_config": {"model.layers.0.mlp.down_proj": {"bits": 8}}}),
}


def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(["the model of the layer"], trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
    return made.to_str()


def write_model(folder):
    random = np.random.default_rng(0)
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
              "mlp.gate_proj": (64, 64), "mlp.up_proj": (64, 64), "mlp.down_proj": (64, 64)}  # fmt: skip
    tensors = {f"model.layers.0.{name}.weight": random.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}
    norms = ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"]
    tensors |= {f"{norm}.weight": np.ones(64, np.float16) for norm in norms}
    tensors["model.embed_tokens.weight"] = random.normal(size=(300, 64)).astype(np.float16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(tokenizer())
    return tensors


def graph():
    """A convolution, an activation and a product, in opset 17."""
    random = np.random.default_rng(0)
    weights = {"w": (2, 1, 3, 3), "v": (8, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Clip", ["c", "low", "high"], ["r"], name="clip"),
        helper.make_node("Flatten", ["r"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "v"], ["y"], name="gemm"),
    ]
    constants = [numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()]
    constants += [numpy_helper.from_array(np.float32(bound), name) for name, bound in (("low", 0), ("high", 6))]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 1, 2, 2]), ("y", [1, 3]))]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def header(file):
    raw = file.read_bytes()
    return raw[8 : 8 + int.from_bytes(raw[:8], "little")].rstrip()


def checkpoint_seed(folder, scheme=0):
    """Without values, which are zeros then."""
    config = json.dumps(json.loads((folder / "config.json").read_text()), separators=(",", ":"))
    return bytes([scheme]) + config.encode() + b"\0" + header(folder / "model.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvant", required=True)
    kvant = str(Path(parser.parse_args().kvant).resolve())
    seeds = HERE / "seeds"
    shutil.rmtree(seeds, ignore_errors=True)

    def seed(target, name, content):
        (seeds / target).mkdir(parents=True, exist_ok=True)
        (seeds / target / name).write_bytes(content)

    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "source"
        source.mkdir()
        tensors = write_model(source)
        run = [kvant, "quantize", str(source), "--quiet", "-o"]
        for scheme in range(5):
            seed("checkpoint", f"float-{scheme}", checkpoint_seed(source, scheme))
        for name, (scheme, form) in CHECKPOINTS.items():
            output = Path(work) / name
            subprocess.run([*run, str(output), "--scheme", scheme, "--format", form, "--max-shard-size", "1GB"], check=True)
            seed("checkpoint", name, checkpoint_seed(output))
            written = json.loads((output / "config.json").read_text())
            if "quantization_config" in written and form in ("quark", "compressed-tensors"):
                seed("recipe", f"{name}.json", bytes([3]) + json.dumps(written["quantization_config"]).encode())
        for kind in ("Q4_0", "Q8_0", "IQ4_NL"):
            file = Path(work) / f"{kind}.gguf"
            if subprocess.run([*run, str(file), "--scheme", kind]).returncode == 0:
                seed("gguf_values", kind.lower(), file.read_bytes())
        small = {name: torch.from_numpy(tensor[:4].copy()) for name, tensor in tensors.items() if tensor.ndim == 2}
        for zipped in (True, False):
            file = Path(work) / "weights.bin"
            torch.save(small, file, _use_new_zipfile_serialization=zipped)
            seed("pickle", "zip" if zipped else "legacy", file.read_bytes())
        seed("tokenizer", "bpe", tokenizer().encode() + b"\0" + json.dumps({"chat_template": TEMPLATE, "bos_token": "<s>"}).encode())
        tokens = np.arange(40, dtype=np.int64).reshape(2, 20)
        np.save(f"{work}/a.npy", tokens)
        save_file({"input_ids": tokens}, f"{work}/a.safetensors")
        for choice, content in ((0, b"A text."), (1, b'{"text": "A text."}\n{"messages": [{"role": "user", "content": "Hi"}]}\n'), (2, b'[{"text": "A"}]'),
                                (4, Path(work, "a.npy").read_bytes()), (5, Path(work, "a.safetensors").read_bytes())):  # fmt: skip
            seed("calibration_data", f"format-{choice}", bytes([choice]) + content)
        seed("safetensors_header", "tokens", Path(work, "a.safetensors").read_bytes())
        writer = gguf.GGUFWriter(f"{work}/a.gguf", "llama")
        writer.add_array("names", ["a", "b"])
        writer.add_tensor("t", np.zeros((2, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        seed("gguf_header", "small", Path(work, "a.gguf").read_bytes())
        onnx.save(graph(), f"{work}/a.onnx")
        np.savez(f"{work}/a.npz", x=np.random.default_rng(1).normal(size=(4, 1, 2, 2)).astype(np.float32))
        run = [kvant, "quantize", f"{work}/a.onnx", "--preset", "U8S8_AAWS", "--data", f"{work}/a.npz", "--quiet", "-o", f"{work}/q.onnx"]
        subprocess.run(run, check=True)
        for name in ("a", "q"):
            seed("onnx_model", name, Path(work, f"{name}.onnx").read_bytes())
    for choice, text in RECIPES.items():
        seed("recipe", f"written-{choice}", bytes([choice]) + text.encode())


if __name__ == "__main__":
    main()
