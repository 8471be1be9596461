#!/usr/bin/env python3
"""What each level of `--quality` loses, and how long it takes beside GPTQ.

    python3 benches/quality_levels.py MODEL... --calib TEXT --data TEXT [--kvant target/release/kvant] [--levels fast balanced best]

Every result of a model has the same calibration and evaluation text. Prints a Markdown table: the mean KL divergence from the float model in
nats and, in parentheses, the time as a multiple of GPTQ's in the same run.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from held_out import kvant_divergence

SCHEMES = {
    "int4 g128": "int4:g128",
    "int3 g128": "int3:g128",
    "int2 g64": "int2:g64",
    "int6 g64": "int6:g64",
    "MXFP4": "mxfp4_weight_only",
    "NVFP4": "e2m1:g16:e4m3:f32",
    "int8, static inputs": "int8:channel+int8:tensor!static",
}


def measured(options, model, scheme, choice, out):
    """(KL divergence, seconds) of a result."""
    shutil.rmtree(out, ignore_errors=True)
    data = ["--calib", options.calib, "--num-samples", str(options.samples), "--seq-len", "256"]
    run = [options.kvant, "quantize", model, "--scheme", scheme, *choice, *data, "-o", out, "-q"]
    start = time.perf_counter()
    subprocess.run([str(word) for word in run], check=True, capture_output=True)
    seconds = time.perf_counter() - start
    return kvant_divergence(options.kvant, out, model, options.data), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--levels", nargs="+", default=["fast", "balanced", "best"])
    options = parser.parse_args()
    print(f"| scheme | model | RTN | GPTQ | {' | '.join(options.levels)} |\n|---|---|{'---|' * (2 + len(options.levels))}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        for label, scheme in ((label, SCHEMES[label]) for label in options.schemes):
            for model in options.models:
                rtn, _ = measured(options, model, scheme, [], out)
                gptq, base = measured(options, model, scheme, ["--algorithm", "gptq"], out)
                levels = [measured(options, model, scheme, ["--quality", level], out) for level in options.levels]
                cells = [f"{loss:.5f} ({seconds / base:.1f})" for loss, seconds in levels]
                print(f"| {label} | {model.name} | {rtn:.5f} | {gptq:.5f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
