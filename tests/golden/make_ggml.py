"""Writes ggml_blocks.txt: what gguf-py makes of blocks of every tensor type, and the blocks it makes of values.

    python make_ggml.py        (gguf 0.19, numpy; deterministic)

Lines are `values HEX` (the input of all `quantize` lines, f32), `quantize TYPE HEX` (the blocks gguf-py makes of them) and
`dequantize TYPE HEX HEX` (random blocks and their values, f32). All little-endian.
"""

import pathlib

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

DEQUANTIZED = "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4".split()
# The types whose blocks gguf-py makes as llama.cpp does.
QUANTIZED = "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ1_0 TQ2_0".split()


def values(rng):
    """A block of 256 for each kind of input: mixed signs, one sign, ties of codes, the largest magnitude twice, zeros, tiny."""
    normal = rng.standard_normal(256) * 0.02
    ties = rng.integers(-16, 16, 256) / 16.0
    twice = np.where(np.arange(256) % 5 == 3, np.where(np.arange(256) % 2 == 0, 0.5, -0.5), rng.uniform(-0.4, 0.4, 256))
    kinds = [normal, np.abs(normal) + 0.01, ties, twice, np.zeros(256), normal * 1e-6]
    return np.concatenate(kinds).astype(np.float32).reshape(len(kinds), 256)


def random_blocks(rng, kind):
    """Two (of small types eight) blocks of random bytes that stand for finite values."""
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = []
    while len(blocks) < (2 if elements == 256 else 8):
        block = rng.integers(0, 256, (1, size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            if np.isfinite(gguf.dequantize(block, kind)).all():
                blocks.append(block)
    return np.concatenate(blocks)


def main():
    rng = np.random.default_rng(12345)
    data = values(rng)
    lines = ["values " + data.tobytes().hex()]
    lines += [f"quantize {name} {gguf.quantize(data, Type[name]).tobytes().hex()}" for name in QUANTIZED]
    for name in DEQUANTIZED:
        blocks = random_blocks(rng, Type[name])
        found = gguf.dequantize(blocks, Type[name]).astype(np.float32)
        lines.append(f"dequantize {name} {blocks.tobytes().hex()} {found.tobytes().hex()}")
    (pathlib.Path(__file__).parent / "ggml_blocks.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
