#!/usr/bin/env python3
"""Held-out divergence of GGUF files of about the same size: blocks that are rounded to, weighed by importance, or made of the codes of
GPTQ and its kin, beside llama.cpp's own quantizer where that is at hand.

    python3 benches/gguf_accuracy.py --calib TEXT --data TEXT MODEL... [--kvant target/release/kvant] [--llama-quantize BIN]

Each cell is the perplexity, in brackets the mean KL divergence from the source in nats, and the bits that a weight takes in tensors that
have codes (llama.cpp's are those of the same type). `kvant eval` reads all files, llama.cpp's too.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

CODES = ("gptq", "awq,gptq", "qronos")


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


class Files:
    """The files of one model, by what they are."""

    def __init__(self, a, model, folder):
        self.a, self.model, self.folder = a, model, Path(folder)
        self.data = ("--calib", a.calib, "--num-samples", a.samples, "--seq-len", a.seq_len)
        self.importance = self.folder / "importance.gguf"

    def kvant(self, name, *options):
        out = self.folder / f"{name}.gguf"
        report = run(self.a.kvant, "quantize", self.model, "--format", "gguf", "-o", out, "--json", *options)
        return out, json.loads(report).get("bits_per_weight")

    def llama(self, name, mix, *options):
        source, out = self.folder / "source.gguf", self.folder / f"{name}.gguf"
        if not source.exists():
            self.kvant("source", "--scheme", "BF16")
        run(self.a.llama_quantize, *options, source, out, mix, self.a.threads)
        return out, None

    def all(self):
        for mix in ("Q4_0", "Q4_K_M"):
            yield mix, "Kvant", self.kvant(mix, "--scheme", mix)
            weighed = ("--algorithm", "imatrix", *self.data, "--save-imatrix", self.importance)
            yield f"{mix}, importance", "Kvant", self.kvant(f"{mix}-weighed", "--scheme", mix, *weighed)
            if self.a.llama_quantize:
                yield mix, "llama.cpp", self.llama(f"{mix}-llama", mix)
                yield f"{mix}, importance", "llama.cpp", self.llama(f"{mix}-llama-weighed", mix, "--imatrix", self.importance)
        for algorithm in CODES:
            made = self.kvant(algorithm, "--scheme", "int4:g32", "--algorithm", algorithm, *self.data)
            yield f"Q4_0 of {algorithm}", "Kvant", made
        made = self.kvant("asymmetric", "--scheme", "uint4:g32:zp", "--algorithm", "awq,gptq", *self.data)
        yield "Q4_1 of awq,gptq", "Kvant", made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--llama-quantize")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    print("| model | file | | bits | perplexity (KL) |\n|---|---|---|---|---|")
    for model in a.models:
        with tempfile.TemporaryDirectory() as folder:
            bits = {}
            for name, tool, (file, own) in Files(a, model, folder).all():
                bits[name] = own or bits.get(name)
                compare = (file, "--reference", model, "--data", a.data, "--seq-len", a.seq_len, "--json")
                found = json.loads(run(a.kvant, "eval", *compare))
                size = f"{bits[name]:.2f}" if bits[name] else ""
                score = f"{found['perplexity']:.3f} ({found['kl_mean']:.4f})"
                print(f"| {Path(model).name} | {name} | {tool} | {size} | {score} |", flush=True)


if __name__ == "__main__":
    main()
