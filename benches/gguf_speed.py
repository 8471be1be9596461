#!/usr/bin/env python3
"""Times GGUF files from a checkpoint beside llama.cpp's own quantizer, in one run, and compares their errors.

    python3 benches/gguf_speed.py MODEL --llama-quantize BIN [--kvant target/release/kvant] [--types Q4_0,Q8_0,Q4_K_S] [--threads 2]

MODEL is a checkpoint of some gigabytes with a tokenizer, e.g. of benches/make_checkpoint.py beside one that lends its
tokenizer (--tokenizer DIR). llama-quantize starts from a BF16 GGUF file that Kvant writes first, Kvant from the checkpoint; both
run with the files in the page cache. Rounds alternate; the best counts. Errors are the squared error of all tensors of the
tested type over the sum of squares, by gguf-py's dequantizer, where Python has gguf.
"""
import argparse
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path


def measure(command):
    """Wall and processor seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def errors_of(files, reference, sample):
    """Relative squared errors of up to `sample` tensors that have the same quantized type in all files."""
    import numpy
    from gguf import GGUFReader
    from gguf.quants import dequantize

    floats = {tensor.name: tensor for tensor in GGUFReader(reference).tensors}
    made = [{tensor.name: tensor for tensor in GGUFReader(file).tensors} for file in files]
    kinds = lambda name: {tensors[name].tensor_type.name for tensors in made}  # noqa: E731
    same = [name for name in floats if len(kinds(name)) == 1 and not kinds(name) & {"F32", "F16", "BF16"}]
    lost, whole = [0.0] * len(files), 0.0
    for name in same[:sample]:
        expected = dequantize(floats[name].data, floats[name].tensor_type).astype(numpy.float64)
        whole += float((expected**2).sum())
        for index, tensors in enumerate(made):
            found = dequantize(tensors[name].data, tensors[name].tensor_type)
            lost[index] += float(((found - expected) ** 2).sum())
    return [error / whole for error in lost]


def with_tokenizer(model, tokenizer, folder):
    """The checkpoint, with links to the files of a tokenizer where it has none."""
    if not tokenizer:
        return model
    out = Path(folder) / "model"
    out.mkdir()
    for source in (model, tokenizer):
        for file in Path(source).iterdir():
            if source == model or file.name.startswith(("tokenizer", "special_tokens", "generation_config")):
                os.symlink(file.resolve(), out / file.name)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-quantize", required=True)
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--tokenizer")
    parser.add_argument("--types", default="Q4_0,Q8_0,Q4_K_S")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sample", type=int, default=8, help="tensors whose errors are compared")
    parser.add_argument("--work")
    a = parser.parse_args()
    best, errors = {}, {}
    with tempfile.TemporaryDirectory(dir=a.work) as folder:
        model, reference = with_tokenizer(a.model, a.tokenizer, folder), Path(folder) / "bf16.gguf"
        quantize = [a.kvant, "quantize", model, "--threads", a.threads, "--quiet", "--overwrite"]
        measure([*quantize, "--scheme", "BF16", "--format", "gguf", "-o", reference])
        for _ in range(a.rounds):
            for kind in a.types.split(","):
                ours, theirs = (Path(folder) / f"{kind}-{name}.gguf" for name in ("kvant", "llama"))
                contestants = {
                    "kvant": [*quantize, "--scheme", kind, "--format", "gguf", "-o", ours],
                    "llama.cpp": [a.llama_quantize, reference, theirs, kind, a.threads],
                }
                for name, command in contestants.items():
                    found = measure(command)
                    best[kind, name] = min(best.get((kind, name), found), found)
                if kind not in errors:
                    errors[kind] = errors_of([ours, theirs], reference, a.sample)
                ours.unlink()
                theirs.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    print("| type | kvant, s | llama.cpp, s | wall ratio | processor ratio | error of kvant | error of llama.cpp |")
    print("|---|---|---|---|---|---|---|")
    for kind in a.types.split(","):
        (wall, used), (other, other_used) = best[kind, "kvant"], best[kind, "llama.cpp"]
        ours, theirs = errors[kind]
        print(f"| {kind} | {wall:.2f} | {other:.2f} | {other / wall:.2f} | {other_used / used:.2f} | {ours:.4e} | {theirs:.4e} |")


if __name__ == "__main__":
    main()
