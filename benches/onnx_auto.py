#!/usr/bin/env python3
"""What `kvant quantize --auto --max-drop` makes of ONNX graphs, without any other option.

    PATH=... python benches/onnx_auto.py WORK [--kvant target/release/kvant] [--nets a,b] [--max-drop 0.01] [--digits DIRECTORY]

runs in the environment of tests/interop/requirements.txt. The networks are those of `onnx_learned.py`. WORK keeps networks and
quantized models. The metric is top-1 for digits, and elsewhere the share of rows whose class is the float graph's, on samples that
were not calibrated on. A row says which recipe kept the limit, how many were tried, how many layers have wider types, and how large the
result is.
"""

import json
import subprocess

from onnx_learned import DIGITS, data, parser_of


def row(a, name):
    model, calib, test = data(a, name)
    out = a.work / f"{name}.auto.onnx"
    command = [a.kvant, "quantize", model, "--auto", "--data", calib, "--eval", test, "--max-drop", a.max_drop, "-o", out, "--overwrite", "--json", "--quiet",
               "--threads", a.threads, *(["--labels", "label"] if name in DIGITS else [])]  # fmt: skip
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if not done.stdout:
        return f"| {name} | | | | | | exit {done.returncode}: {done.stderr.strip().splitlines()[0]} |"
    accuracy = json.loads(done.stdout)["accuracy"]
    last = accuracy["attempts"][-1]
    kept = f"{last['drop']:.4f}" if last["accepted"] else f"exit {done.returncode}"
    seconds = sum(attempt["seconds"] for attempt in accuracy["attempts"])
    size = last["bytes"] / model.stat().st_size if last["bytes"] else float("nan")
    recipe = last["recipe"] + (f", {len(last['widened'])} layers wider" if last["widened"] else "")
    return f"| {name} | {accuracy['metric']} | {recipe} | {len(accuracy['attempts'])} | {kept} | {100 * size:.0f} % | {seconds:.0f} s |"


def main():
    parser = parser_of(__doc__, threads=1)
    parser.add_argument("--max-drop", type=float, default=0.01)
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    print("| | metric | recipe | tried | drop | size | time |\n|---|---|---|---|---|---|---|", flush=True)
    for name in a.nets.split(","):
        print(row(a, name), flush=True)


if __name__ == "__main__":
    main()
