"""The blocks of every tensor type of GGUF: gguf-py reads them to the same values, llama.cpp's quantizer makes the same or worse.

    $KVANT_GGML  a libggml-base shared library of llama.cpp; without it, the comparison with its quantizer is skipped

Weights are normal, heavy-tailed, one-sided and uniform, and those of the small trained models. Errors are sums of squares,
with importance weighted by it: what kvant's searches minimise.
"""

import ctypes
import functools
import os
import subprocess

import numpy as np
import pytest

from conftest import example

gguf = pytest.importorskip("gguf")
COLUMNS = 1024
SIZES = gguf.constants.GGML_QUANT_SIZES
# Blocks by a formula: the same bytes, whatever the importance where the second says so.
FORMULAS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"]
UNWEIGHTED = ["F16", "BF16", "Q8_0", "TQ1_0", "TQ2_0"]
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"]
KINDS = ["F32", *FORMULAS, *SEARCHED]
C_NAMES = {name: name.lower().replace("_k", "_K") for name in KINDS}


def inputs():
    rng = np.random.default_rng(7)
    shape = (64, COLUMNS)
    yield "normal", rng.standard_normal(shape) * 0.02
    yield "tailed", rng.standard_t(4, shape) * 0.02
    yield "one-sided", np.abs(rng.standard_normal(shape)) * 0.02 + 0.01
    yield "uniform", rng.uniform(-1, 1, shape)
    mixed = rng.standard_normal(shape) * np.exp(rng.standard_normal((shape[0], 1)) * 3)
    mixed[::7, 256:512] = 0
    yield "mixed", mixed


INPUTS = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in inputs()}
IMPORTANCE = np.random.default_rng(8).lognormal(0, 2, COLUMNS).astype(np.float32)


@pytest.fixture(scope="module")
def blocks(module_path):
    """blocks("quantize", type, values, importance or None) and blocks("dequantize", type, bytes)."""
    program = example("ggml_blocks")
    folder = module_path("blocks")

    def run(verb, kind, data, importance=None):
        (folder / "in").write_bytes(data.tobytes())
        arguments = [verb, kind, *([str(data.shape[1])] if verb == "quantize" else []), folder / "in", folder / "out"]
        if importance is not None:
            (folder / "importance").write_bytes(importance.tobytes())
            arguments.append(folder / "importance")
        subprocess.run([program, *arguments], check=True)
        return np.fromfile(folder / "out", np.uint8 if verb == "quantize" else np.float32)

    return run


@functools.cache
def ggml():
    path = os.environ.get("KVANT_GGML")
    return ctypes.CDLL(path) if path else pytest.skip("$KVANT_GGML names no libggml-base of llama.cpp")


def theirs(kind, values, importance):
    """Blocks by llama.cpp."""
    elements, size = SIZES[gguf.GGMLQuantizationType[kind]]
    out = np.zeros(values.size // elements * size, np.uint8)
    quantize = getattr(ggml(), f"quantize_{C_NAMES[kind]}")
    quantize.restype = ctypes.c_size_t
    pointer = lambda array: None if array is None else array.ctypes.data_as(ctypes.c_void_p)  # noqa: E731
    written = quantize(
        pointer(values), pointer(out), ctypes.c_int64(values.shape[0]), ctypes.c_int64(values.shape[1]), pointer(importance)
    )
    assert written == out.size
    return out


def dequantized(kind, blocks, shape):
    """Values by gguf-py."""
    _, size = SIZES[gguf.GGMLQuantizationType[kind]]
    return gguf.dequantize(blocks.reshape(-1, size), gguf.GGMLQuantizationType[kind]).reshape(shape).astype(np.float32)


def error(values, back, importance):
    weights = 1.0 if importance is None else importance.astype(np.float64)
    return float((weights * (values.astype(np.float64) - back) ** 2).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_values_match_gguf_py(blocks, kind, weighted):
    for name, values in INPUTS.items():
        found = blocks("quantize", kind, values, IMPORTANCE if weighted else None)
        ours = blocks("dequantize", kind, found)
        expected = dequantized(kind, found, -1)
        assert ours.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "F32"])
def test_random_blocks_match_gguf_py(blocks, kind):
    elements, size = SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(9).integers(0, 256, (512, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantized(kind, random, (512, elements))
    ours = blocks("dequantize", kind, random).reshape(512, elements)
    # What is NaN is so in both; its payload is the processor's.
    assert (np.isnan(ours) == np.isnan(expected)).all()
    number = ~np.isnan(expected)
    assert ours[number].tobytes() == expected[number].tobytes()


@pytest.mark.parametrize("kind", [kind for kind in FORMULAS if kind not in ("F16", "BF16")])
def test_formula_types_match_llama_cpp_bytes(blocks, kind):
    for name, values in INPUTS.items():
        assert blocks("quantize", kind, values).tobytes() == theirs(kind, values, None).tobytes(), name
        if kind in UNWEIGHTED:
            weighted = blocks("quantize", kind, values, IMPORTANCE)
            assert weighted.tobytes() == theirs(kind, values, IMPORTANCE).tobytes(), name


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", [*SEARCHED, "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_searched_types_have_no_more_error_than_llama_cpp(blocks, kind, weighted):
    importance = IMPORTANCE if weighted else None
    for name, values in INPUTS.items():
        ours = error(values, dequantized(kind, blocks("quantize", kind, values, importance), values.shape), importance)
        other = error(values, dequantized(kind, theirs(kind, values, importance), values.shape), importance)
        assert ours <= other, f"{name}: {ours / other:.4f} of llama.cpp's"
