#!/usr/bin/env python3
"""Times the whole command on a checkpoint in the page cache, beside `cp` of the source and beside peers, in one run.

    python3 benches/whole_command.py MODEL [--kvant target/release/kvant] [--quark PYTHON] [--llm-compressor PYTHON]

MODEL is a checkpoint of some gigabytes, e.g. of benches/make_checkpoint.py. The peers are measured where a Python with
them is named. What counts are the ratios: times on a shared machine mean nothing by themselves. Of several rounds the
best is taken; rounds of all contestants alternate, so that a disturbance hits all of them.
"""
import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUARK = """
import sys
from quark.torch import LLMTemplate
from quark.torch.quantization.api import ModelQuantizer
source, target, scheme = sys.argv[1:]
config = LLMTemplate.get("llama").get_config(scheme=scheme)
ModelQuantizer(config).direct_quantize_checkpoint(pretrained_model_path=source, save_path=target, device="cpu")
"""

LLM_COMPRESSOR = """
import sys
from llmcompressor import model_free_ptq
source, target, scheme = sys.argv[1:]
model_free_ptq(model_stub=source, save_directory=target, scheme=scheme, ignore=["lm_head", "model.embed_tokens"], max_workers=2, device="cpu")
"""


def contestants(a, source):
    yield "cp", lambda target: ["cp", "-r", source, target], a.rounds
    for scheme in a.schemes.split(","):
        command = [a.kvant, "quantize", source, "--scheme", scheme, "--threads", str(a.threads), "--quiet", "-o"]
        yield f"kvant {scheme}", lambda target, c=command: [*c, target], a.rounds
    if a.quark:
        for scheme in ("ptpc_fp8", "mxfp4"):
            yield f"quark {scheme}", lambda target, s=scheme: [a.quark, "-c", QUARK, source, target, s], 1
    if a.llm_compressor:
        for scheme in ("FP8_DYNAMIC", "MXFP4A16"):
            yield f"llm-compressor {scheme}", lambda target, s=scheme: [a.llm_compressor, "-c", LLM_COMPRESSOR, source, target, s], 1


def measure(command):
    """Wall seconds, processor seconds, and peak private memory of a command, in MB."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = 0
    while process.poll() is None:
        peak = max(peak, private_memory(process.pid))
        time.sleep(0.005)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed:\n{process.stderr.read().decode()[-2000:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, processor, peak / 1e6


def private_memory(pid):
    """Bytes of memory that are no mapped files. Linux only; 0 elsewhere."""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0


def read_into_cache(source):
    for file in Path(source).iterdir():
        with open(file, "rb") as stream:
            while stream.read(1 << 24):
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--schemes", default="int4_wo_128,ptpc_fp8,mxfp4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quark", help="a Python with amd-quark")
    parser.add_argument("--llm-compressor", help="a Python with llmcompressor")
    parser.add_argument("--work", help="a directory for the outputs, on the model's disk", default=None)
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    os.environ.setdefault("QUARK_DISABLE_COMPILE", "1")
    runs, all_contestants = {}, list(contestants(a, a.model))
    read_into_cache(a.model)
    with tempfile.TemporaryDirectory(dir=a.work) as work:
        for round_number in range(a.rounds):
            for name, command, rounds in all_contestants:
                if round_number < rounds:
                    target = os.path.join(work, "out")
                    runs.setdefault(name, []).append(measure(command(target)))
                    shutil.rmtree(target)
    best = {name: min(times) for name, times in runs.items()}
    copy = best["cp"]
    if a.json:
        keys = ("wall_s", "processor_s", "private_mb")
        print(json.dumps({name: dict(zip(keys, numbers)) for name, numbers in best.items()}, indent=1))
        return
    print(f"{'':32} {'of cp':>8} {'wall s':>8} {'proc. s':>8} {'MB':>7}")
    for name, (wall, processor, peak) in best.items():
        print(f"{name:32} {wall / copy[0]:8.2f} {wall:8.2f} {processor:8.2f} {peak:7.0f}")


if __name__ == "__main__":
    main()
