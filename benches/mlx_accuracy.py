#!/usr/bin/env python3
"""KL divergence of checkpoints for MLX: Kvant beside mlx-lm's own `convert` and `gptq`.

    PYTHONPATH=FOLDER-WITH-MLX python3 benches/mlx_accuracy.py --calib TEXT --data TEXT MODEL... [--kvant target/release/kvant]

All quantize the linear layers of blocks in groups of 64 with zero points, and the head to 8 bits; GPTQ sees the same tokens. Embeddings have
8 bits in mlx-lm and stay as they are in Kvant. All are evaluated by `kvant eval`, whose logits tests/interop compares with MLX's. Prints a Markdown table: mean KL divergence from the float model in nats, and in brackets the seconds that it took.
"""
import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import convert
from mlx_lm.quant.gptq import gptq_quantize
from mlx_lm.utils import load, save

SAMPLES, LENGTH = 128, 256


EIGHT = dict(bits=8, group_size=64)


class Head(nn.Linear):
    """A layer that mlx-lm's GPTQ leaves to its fallback, as it does embeddings."""


def by_convert(model, out, bits, _):
    convert(str(model), str(out), quantize=True, q_bits=bits, q_group_size=64,
            quant_predicate=lambda path, module: EIGHT if "embed" in path or "lm_head" in path else True)  # fmt: skip


def by_their_gptq(model, out, bits, calib):
    mx.random.seed(0)
    loaded, tokenizer, config = load(str(model), return_config=True)
    if "lm_head" in loaded:
        loaded.lm_head.__class__ = Head
    tokens = mx.array(tokenizer.encode(Path(calib).read_text()))[: SAMPLES * LENGTH].reshape(SAMPLES, LENGTH)
    loaded, config["quantization"] = gptq_quantize(loaded, tokens, bits, 64, 8, 64)
    save(out, str(model), loaded, tokenizer, config)


def by_kvant(*options):
    def run(model, out, bits, calib):
        data = ["--calib", calib, "--num-samples", SAMPLES, "--seq-len", LENGTH] if "-a" in options else []
        scheme = f"int{bits}:g64:zp"
        command = [KVANT, "quantize", model, "-s", scheme, "--override", "lm_head=int8:g64:zp", *options, *data, "-f", "mlx", "-q", "-o", out]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)

    return run


WAYS = {"mlx-lm, nearest": by_convert, "mlx-lm, GPTQ": by_their_gptq, "Kvant, nearest": by_kvant(), "Kvant, GPTQ": by_kvant("-a", "gptq"),
        "Kvant, Qronos, searched scales": by_kvant("-a", "qronos", "--scales", "search")}  # fmt: skip


def divergence(model, out, data):
    done = subprocess.run([KVANT, "eval", out, "--reference", model, "--data", data, "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["kl_mean"]


def main():
    global KVANT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kvant", default=Path(__file__).resolve().parent.parent / "target/release/kvant")
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 3, 2])
    arguments = parser.parse_args()
    KVANT = arguments.kvant
    print(f"| model, bits | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
    for model in arguments.models:
        for bits in arguments.bits:
            cells = []
            for way in WAYS.values():
                # mlx-lm's GPTQ has codes of 2, 4 and 8 bits.
                if way is by_their_gptq and bits == 3:
                    cells.append("")
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    out, start = Path(folder) / "out", time.monotonic()
                    way(model, out, bits, arguments.calib)
                    took = time.monotonic() - start
                    cells.append(f"{divergence(model, out, arguments.data):.4f} ({took:.1f})")
            print(f"| {model.name}, {bits} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
