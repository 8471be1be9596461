#!/usr/bin/env python3
"""Held-out perplexity and divergence of calibrated algorithms: Kvant beside AMD Quark and llm-compressor.

    python3 benches/algorithms.py --calib TEXT --data TEXT --cache FILE MODEL... [--kvant target/release/kvant]
                                  [--quark PYTHON] [--llm-compressor PYTHON] [--schemes ...] [--algorithms ...]

All quantize the same model, in the type in which it is stored, on the same calibration tokens and are evaluated in f32 on
the same windows: each cell is the perplexity and, in brackets, the mean KL divergence from the float model in nats. A tool
is run where its Python (or, for Kvant, its program) is given; what the cache has is not run again, so that a broken off run
goes on and a new build of Kvant is measured by itself (--forget kvant). Prints a Markdown table for each model.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = {"kvant": "Kvant", "quark": "Quark", "llm-compressor": "llm-compressor"}
# As Kvant spells them.
SCHEMES = {
    "int4 g128": "int4:g128",
    "uint4 g128": "uint4:g128:zp",
    "int3 g128": "int3:g128",
    "int2 g64": "int2:g64",
    "uint2 g64": "uint2:g64:zp",
    "mxfp4": "mxfp4_weight_only",
    "nvfp4": "e2m1:g16:e4m3:f32",
    "int8 static": "int8:channel+int8:tensor!static",
    "W4A8": "int4:g128+int8:token!dynamic",
    "W4A4 MXFP4": "mxfp4",
    "W4A4 NVFP4": "nvfp4",
}
ACTIVATIONS = ("int8 static", "W4A8")
COMMON = ["rtn", "awq", "gptq", "awq,gptq", "gptaq", "qronos"]
# With searched scales (--scales search), which only Kvant has; and refined with the codes.
SEARCHED = ["search+rtn", "search+gptq:rounds=4", "search+qronos:rounds=4"]
TRAINED = ["adaround", "adaquant"]
CORRECTED = ["bias-correction", "gptq,bias-correction"]
ALGORITHMS = {
    "int4 g128": [*COMMON, *SEARCHED, *TRAINED, *CORRECTED],
    "uint4 g128": [*COMMON, *SEARCHED, "hqq", *TRAINED, *CORRECTED],
    "int3 g128": [*COMMON, *SEARCHED, *TRAINED, *CORRECTED],
    "int2 g64": [*COMMON, *SEARCHED, *TRAINED, *CORRECTED],
    "uint2 g64": ["rtn", "hqq", "gptq", *SEARCHED],
    "mxfp4": [*COMMON, *SEARCHED],
    "nvfp4": ["rtn", "gptq", "qronos", *SEARCHED],
    **dict.fromkeys(("W4A4 MXFP4", "W4A4 NVFP4"), ["rtn", "smoothquant", "awq", "gptq", "smoothquant,gptq", "awq,gptq", "gptaq", "qronos"]),
    **dict.fromkeys(ACTIVATIONS, ["rtn", "smoothquant", "smoothquant,gptq", "autosmoothquant", "smoothquant-own"]),
}
NAMES = {"rtn": "RTN", "awq": "AWQ", "gptq": "GPTQ", "gptaq": "GPTAQ", "qronos": "Qronos", "smoothquant": "SmoothQuant",
         "autosmoothquant": "AutoSmoothQuant", "smoothquant-own": "SmoothQuant, Quark's alpha", "hqq": "HQQ",
         "adaround": "AdaRound", "adaquant": "AdaQuant", "bias-correction": "bias correction"}  # fmt: skip
# What a tool does not have at all, or is not run with.
OURS = ("hqq", *SEARCHED, *TRAINED, *CORRECTED)
LACKS = {"kvant": ("smoothquant-own",), "quark": OURS, "llm-compressor": ("gptaq", "qronos", "autosmoothquant", "smoothquant-own", *OURS)}
OUR_SCHEMES = ("uint2 g64", "nvfp4")


def has_biases(model):
    """Whether its linear layers have biases: without any there is nothing to correct."""
    with open(Path(model) / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return any(name.endswith("proj.bias") for name in header)


def cells(a, model):
    """Every pair of a scheme and an algorithm of a model's table."""
    biases = has_biases(model)
    for scheme in a.schemes.split(","):
        for algorithm in ALGORITHMS[scheme]:
            if (not a.algorithms or algorithm in a.algorithms.split("/")) and (biases or algorithm not in CORRECTED):
                yield {"scheme": scheme, "algorithm": algorithm}


def lacks(tool, cell):
    return cell["algorithm"] in LACKS[tool] or tool != "kvant" and cell["scheme"] in OUR_SCHEMES


def shown(algorithm):
    searched, rounding = algorithm.split("+") if "+" in algorithm else ("", algorithm)
    parts = [NAMES[part.split(":")[0]] + (" refined" if ":" in part else "") for part in rounding.split(",")]
    return " + ".join([*(["searched scales"] if searched else []), *parts])


class Cache:
    """What was measured, in a JSON file that is replaced after each result."""

    def __init__(self, a):
        self.path, self.setting = Path(a.cache), f"{a.samples}x{a.seq_len}"
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}

    def key(self, tool, model, cell):
        return " | ".join([tool, Path(model).name, cell["scheme"], cell["algorithm"], self.setting])

    def find(self, tool, model, cell):
        return self.known.get(self.key(tool, model, cell))

    def store(self, tool, model, cell, found):
        # Another process may have written meanwhile.
        self.known |= json.loads(self.path.read_text()) if self.path.exists() else {}
        self.known[self.key(tool, model, cell)] = found
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            json.dump(self.known, file, indent=0, sort_keys=True)
        os.replace(file.name, self.path)
        print(f"{tool} {Path(model).name} {cell}: {found}", file=sys.stderr, flush=True)

    def forget(self, tool):
        self.known = {key: found for key, found in self.known.items() if not key.startswith(f"{tool} |")}
        self.path.write_text(json.dumps(self.known, indent=0, sort_keys=True))


def incumbent(a, tool, work):
    """Yields what the tool's worker finds for models and cells; one that dies is started anew behind the cell that killed it."""
    work = list(work)
    python = {"quark": a.quark, "llm-compressor": a.llm_compressor}[tool]
    worker = HERE / f"algorithms_{tool.replace('-', '_')}.py"
    environment = dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(a.threads), PATH=f"{Path(python).parent}:{os.environ['PATH']}")
    # Torch's kernels for tile registers die of an illegal instruction on some virtual machines.
    environment.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    order = {"calib": a.calib, "data": a.data, "seq_len": a.seq_len, "samples": a.samples, "threads": a.threads}
    while work:
        order["work"] = [[model, [cell for _, cell in pairs]] for model, pairs in groupby(work, lambda pair: pair[0])]
        log = open(a.log, "ab") if a.log else subprocess.DEVNULL
        with subprocess.Popen([python, str(worker), json.dumps(order)], stdout=subprocess.PIPE, stderr=log, env=environment) as process:
            for line in process.stdout:
                if line.startswith(b"{"):  # llm-compressor logs there too.
                    yield *work.pop(0), json.loads(line)
        if work:
            yield *work.pop(0), {"fails": f"the process ended with {process.returncode}"}


def kvant(a, work):
    """Yields what Kvant finds for models and cells, each a checkpoint on disk."""
    windows = ["--seq-len", str(a.seq_len)]
    common = ["--threads", str(a.threads), "--quiet", "--json"]
    for model, cell in work:
        with tempfile.TemporaryDirectory() as folder:
            out, start = str(Path(folder) / "out"), time.perf_counter()
            command = [a.kvant, "quantize", model, "--scheme", SCHEMES[cell["scheme"]], "-o", out, *common]
            algorithm = cell["algorithm"].removeprefix("search+")
            if algorithm != cell["algorithm"]:
                command += ["--scales", "search"]
            if algorithm != "rtn":
                command += ["--algorithm", algorithm]
            if algorithm != "rtn" or cell["scheme"] in ("int8 static", "W4A4 NVFP4"):
                command += ["--calib", a.calib, "--num-samples", str(a.samples), *windows]
            try:
                subprocess.run(command, check=True, capture_output=True)
                seconds = time.perf_counter() - start
                command = [a.kvant, "eval", out, "--reference", model, "--data", a.data, *windows, *common]
                found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                yield model, cell, {"seconds": seconds, "perplexity": found["perplexity"], "kl": found["kl_mean"]}
            except subprocess.CalledProcessError as error:
                yield model, cell, {"fails": " ".join((error.stderr or error.stdout).decode().split())[:200]}


def measure(a, cache):
    for tool, given in (("quark", a.quark), ("llm-compressor", a.llm_compressor), ("kvant", a.kvant)):
        wanted = [(model, cell) for model in a.models for cell in cells(a, model) if not lacks(tool, cell)]
        missing = [(model, cell) for model, cell in wanted if cache.find(tool, model, cell) is None]
        if given and missing:
            for model, cell, found in kvant(a, missing) if tool == "kvant" else incumbent(a, tool, missing):
                cache.store(tool, model, cell, found)


def text(found):
    if found is None:
        return ""
    return f"fails: {found['fails']}".replace("|", "/") if "fails" in found else f"{found['perplexity']:.3f} ({found['kl']:.4f})"


def table(a, cache, model):
    found = [cache.find(tool, model, cell) or {} for tool in TOOLS for cell in cells(a, model)]
    floats = [each["float"] for each in found if "float" in each]
    yield f"### {Path(model).name}" + (f", float {floats[0]:.3f}" if floats else "")
    yield ""
    yield "| scheme | algorithm | " + " | ".join(TOOLS.values()) + " |"
    yield "|---|---|" + "---|" * len(TOOLS)
    for cell in cells(a, model):
        row = ["–" if lacks(tool, cell) else text(cache.find(tool, model, cell)) for tool in TOOLS]
        if any(found not in ("–", "") for found in row):  # Not all is run on all models.
            yield f"| {cell['scheme']} | {shown(cell['algorithm'])} | {' | '.join(row)} |"
    yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache", required=True, help="a JSON file that keeps results from run to run")
    parser.add_argument("--kvant", help="the program, e.g. target/release/kvant")
    parser.add_argument("--quark", help="a Python with amd-quark")
    parser.add_argument("--llm-compressor", help="a Python with llmcompressor")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--algorithms", help="those to measure, between slashes: rtn/gptq/awq,gptq [default: all]")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--forget", choices=TOOLS, help="measure this tool anew")
    parser.add_argument("--log", help="a file for what the incumbents print")
    a = parser.parse_args()
    assert not a.kvant or shutil.which(a.kvant), a.kvant
    cache = Cache(a)
    if a.forget:
        cache.forget(a.forget)
    measure(a, cache)
    for model in a.models:
        print("\n".join(table(a, cache, model)), flush=True)


if __name__ == "__main__":
    main()
