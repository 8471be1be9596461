#!/usr/bin/env python3
"""Held-out divergence of GGUF files whose codes are chosen with error feedback, beside those of llama.cpp's quantizer and of Kvant's
own scale search, with the same types of all tensors.

    python3 benches/gguf_algorithms.py --calib TEXT --data TEXT --cache FILE MODEL... [--kvant target/release/kvant]
                                       [--llama target/llama.cpp/lib/libllama.so] [--mixes ...] [--algorithms ...]

Each cell is the mean KL divergence from the source in nats, as `kvant eval` finds it for every file. llama.cpp gets the importance of inputs
that `--algorithm imatrix` has measured on the calibration text, and the source in BF16. A column is measured where its tool is given; what the
cache has is not measured again (--forget NAME). Prints a Markdown table.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# llama_ftype of llama.h.
FTYPES = {"Q4_0": 2, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17,
          "Q6_K": 18, "Q2_K_S": 21, "IQ4_NL": 25, "IQ4_XS": 30}  # fmt: skip
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


class Importance(ctypes.Structure):
    """llama_model_imatrix_data"""

    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


class Parameters(ctypes.Structure):
    """llama_model_quantize_params"""

    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int), ("output_tensor_type", ctypes.c_int), ("token_embedding_type", ctypes.c_int),
                *[(name, ctypes.c_bool) for name in ("allow_requantize", "quantize_output_tensor", "only_copy", "pure", "keep_split", "dry_run")],
                ("imatrix", ctypes.POINTER(Importance)), ("kv_overrides", ctypes.c_void_p), ("tt_overrides", ctypes.c_void_p),
                ("prune_layers", ctypes.c_void_p), ("max_buf_size", ctypes.c_size_t)]  # fmt: skip


def importance_of(path):
    """The mean squares of inputs in a file of `--save-imatrix`, as llama.cpp wants them."""
    import gguf
    import numpy

    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    found = []
    for name in [name.removesuffix(".in_sum2") for name in tensors if name.endswith(".in_sum2")]:
        sums, counts = tensors[f"{name}.in_sum2"], tensors[f"{name}.counts"].reshape(-1, 1)
        means = numpy.ascontiguousarray((sums.reshape(len(counts), -1) / numpy.maximum(counts, 1)).astype(numpy.float32).reshape(-1))
        found.append((name.encode(), means))
    return found


def llama(library, source, out, mix, importance, threads):
    library = ctypes.CDLL(library)
    library.llama_model_quantize_default_params.restype = Parameters
    library.llama_log_set(ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None), None)
    parameters = library.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype = threads, FTYPES[mix]
    pointer = ctypes.POINTER(ctypes.c_float)
    data = [Importance(name, means.ctypes.data_as(pointer), means.size) for name, means in importance]
    if data:
        parameters.imatrix = (Importance * (len(data) + 1))(*data, Importance(None, None, 0))
    if library.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(parameters)):
        raise SystemExit(f"llama.cpp does not quantize {source} to {mix}")


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
            out = self.folder / "llama.gguf"
            llama(self.a.llama, self.source(), out, mix, self.importance() if column == "llama+imatrix" else [], self.a.threads)
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
