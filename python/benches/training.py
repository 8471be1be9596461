"""Perplexity of a language model at int2, rounded and after one epoch of quantization-aware training.

The quantized model is trained towards the probabilities of the float model (distillation).

OMP_NUM_THREADS=1 python benches/training.py MODEL TRAINING.txt HELD_OUT.txt
"""

import sys
import time

import torch
import transformers
from tokenizers import Tokenizer

import kvant.torch as kt

SCHEME = "int2:g64"
LENGTH, BATCH, RATE = 256, 8, 3e-4


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


def train(model: torch.nn.Module, teacher: torch.nn.Module, data: torch.Tensor) -> None:
    """One epoch of Adam, with a rate that falls to zero."""
    parts = data[torch.randperm(len(data))].split(BATCH)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(parts))
    model.train()
    for part in parts:
        with torch.no_grad():
            expected = teacher(input_ids=part).logits.log_softmax(-1).flatten(0, 1)
        made = model(input_ids=part).logits.log_softmax(-1).flatten(0, 1)
        torch.nn.functional.kl_div(made, expected, log_target=True, reduction="batchmean").backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def main() -> None:
    """Prints the perplexities."""
    path, training, held_out = sys.argv[1:4]
    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
    data, test = windows(tokenizer, training), windows(tokenizer, held_out)[:200]
    teacher = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    print(f"float: {perplexity(teacher, test):.3f}, {len(data)} windows", flush=True)
    gptq = {"algorithm": "gptq", "data": [{"input_ids": part} for part in data[:128].split(BATCH)]}
    for name, options, is_trained in [
        ("nearest", {}, False),
        ("gptq", gptq, False),
        ("one epoch", {"trainable": True}, True),
        ("gptq, then one epoch", {**gptq, "trainable": True}, True),
    ]:
        torch.manual_seed(0)
        begun = time.perf_counter()
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        kt.quantize_(model, SCHEME, **options)
        if is_trained:
            train(model, teacher, data)
        kt.freeze(model)
        print(f"{name}: {perplexity(model, test):.3f}, {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
