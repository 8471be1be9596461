#!/usr/bin/env python3
"""Times conversions of a checkpoint in the page cache between layouts of 4-bit integers, beside `cp` of their source, in one run.

    python3 benches/conversion.py MODEL [--kvant target/release/kvant] [--threads 2] [--rounds 3] [--work DIR]

MODEL is a float checkpoint of some gigabytes, e.g. of benches/make_checkpoint.py --layers 88, which is quantized first. What counts are
the ratios. Of several rounds the best is taken; rounds of all contestants alternate, so that a disturbance hits all of them.
"""
import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PAIRS = [
    ("compressed-tensors", "int4:g128:f16", "awq"),
    ("compressed-tensors", "int4:g128:f16", "gptq"),
    ("gptq", "int4:g128", "compressed-tensors"),
    ("awq", "uint4:g128:zp", "gptq_v2"),
    ("quark", "int4:g128:f16", "compressed-tensors"),
]


def measure(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def size(directory):
    return sum(file.stat().st_size for file in directory.iterdir())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.work) as work:
        work, sources = Path(work), {}
        for layout, scheme, _ in PAIRS:
            source = work / f"{layout}-{scheme.replace(':', '_')}"
            if not source.exists():
                subprocess.run([a.kvant, "quantize", a.model, "--scheme", scheme, "--format", layout, "--quiet", "-o", source], check=True)
            sources[layout, scheme] = source
        best, out = {}, work / "out"
        for _ in range(a.rounds):
            for layout, scheme, target in PAIRS:
                source = sources[layout, scheme]
                convert = [a.kvant, "convert", source, "--to", target, "--threads", str(a.threads), "--quiet", "-o", out]
                for name, command in (("cp", ["cp", "-r", source, out]), ("kvant", convert)):
                    shutil.rmtree(out, ignore_errors=True)
                    key = (layout, target, name)
                    best[key] = min(best.get(key, float("inf")), measure(command))
        print("| from | to | size | cp | kvant | speed of cp |\n|---|---|---|---|---|---|")
        for layout, scheme, target in PAIRS:
            cp, kvant = best[layout, target, "cp"], best[layout, target, "kvant"]
            gigabytes = size(sources[layout, scheme]) / 1e9
            print(f"| {layout} | {target} | {gigabytes:.2f} GB | {cp:.2f} s | {kvant:.2f} s | {cp / kvant:.2f} |")


if __name__ == "__main__":
    main()
