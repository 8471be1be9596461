"""Deterministic input tensors for the golden files, rebuilt bit for bit in any language.

A linear congruential generator drives everything: s' = (1664525 s + 1013904223) mod 2^32, u = s' / 2^32.
Four draws make one value: x_k = f32((u_4k + u_4k+1 + u_4k+2 + u_4k+3 - 2) * 1.5), computed in f64 and rounded
once to f32, so |x| <= 3. Values fill the tensor row by row. A named transform (see TRANSFORMS) is applied in
f32, then the tensor is rounded half to even to its dtype. This is not a source of randomness for tests.
"""

import numpy as np
import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SEED = 12345


def lcg_values(count, seed):
    """The first `count` values of the generator, as f32."""
    state, draws = seed, np.empty(4 * count)
    for k in range(4 * count):
        state = (1664525 * state + 1013904223) & 0xFFFFFFFF
        draws[k] = state / 4294967296.0
    return ((draws.reshape(count, 4).sum(1) - 2.0) * 1.5).astype(np.float32)


def probe(x):
    """Row r times 2^(r-4), a zero block x[0, :32] = 0, an outlier x[1, 5] = 7."""
    x = x * (2.0 ** (np.arange(x.shape[0]) - 4.0)).astype(np.float32)[:, None]
    x[0, :32] = 0.0
    x[1, 5] = 7.0
    return x


def constant(x):
    """Every row filled with its first value."""
    return np.repeat(x[:, :1], x.shape[1], axis=1)


def power(exponent):
    """Multiplication by 2^exponent (exact unless the result is subnormal or overflows)."""
    return lambda x: np.ldexp(x, exponent).astype(np.float32)


def peaks(exponent):
    """Multiplication by 2^(exponent - 3), then the first two values of each row near +- the largest finite number."""
    peak = np.float32(np.ldexp(1.9921875, exponent))

    def apply(x):
        x = np.ldexp(x, exponent - 3).astype(np.float32)
        x[:, 0], x[:, 1] = peak, -peak
        return x

    return apply


TRANSFORMS = {
    "flat": lambda x: x,
    "probe": probe,
    "zeros": np.zeros_like,
    "constant": constant,
    "positive": lambda x: np.abs(x) + np.float32(1.0),
    "negative": lambda x: -(np.abs(x) + np.float32(1.0)),
    "pow-130": power(-130),
    "pow-20": power(-20),
    "pow14": power(14),
    "pow126": power(126),
    "peaks15": peaks(15),
    "peaks127": peaks(127),
}


def make_input(rows, cols, dtype, transform="flat", seed=SEED):
    """The tensor [rows, cols] that a golden record calls {rows, cols, dtype, transform, seed}."""
    x = TRANSFORMS[transform](lcg_values(rows * cols, seed).reshape(rows, cols))
    return torch.from_numpy(np.ascontiguousarray(x)).to(DTYPES[dtype])
