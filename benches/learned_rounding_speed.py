#!/usr/bin/env python3
"""Times learned rounding beside AutoRound: a step of 2048 tokens through one decoder block, in one run.

    python3 benches/learned_rounding_speed.py MODEL --kvant target/release/kvant --auto-round PYTHON_OR_FOLDER [--iterations 5,15] [--rounds 1]

MODEL is a Llama-shaped checkpoint, e.g. the 1.1 billion parameters of benches/make_checkpoint.py cut to two blocks (--layers 2). Both tools round the
weights of its blocks to int4 in groups of 128 on the same random tokens, 32 sequences of 256, eight to a step. What a step takes is the difference
between runs with few and with more iterations, so that loading, calibration and writing do not count. AutoRound computes in bf16 where the processor
has instructions for it, and in f32 elsewhere; so does Kvant.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from algorithms_speed import measure, write_tokens

HERE = Path(__file__).resolve().parent
AUTO_ROUND = """
import sys
folder, packages, source, tokens, iterations, threads = sys.argv[1:]
sys.path[:0] = [folder, *([packages] if packages else [])]
import numpy, torch
from transformers import AutoModelForCausalLM
import quality_auto_round
torch.set_num_threads(int(threads))
model = AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
cell = {"scheme": "int4 g128", "iterations": int(iterations)}
quality_auto_round.quantized(model, cell, torch.from_numpy(numpy.load(tokens)).long())
"""


def commands(a, tokens, iterations):
    kvant = [a.kvant, "quantize", a.model, "--scheme", "int4:g128", "--scales", "search", "--algorithm", f"autoround:iterations={iterations}", "--calib", tokens,
             "--num-samples", a.samples, "--seq-len", a.seq_len, "--threads", a.threads, "--quiet", "-o", None]  # fmt: skip
    packages = a.auto_round if Path(a.auto_round).is_dir() else ""
    python = sys.executable if packages else a.auto_round
    auto_round = [python, "-c", AUTO_ROUND, HERE, packages, a.model, tokens, iterations, a.threads]
    for name, command in (("Kvant", kvant), ("AutoRound", auto_round)):
        yield name, [part if part is None else str(part) for part in command]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvant", required=True, help="the program, e.g. target/release/kvant")
    parser.add_argument("--auto-round", required=True, help="a Python with auto-round, or a folder of packages for this one")
    parser.add_argument("--iterations", default="5,15", help="of the short and of the long run")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=7200, help="seconds of wall time after which a run is stopped")
    parser.add_argument("--folder", help="where checkpoints are written")
    a = parser.parse_args()
    blocks = json.loads((Path(a.model) / "config.json").read_text())["num_hidden_layers"]
    few, more = (int(count) for count in a.iterations.split(","))
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        tokens = os.path.join(folder, "tokens.npy")
        write_tokens(tokens, a)
        for _ in range(a.rounds):
            for iterations in (few, more):
                for name, command in commands(a, tokens, iterations):
                    found = measure(command, a)
                    print(name, iterations, found, file=sys.stderr, flush=True)
                    if "fails" in found:
                        sys.exit(f"{name} with {iterations} iterations failed")
                    runs.setdefault((name, iterations), []).append(found)
    print("| | processor s for a step and block | of the whole short run | peak resident MB | peak private MB |\n|---|---|---|---|---|")
    for name in ("Kvant", "AutoRound"):
        total = {iterations: median(run["processor"] for run in runs[name, iterations]) for iterations in (few, more)}
        peaks = [max(run[kind] for run in runs[name, more]) for kind in ("resident", "private")]
        step = (total[more] - total[few]) / (more - few) / blocks
        print(f"| {name} | {step:.2f} | {total[few]:.0f} | {peaks[0]:.0f} | {peaks[1]:.0f} |")


if __name__ == "__main__":
    main()
