"""Inputs of the ONNX models: pictures made of noise and shapes, and windows of text. Everything follows from a seed.

The layout of every file of data: an `.npz` with one array per input of the model, named as the input, whose first axis
counts the samples. A sample is `array[i:i+1]`, fed with a batch of one; where the model fixes another batch b, consecutive
groups of b samples are fed.
"""

import pathlib

import numpy as np

REPO = pathlib.Path(__file__).resolve().parents[2]
PROSE = REPO / "LICENSE-APACHE"  # a text that never changes


def noise(rng, channels, size):
    """Noise whose amplitude falls as 1/f, as that of photographs does: [channels, size, size], unit deviation."""
    fy, fx = np.meshgrid(np.fft.fftfreq(size), np.fft.rfftfreq(size), indexing="ij")
    spectrum = np.fft.rfft2(rng.standard_normal((channels, size, size))) / np.maximum(np.hypot(fy, fx), 1 / size)
    field = np.fft.irfft2(spectrum, (size, size))
    return field / field.std(axis=(1, 2), keepdims=True)


def draw_shape(rng, picture):
    """Paints a rectangle or a disc of one colour."""
    size = picture.shape[-1]
    y, x = np.mgrid[:size, :size]
    cy, cx = rng.uniform(0, size, 2)
    h, w = rng.uniform(size / 16, size / 3, 2)
    inside = (abs(y - cy) < h) & (abs(x - cx) < w) if rng.random() < 0.5 else ((y - cy) / h) ** 2 + ((x - cx) / w) ** 2 < 1
    picture[:, inside] = rng.uniform(-2.1, 2.6, (picture.shape[0], 1)) + 0.1 * picture[:, inside]


def pictures(count, size, seed, channels=3):
    """f32 [count, channels, size, size] in the range that normalised photographs have, about -2.1 .. 2.6."""
    rng = np.random.default_rng(seed)
    out = np.empty((count, channels, size, size), np.float32)
    for picture in out:
        shared = noise(rng, 1, size)
        drawn = 0.8 * shared + 0.4 * noise(rng, channels, size) + rng.uniform(-0.5, 0.5, (channels, 1, 1))
        for _ in range(rng.integers(2, 7)):
            draw_shape(rng, drawn)
        picture[...] = np.clip(drawn, -2.12, 2.64)
    return out


def windows(tokens, count, length, half):
    """i64 [count, length]: evenly spaced windows of one half (0 or 1) of the tokens, so that the halves share nothing."""
    middle = len(tokens) // 2
    part = np.asarray(tokens[:middle] if half == 0 else tokens[middle:], np.int64)
    starts = np.linspace(0, len(part) - length, count).astype(int)
    return np.stack([part[s : s + length] for s in starts])


def sequences(count, features, length, seed):
    """f32 [count, length, features]: sums of a few sines with noise, as sensors give."""
    rng = np.random.default_rng(seed)
    t = np.arange(length)[None, :, None]
    out = np.zeros((count, length, features))
    for _ in range(3):
        amplitude, frequency, phase = rng.uniform(0.2, 1, (3, count, 1, features))
        out += amplitude * np.sin(frequency * t + 6.28 * phase)
    return (out + 0.1 * rng.standard_normal(out.shape)).astype(np.float32)
