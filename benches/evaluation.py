#!/usr/bin/env python3
"""Times `kvant eval` beside transformers on torch, both in f32 and in bf16, on the same windows of a text, in one run.

    python3 benches/evaluation.py MODEL TEXT [--torch PYTHON] [--seq-len N] [--threads N] [--rounds N] [--bytes N]

MODEL is a directory with a tokenizer, e.g. of benches/make_checkpoint.py with a tokenizer.json copied into it; PYTHON has
torch and transformers. Rounds alternate, so that a disturbance hits all; what counts are the medians of the ratios to torch
in the same round: of tokens per second, and of tokens per second of processor time, which suffers less from what else
runs. Neither loading nor tokenization is timed, save that kvant's processor time has all. Memory is the peak of what is not
mapped files.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from whole_command import private_memory, read_into_cache

TORCH = """
import json, math, sys, time
import torch, transformers
model, text, precision, length, threads, together = sys.argv[1:]
length, together = int(length), max(int(together) // int(length), 1)
torch.set_num_threads(int(threads))
tokens = transformers.AutoTokenizer.from_pretrained(model)(open(text).read(), return_tensors="pt").input_ids[0]
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]
model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa").eval()
windows, total = tokens[: len(tokens) // length * length].view(-1, length), 0.0
with torch.inference_mode():
    model(windows[:1, :16], use_cache=False)
    start, used = time.perf_counter(), time.process_time()
    for batch in windows.split(together):
        scores = model(batch, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        total -= scores.gather(-1, batch[:, 1:, None]).double().sum().item()
    seconds, used = time.perf_counter() - start, time.process_time() - used
perplexity = math.exp(total / (windows.numel() - len(windows)))
print(json.dumps({"seconds": seconds, "processor": used, "tokens_per_second": windows.numel() / seconds, "perplexity": perplexity}))
"""


def contestants(a, text):
    for precision in a.precisions.split(","):
        if a.torch:
            arguments = [a.model, text, precision, a.seq_len, a.threads, a.together]
            yield f"torch {precision}", [a.torch, "-c", TORCH, *map(str, arguments)]
        options = ["--precision", precision, "--seq-len", str(a.seq_len), "--threads", str(a.threads)]
        yield f"kvant {precision}", [a.kvant, "eval", a.model, "--data", text, *options, "--json"]


def measure(command):
    """Tokens per second, and per second of processor time, perplexity, and peak private memory in MB."""
    environment = dict(os.environ, TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
        peak = 0
        while process.poll() is None:
            peak = max(peak, private_memory(process.pid))
            time.sleep(0.01)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(command)[:200]} failed ({process.returncode}):\n{errors.read().decode()[-2000:]}")
    found, after = json.loads(process.stdout.read()), resource.getrusage(resource.RUSAGE_CHILDREN)
    used = found.get("processor", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    rate = found["tokens_per_second"]
    return rate, rate * found["seconds"] / used, found["perplexity"], peak / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--torch", help="a Python with torch and transformers")
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--together", type=int, default=2048, help="tokens that torch is given at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=60_000, help="how much of the text is used")
    a = parser.parse_args()
    read_into_cache(a.model)
    runs = {}
    with tempfile.TemporaryDirectory() as work:
        text = os.path.join(work, "text.txt")
        Path(text).write_text(a.text.read_text()[: a.bytes])
        for _ in range(a.rounds):
            for name, command in contestants(a, text):
                runs.setdefault(name, []).append(measure(command))
    report(runs)


def report(runs):
    titles = ("tokens/s", "of torch", "per proc. s", "of torch", "perplexity", "MB")
    print(f"{'':12}" + "".join(f"{title:>12}" for title in titles))
    for name, rounds in runs.items():
        reference = runs.get(name.replace("kvant", "torch"), rounds)
        wall, processor, perplexity, peaks = zip(*rounds)
        of_wall, of_processor = ([ours[i] / theirs[i] for ours, theirs in zip(rounds, reference)] for i in (0, 1))
        columns = [f"{median(wall):.0f}", f"{median(of_wall):.2f}", f"{median(processor):.0f}", f"{median(of_processor):.2f}"]
        columns += [f"{perplexity[0]:.4f}", f"{max(peaks):.0f}"]
        print(f"{name:12}" + "".join(f"{column:>12}" for column in columns))


if __name__ == "__main__":
    main()
