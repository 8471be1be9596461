"""Perplexity of a language model at int2 before and after one epoch of quantization-aware training.

OMP_NUM_THREADS=2 python benches/training.py MODEL TRAINING.txt HELD_OUT.txt
"""

import sys
import time

import torch
import transformers
from tokenizers import Tokenizer

import kvant.torch as kt

SCHEME = "int2:g64"
LENGTH, BATCH = 256, 8


def windows(tokenizer: Tokenizer, file: str) -> torch.Tensor:
    """The tokens of a text in windows, [windows, LENGTH]."""
    with open(file, encoding="utf-8") as text:
        ids = torch.tensor(tokenizer.encode(text.read()).ids)
    return ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)


@torch.no_grad()
def perplexity(model: torch.nn.Module, data: torch.Tensor) -> float:
    """The perplexity of windows."""
    model.eval()
    losses = [model(input_ids=part, labels=part).loss * len(part) for part in data.split(BATCH)]
    return float((sum(losses) / len(data)).exp())


def train(model: torch.nn.Module, data: torch.Tensor, rate: float) -> None:
    """One epoch of Adam, with a rate that falls to zero."""
    parts = data[torch.randperm(len(data))].split(BATCH)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(parts))
    model.train()
    for part in parts:
        model(input_ids=part, labels=part).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def main() -> None:
    """Prints the perplexities."""
    path, training, held_out = sys.argv[1:4]
    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
    data, test = windows(tokenizer, training), windows(tokenizer, held_out)[:200]
    batches = [{"input_ids": part} for part in data.split(BATCH)]
    for name, options, rate in [
        ("float", None, 0.0),
        ("float, one epoch", None, 1e-4),
        ("nearest", {}, 0.0),
        ("gptq", {"algorithm": "gptq", "data": batches}, 0.0),
        ("one epoch, fixed scales", {"trainable": True, "steps": "fixed"}, 5e-4),
        ("one epoch, learned scales", {"trainable": True}, 5e-4),
        ("gptq, then one epoch", {"algorithm": "gptq", "data": batches, "trainable": True}, 5e-4),
    ]:
        torch.manual_seed(0)
        begun = time.perf_counter()
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        if options is not None:
            kt.quantize_(model, SCHEME, **options)
        if rate:
            train(model, data, rate)
        kt.freeze(model)
        print(f"{name}: {perplexity(model, test):.3f}, {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
