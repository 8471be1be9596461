#!/usr/bin/env python3
"""Held-out divergence of GGUF files whose codes are chosen with error feedback, beside those of llama.cpp's quantizer and of Kvant's
own scale search, with the same types of all tensors.

    python3 benches/gguf_algorithms.py --calib TEXT --data TEXT --cache FILE MODEL... [--kvant target/release/kvant]
                                       [--llama target/llama.cpp/lib/libggml-base.so] [--mixes ...] [--algorithms ...]

Each cell is the mean KL divergence from the source in nats, as `kvant eval` finds it for every file. llama.cpp's blocks are those of
ggml_quantize_chunk, which llama-quantize calls, with the importance of inputs that `--algorithm imatrix` has measured on the calibration text. A column is measured where its tool is given; what the
cache has is not measured again (--forget NAME). Prints a Markdown table.
"""
import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy

MIXES = ["Q2_K_S", "Q2_K", "Q3_K_S", "Q3_K_M", "Q4_0", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q6_K"]
LLAMA = ["llama", "llama+imatrix"]
OURS = ["rtn", "imatrix", "gptq", "gptq:rounds=4", "gptaq:rounds=4", "qronos", "qronos:rounds=4"]
NAMES = {"llama": "llama.cpp", "llama+imatrix": "llama.cpp, imatrix", "rtn": "Kvant", "imatrix": "Kvant, imatrix", "gptq": "GPTQ",
         "gptq:rounds=4": "GPTQ refined", "gptaq:rounds=4": "GPTAQ refined", "qronos": "Qronos", "qronos:rounds=4": "Qronos refined"}  # fmt: skip


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def importance_of(path):
    """The mean squares of inputs in a file of `--save-imatrix`, by the name of the weight."""
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    found = {}
    for name in [name.removesuffix(".in_sum2") for name in tensors if name.endswith(".in_sum2")]:
        sums, counts = tensors[f"{name}.in_sum2"], tensors[f"{name}.counts"].reshape(-1, 1)
        found[name] = (sums.reshape(len(counts), -1) / numpy.maximum(counts, 1)).astype(numpy.float32)
    return found


def llama(library, source, template, out, importance):
    """Writes `template` with the blocks that llama.cpp makes of the values in `source`, as llama-quantize does."""
    library = ctypes.CDLL(library)
    pointer = ctypes.POINTER(ctypes.c_float)
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, pointer, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, pointer]
    shutil.copy(template, out)
    floats = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    with open(out, "r+b") as file:
        for tensor in gguf.GGUFReader(template).tensors:
            kind = tensor.tensor_type
            if gguf.GGML_QUANT_SIZES[kind][0] == 1:
                continue
            values = gguf.quants.dequantize(floats[tensor.name].data, floats[tensor.name].tensor_type)
            matrices = numpy.ascontiguousarray(values, dtype=numpy.float32).reshape(-1, *values.shape[-2:])
            file.seek(tensor.data_offset)
            for matrix, values in enumerate(matrices):
                means = importance.get(tensor.name)
                means = numpy.ascontiguousarray(means[matrix]).ctypes.data_as(pointer) if means is not None else None
                made = ctypes.create_string_buffer(tensor.n_bytes // len(matrices))
                size = quantize(int(kind), values.ctypes.data_as(pointer), made, 0, *values.shape, means)
                if size != len(made):
                    raise SystemExit(f"{tensor.name}: {size} bytes, and {len(made)} were expected")
                file.write(made.raw)


class Files:
    """The files of one model."""

    def __init__(self, a, model, folder):
        self.a, self.model, self.folder = a, model, Path(folder)
        self.data = ("--calib", a.calib, "--num-samples", a.samples, "--seq-len", a.seq_len)

    def kvant(self, out, *options):
        out = self.folder / out
        if not out.exists():
            run(self.a.kvant, "quantize", self.model, "-o", out, "--threads", self.a.threads, "--quiet", *options)
        return out

    def source(self):
        return self.kvant("source.gguf", "--scheme", "BF16", "--format", "gguf")

    def importance(self):
        saved = self.folder / "importance.gguf"
        if not saved.exists():
            self.kvant("weighed.gguf", "--scheme", "Q8_0", "--algorithm", "imatrix", *self.data, "--save-imatrix", saved)
        return importance_of(saved)

    def make(self, mix, column):
        if column in LLAMA:
            weighs = column == "llama+imatrix"
            template, out = self.make(mix, "imatrix" if weighs else "rtn"), self.folder / "llama.gguf"
            llama(self.a.llama, self.source(), template, out, self.importance() if weighs else {})
            return out
        data = () if column == "rtn" else ("--algorithm", column, *self.data)
        return self.kvant("ours.gguf", "--scheme", mix, *data)

    def measure(self, mix, column):
        made = self.make(mix, column)
        compare = ("--reference", self.model, "--data", self.a.data, "--seq-len", self.a.seq_len, "--threads", self.a.threads, "--json")
        found = json.loads(run(self.a.kvant, "eval", made, *compare))
        size = made.stat().st_size
        made.unlink()
        return {"kl": found["kl_mean"], "perplexity": found["perplexity"], "bytes": size}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--kvant")
    parser.add_argument("--llama")
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--algorithms", default="/".join(LLAMA + OURS))
    parser.add_argument("--forget", action="append", default=[])
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    cache = Path(a.cache)
    known = json.loads(cache.read_text()) if cache.exists() else {}
    known = {key: found for key, found in known.items() if key.split(" | ")[2] not in a.forget}
    columns = a.algorithms.split("/")
    print(f"| model | file | {' | '.join(NAMES.get(column, column) for column in columns)} |\n|{'---|' * (len(columns) + 2)}")
    for model in a.models:
        for mix in a.mixes.split(","):
            row = []
            for column in columns:
                key = f"{Path(model).name} | {mix} | {column} | {a.samples}x{a.seq_len}"
                has_tool = a.llama and a.kvant if column in LLAMA else a.kvant
                if key not in known and has_tool:
                    with tempfile.TemporaryDirectory() as folder:
                        known[key] = Files(a, model, folder).measure(mix, column)
                    with tempfile.NamedTemporaryFile("w", dir=cache.parent, delete=False) as file:
                        json.dump(known, file, indent=0, sort_keys=True)
                    os.replace(file.name, cache)
                    print(f"{key}: {known[key]}", file=sys.stderr, flush=True)
                row.append(f"{known[key]['kl']:.5f}" if key in known else "-")
            print(f"| {Path(model).name} | {mix} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
