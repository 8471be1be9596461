#!/usr/bin/env python3
"""What Kvant's recipes lose beside AutoRound with 200 iterations, on the same tokens.

    python3 benches/quality.py MODEL... --calib TEXT --data TEXT --kvant target/release/kvant --auto-round PYTHON [--cache FILE]

AutoRound runs where --auto-round names a Python that has it, or a folder of packages for this one. Prints a Markdown table: the mean KL divergence
from the float model in nats and, in parentheses, the seconds of processor time; then the geometric means of Kvant's divergence over AutoRound's.
What the cache has is not measured again, and is all that is printed without tools.

Both tools quantize all linear layers of decoder blocks, experts included, and leave routers, heads and embeddings in float. Inputs of MXFP4 have
scales by the rule that AutoRound uses, floor, and those of NVFP4 scales below one of the tensor, measured in calibration.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from held_out import kvant_divergence

HERE = Path(__file__).resolve().parent
LEVELS = ["balanced", "best"]
WEIGHTS = ["RTN", *LEVELS, "qronos:rounds=4", "autoround", "awq,qronos:rounds=4"]
INPUTS = [*WEIGHTS, "smoothquant,qronos:rounds=4", "rotate,qronos:rounds=4", "rotate:size=32,qronos:rounds=4"]
# As Kvant spells them.
SCHEMES = {
    "int4 g128": ("int4:g128", WEIGHTS),
    "int3 g128": ("int3:g128", WEIGHTS),
    "int2 g64": ("int2:g64", WEIGHTS),
    "W4A4 MXFP4": ("e2m1:g32:e8m0+e2m1:g32:e8m0-floor!dynamic", INPUTS),
    "W4A4 NVFP4": ("e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local", INPUTS),
    "W4A8": ("int4:g128+int8:channel!dynamic", INPUTS),
}
ITERATIONS = 200


class Cache(dict):
    """What was measured, by tool, model, scheme and candidate, in a JSON file that is replaced after each result."""

    def __init__(self, file):
        self.file = file
        super().__init__(json.loads(file.read_text()) if file and file.exists() else {})

    def store(self, key, found):
        self[key] = found
        print(f"{key}: {found}", file=sys.stderr, flush=True)
        if self.file:
            partial = self.file.with_suffix(".partial")
            partial.write_text(json.dumps(self, indent=0, sort_keys=True))
            partial.replace(self.file)


def key(tool, model, scheme, candidate=f"{ITERATIONS} iterations"):
    return f"{tool} | {model.name} | {scheme} | {candidate}"


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def kvant(options, model, scheme, candidate, known):
    """What a candidate, a level or algorithms on searched scales, loses; or what `known` has of the same recipe."""
    choice = [] if candidate == "RTN" else ["--quality", candidate] if candidate in LEVELS else ["--scales", "search", "--algorithm", candidate]
    try:
        plan = run(options.kvant, "plan", model, "--scheme", scheme, *choice, "--calib", options.calib, "--json", "--quiet")
        recipe = [json.loads(plan)["recipe"][name] for name in ("scheme", "algorithm")]
        for found in known:
            if found.get("recipe") == recipe:
                return found
        with tempfile.TemporaryDirectory() as folder:
            data = ["--calib", options.calib, "--num-samples", options.samples, "--seq-len", 256, "--threads", options.threads]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(options.kvant, "quantize", model, "--scheme", scheme, *choice, *data, "--quiet", "-o", f"{folder}/out")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            kl = kvant_divergence(options.kvant, f"{folder}/out", model, options.data)
            return {"kl": kl, "seconds": sum(after[:2]) - sum(before[:2]), "recipe": recipe}
    except subprocess.CalledProcessError as error:
        return {"fails": " ".join(error.stderr.split())[:200]}


def auto_round(options, work):
    """Yields the result of AutoRound's worker for each model and scheme. If the worker dies, a new one continues with the next pair."""
    packages = {"PYTHONPATH": options.auto_round} if Path(options.auto_round).is_dir() else {}
    # Torch's kernels for tile registers die of an illegal instruction on some virtual machines.
    fixed = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(options.threads), "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    order = {"calib": options.calib, "data": options.data, "seq_len": 256, "samples": options.samples, "threads": options.threads}
    while work:
        cells = [[str(model), [{"scheme": scheme, "iterations": ITERATIONS}]] for model, scheme in work]
        command = [sys.executable if packages else options.auto_round, HERE / "quality_auto_round.py", json.dumps(order | {"work": cells})]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | fixed | packages) as process:
            for line in process.stdout:
                yield *work.pop(0), json.loads(line)
        if work:
            yield *work.pop(0), {"fails": f"the process ended with {process.returncode}"}


def shown(found):
    return "-" if not found else f"fails: {found['fails']}".replace("|", "/") if "fails" in found else f"{found['kl']:.5f} ({found['seconds']:.0f})"


def mean(ratios):
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} ({len(ratios)})" if ratios else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kvant")
    parser.add_argument("--auto-round", help="a Python that has AutoRound, or a folder of packages")
    parser.add_argument("--cache", type=Path, help="a JSON file that keeps results from run to run")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--candidates", nargs="+", default=INPUTS, help="levels, or algorithms to run on searched scales")
    options = parser.parse_args()
    cache, cells = Cache(options.cache), [(model, scheme) for model in options.models for scheme in options.schemes]
    for model, scheme in cells if options.kvant else []:
        for candidate in options.candidates:
            known = [found for name, found in cache.items() if name.startswith(key("Kvant", model, scheme, ""))]
            if key("Kvant", model, scheme, candidate) not in cache and (candidate in SCHEMES[scheme][1] or candidate not in INPUTS):
                cache.store(key("Kvant", model, scheme, candidate), kvant(options, model, SCHEMES[scheme][0], candidate, known))
    missing = [cell for cell in cells if key("AutoRound", *cell) not in cache]
    for model, scheme, found in auto_round(options, missing) if options.auto_round and missing else []:
        cache.store(key("AutoRound", model, scheme), found)

    print(f"| scheme | model | {' | '.join(options.candidates)} | AutoRound |\n|---|---|{'---|' * (len(options.candidates) + 1)}")
    ratios = {scheme: ([], []) for scheme in options.schemes}
    for scheme in options.schemes:
        for model in options.models:
            ours = [cache.get(key("Kvant", model, scheme, candidate), {}) for candidate in options.candidates]
            theirs = cache.get(key("AutoRound", model, scheme), {})
            print(f"| {scheme} | {model.name} | {' | '.join(map(shown, [*ours, theirs]))} |")
            for found, chosen in zip((ours, [cache.get(key("Kvant", model, scheme, "best"), {})]), ratios[scheme]):
                least = min((each["kl"] for each in found if "kl" in each), default=None)
                chosen += [least / theirs["kl"]] if least and "kl" in theirs else []
    print("\n| scheme | best candidate / AutoRound (models) | `--quality best` / AutoRound (models) |\n|---|---|---|")
    for scheme, pair in ratios.items():
        print(f"| {scheme} | {' | '.join(map(mean, pair))} |")


if __name__ == "__main__":
    main()
