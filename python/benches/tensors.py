"""Speed of quantize_tensor and dequantize on one weight in bfloat16, in GB/s of its bytes.

Compare with `cargo bench -p kvant-quant --bench throughput -- avx512`, which rounds and packs the same amount into
memory that it has, on two threads, and knows the range of the tensor: run both in turn.

    RAYON_NUM_THREADS=2 python benches/tensors.py [SCHEME ...]
"""

import sys
import time
from collections.abc import Callable

import numpy
import torch

import kvant

SCHEMES = ["int4:g128", "uint4:g128:zp", "e2m1:g32:e8m0", "e4m3:channel", "int8:channel", "int8:tensor"]


def best(work: Callable[[], object]) -> float:
    """The least time of several runs, in seconds."""
    times = []
    for _ in range(15):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> None:
    values = numpy.random.default_rng(0).standard_normal((11008, 4096), dtype=numpy.float32)
    weight = torch.from_numpy(values).bfloat16()
    size = weight.numel() * weight.element_size() / 1e9
    for scheme in sys.argv[1:] or SCHEMES:
        quantized = kvant.quantize_tensor(weight, scheme)
        forth, back = best(lambda scheme=scheme: kvant.quantize_tensor(weight, scheme)), best(quantized.dequantize)
        print(f"{scheme:18} quantize {size / forth:6.1f} GB/s   dequantize {size / back:6.1f} GB/s")


if __name__ == "__main__":
    main()
