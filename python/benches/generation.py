"""Tokens per second of generation with Kvant, and with transformers if MODEL is a float checkpoint, on two threads.

    OMP_NUM_THREADS=2 python benches/generation.py MODEL

MODEL needs a tokenizer.json, which `benches/make_checkpoint.py` does not write: that of any model will do.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

TOKENS = 32


def per_second(generate: Callable[[int], Any]) -> float:
    """Tokens per second after the prompt: the best of three."""
    generate(2)
    best = 0.0
    for _ in range(3):
        begun = time.perf_counter()
        generate(TOKENS + 1)
        middle = time.perf_counter()
        generate(1)
        best = max(best, TOKENS / (2 * middle - begun - time.perf_counter()))
    return best


def main() -> None:
    """Measures both."""
    import kvant

    model, prompt = sys.argv[1], [(17 * i) % 1000 + 3 for i in range(16)]
    ours = kvant.LanguageModel(model)
    speed = per_second(lambda count: ours.generate_until([prompt], until=[], max_new_tokens=count))
    print(f"Kvant {speed:.1f} tokens/s")

    import torch
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    ids = torch.tensor([prompt])
    with torch.no_grad():
        speed = per_second(lambda n: theirs.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False))
    print(f"transformers {speed:.1f} tokens/s")


if __name__ == "__main__":
    main()
