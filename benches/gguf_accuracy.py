#!/usr/bin/env python3
"""Held-out divergence of GGUF files of about the same size: blocks that are rounded to, weighed by importance, or made of the codes of
GPTQ and its kin, beside llama.cpp's own quantizer where that is at hand.

    python3 benches/gguf_accuracy.py --calib TEXT --data TEXT MODEL... [--kvant target/release/kvant] [--llama-quantize BIN]

Each row has the size of the file, the perplexity and, in brackets, the mean KL divergence from the source in nats. `kvant eval` reads all
files, llama.cpp's too. Codes of algorithms become a file whose embedding and head are floats; a second run gives these the types of Q4_0,
and leaves the codes as they are, so that all files of a size have the same types.
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

    def kvant(self, name, source, *options):
        out = self.folder / f"{name}.gguf"
        run(self.a.kvant, "quantize", source, "--format", "gguf", "-o", out, *options)
        return out

    def llama(self, name, mix, *options):
        source, out = self.folder / "source.gguf", self.folder / f"{name}.gguf"
        if not source.exists():
            self.kvant("source", self.model, "--scheme", "BF16")
        run(self.a.llama_quantize, *options, source, out, mix, self.a.threads)
        return out

    def coded(self, name, scheme, mix, algorithm):
        made = self.kvant(f"{name}-codes", self.model, "--scheme", scheme, "--algorithm", algorithm, *self.data)
        return self.kvant(name, made, "--scheme", mix)

    def all(self):
        for mix in ("Q4_0", "Q4_1", "Q4_K_M"):
            yield mix, "Kvant", self.kvant(mix, self.model, "--scheme", mix)
            weighed = ("--algorithm", "imatrix", *self.data, "--save-imatrix", self.importance, "--overwrite")
            yield f"{mix}, importance", "Kvant", self.kvant(f"{mix}-weighed", self.model, "--scheme", mix, *weighed)
            if self.a.llama_quantize:
                yield mix, "llama.cpp", self.llama(f"{mix}-llama", mix)
                yield f"{mix}, importance", "llama.cpp", self.llama(f"{mix}-llama-weighed", mix, "--imatrix", self.importance)
        for algorithm in CODES:
            yield f"Q4_0 of {algorithm}", "Kvant", self.coded(algorithm, "int4:g32", "Q4_0", algorithm)
        yield "Q4_1 of gptq", "Kvant", self.coded("asymmetric", "uint4:g32:zp", "Q4_1", "gptq")


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
    print("| model | file | | MB | perplexity (KL) |\n|---|---|---|---|---|")
    for model in a.models:
        with tempfile.TemporaryDirectory() as folder:
            for name, tool, file in Files(a, model, folder).all():
                compare = (file, "--reference", model, "--data", a.data, "--seq-len", a.seq_len, "--json")
                found = json.loads(run(a.kvant, "eval", *compare))
                score = f"{found['perplexity']:.3f} ({found['kl_mean']:.4f})"
                print(f"| {Path(model).name} | {name} | {tool} | {file.stat().st_size / 1e6:.2f} | {score} |", flush=True)


if __name__ == "__main__":
    main()
