#!/usr/bin/env python3
"""Times calibrated quantization beside AMD Quark and llm-compressor: GPTQ and AWQ to uint4 in groups of 128, in one run.

    python3 benches/algorithms_speed.py MODEL [--kvant target/release/kvant] [--quark PYTHON] [--llm-compressor PYTHON]
                                        [--samples 32] [--seq-len 512] [--threads 2] [--rounds 1] [--json FILE]

MODEL is a Llama-shaped checkpoint, e.g. the 1.1 billion parameters of benches/make_checkpoint.py cut to four blocks
(--layers 4). All take the same random tokens; each run is a process of its own that loads the model, calibrates and writes
a checkpoint. Contestants alternate, so that a disturbance hits all. What counts are the ratios; on a shared machine those of
processor time. Memory is the peak of all that is resident, mapped files with it, and of what is private.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from whole_command import private_memory

HERE = Path(__file__).resolve().parent
INCUMBENT = """
import importlib, sys
folder, tool, algorithm, source, tokens, target, threads = sys.argv[1:]
sys.path.insert(0, folder)
import numpy, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(int(threads))
worker = importlib.import_module("algorithms_" + tool.replace("-", "_"))
worker.BATCH = 1
model = AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
tokens = torch.from_numpy(numpy.load(tokens)).long()
model = worker.quantized(model, {"scheme": "uint4 g128", "algorithm": algorithm}, tokens)
if tool == "quark":
    from quark.torch import export_safetensors
    export_safetensors(model, target)
else:
    model.save_pretrained(target, save_compressed=True)
"""


def write_tokens(path, a):
    """Random tokens as int32 in NumPy's format, which takes no NumPy to write."""
    vocabulary = json.loads((Path(a.model) / "config.json").read_text())["vocab_size"]
    source = random.Random(0)
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({a.samples}, {a.seq_len}), }}"
    header = header.encode().ljust(128 - 11) + b"\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for _ in range(a.samples * a.seq_len):
            file.write(source.randrange(vocabulary).to_bytes(4, "little"))


def contestants(a, tokens):
    """Name and command, whose last argument but one or last is the target that `measure` fills in for None."""
    for algorithm in a.algorithms.split(","):
        if a.kvant:
            yield f"kvant {algorithm}", [
                a.kvant, "quantize", a.model, "--scheme", "uint4_wo_128", "--algorithm", algorithm, "--calib", tokens, "--num-samples",
                str(a.samples), "--seq-len", str(a.seq_len), "--threads", str(a.threads), "--precision", a.precision, "--quiet", "-o", None]  # fmt: skip
        for tool, python in (("quark", a.quark), ("llm-compressor", a.llm_compressor)):
            if python:
                yield f"{tool} {algorithm}", [python, "-c", INCUMBENT, str(HERE), tool, algorithm, a.model, tokens, None, str(a.threads)]


def environment(command, threads):
    """Torch's bf16 kernels for tile registers die of an illegal instruction on some virtual machines."""
    own = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    own["PATH"] = f"{Path(command[0]).parent}:{os.environ['PATH']}"
    return {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"} | dict(os.environ) | own


def measure(command, a):
    """Wall and processor seconds and peaks of resident and private memory in MB, or why there are none."""
    start, peak, limit = time.perf_counter(), 0, a.limit
    with tempfile.TemporaryDirectory(dir=a.folder) as folder, tempfile.TemporaryFile() as errors:
        command = [str(Path(folder) / "out") if part is None else part for part in command]
        process = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment(command, a.threads))
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            peak = max(peak, private_memory(process.pid))
            if time.perf_counter() - start > limit:
                # Not `process.kill`, which would take the exit status from `wait4`.
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        wall, used = time.perf_counter() - start, ended[2]
        found = {"wall": wall, "processor": used.ru_utime + used.ru_stime, "resident": used.ru_maxrss / 1e3, "private": peak / 1e6}
        if process.returncode == 0:
            return found
        errors.seek(0)
        why = f"stopped after {limit} s" if wall > limit else errors.read().decode(errors="replace").strip()[-2000:]
        return found | {"fails": why}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvant", help="the program, e.g. target/release/kvant")
    parser.add_argument("--quark", help="a Python with amd-quark")
    parser.add_argument("--llm-compressor", help="a Python with llmcompressor")
    parser.add_argument("--algorithms", default="gptq,awq")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="bf16", help="in which Kvant computes; the incumbents do in the model's type")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=7200, help="seconds of wall time after which a contestant is stopped")
    parser.add_argument("--folder", help="where checkpoints are written")
    parser.add_argument("--json", help="a file for all that was measured; what an earlier run left there counts too")
    a = parser.parse_args()
    measured = json.loads(Path(a.json).read_text()) if a.json and Path(a.json).exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        tokens = str(Path(folder) / "tokens.npy")
        write_tokens(tokens, a)
        for _ in range(a.rounds):
            for name, command in contestants(a, tokens):
                found = measure(command, a)
                print(name, found, file=sys.stderr, flush=True)
                measured.setdefault(name, []).append(found)
                if a.json:
                    Path(a.json).write_text(json.dumps(measured, indent=1))
    print("| | wall s | processor s | peak resident MB | peak private MB |\n|---|---|---|---|---|")
    for name, rounds in measured.items():
        whole = [found for found in rounds if "fails" not in found]
        cells = [f"{median(found[key] for found in whole):.0f}" for key in ("wall", "processor", "resident", "private")] if whole else ["fails"] * 4
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
