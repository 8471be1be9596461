"""What quantization in place costs on a GPU: the operator beside torch's, calibration beside the CPU, training.

python benches/gpu.py
"""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

import kvant.torch as kt

SCHEMES = ("int8:channel", "int4:g128", "uint4:g128:zp", "e4m3:channel", "e2m1:g32:e8m0", "e2m1:g16:e4m3:f32")


def seconds(work: Callable[[], Any], rounds: int = 5) -> float:
    """The best of some rounds."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times)


def decoder(layers: int) -> torch.nn.Module:
    """Layers of the size of a model of 1 billion parameters, random."""
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=4, vocab_size=8000
    )
    config = transformers.LlamaConfig(num_hidden_layers=layers, **sizes)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def operator() -> None:
    """The operator over a weight of 8192 x 8192 in bf16."""
    x = torch.randn(8192, 8192, device="cuda").to(torch.bfloat16)
    scale, zero = torch.full((8192,), 0.03, device="cuda"), torch.zeros(8192, dtype=torch.int32, device="cuda")
    own = seconds(lambda: torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -128, 127))
    print(f"torch.fake_quantize_per_channel_affine, given scales: {own * 1e3:.2f} ms")
    for scheme in SCHEMES:
        taken = seconds(lambda scheme=scheme: kt.fake_quantize(x, scheme))
        print(f"{scheme}: {taken * 1e3:.2f} ms, {taken / own:.1f} times")


def calibration() -> None:
    """Static int8 and GPTQ of four blocks with 16 sequences of 512 tokens."""
    model = decoder(4)
    tokens = [torch.randint(0, 8000, (4, 512)) for _ in range(4)]
    for scheme, algorithm in (("int8:channel+int8:tensor!static", None), ("int4:g128", "gptq")):
        taken = {}
        for device in ("cuda", "cpu"):
            there, batches = copy.deepcopy(model).to(device), [batch.to(device) for batch in tokens]
            with torch.no_grad():
                there(batches[0])
            taken[device] = seconds(partial(kt.quantize_, there, scheme, batches, algorithm=algorithm), rounds=1)
        print(f"{scheme} {algorithm or 'rounded'}: GPU {taken['cuda']:.2f} s, CPU {taken['cpu']:.2f} s")


def training() -> None:
    """A step of training of four blocks, quantized and in float."""
    tokens = torch.randint(0, 8000, (4, 512), device="cuda")
    taken = {}
    for name, scheme in (("float", None), ("int8", "int8:channel+int8:tensor!static"), ("int4", "int4:g128")):
        model = decoder(4).cuda()
        if scheme is not None:
            kt.quantize_(model, scheme, [tokens], trainable=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def step(model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()

        step()
        taken[name] = seconds(step, rounds=3)
    print(", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in taken.items()))


if __name__ == "__main__":
    operator()
    calibration()
    training()
