"""Layouts of Quark that no scheme name stands for: the same tensors as Quark's export of the same specification."""

import pytest
import safetensors
import torch

import checkpoint
import quark_oracle
from loading import load_with_transformers
from schemes import SPELLED
from test_quark_layout import assert_same_tensors, assert_same_weights

# In 16-bit models the incumbent quantizes the rounded weight a second time, which moves a few 8-bit codes with a zero point.
MODELS = {True: ("nano_llama", "nano_opt", "llama_f32"), False: ("llama_f32",)}
CASES = [(m, s) for s, (dtype, _, _, symmetric) in SPELLED.items() for m in MODELS[symmetric or not dtype.endswith("int8")]]


@pytest.mark.parametrize("model,spelling", CASES)
def test_spelled_scheme_tensors_match_quark(model, spelling, model_dir, quantized, tmp_path):
    theirs = quark_oracle.export_spec(model_dir(model), quark_oracle.weight_spec(*SPELLED[spelling]), tmp_path / "quark")
    ours = quantized(model, spelling, "--format", "quark")
    assert_same_tensors(checkpoint.tensors(ours), checkpoint.tensors(theirs))
    expected = quark_oracle.dequantized(load_with_transformers(theirs))
    assert_same_weights(quark_oracle.dequantized(load_with_transformers(ours)), expected)


def blockwise(codes, scale, size):
    """codes * scale of its block."""
    spread = scale.float().repeat_interleave(size, 0).repeat_interleave(size, 1)
    return codes.float() * spread[: codes.shape[0], : codes.shape[1]]


def test_quark_reads_fp8_blocks(quantized):
    """Quark writes no such layout but reads it, for dimensions that the block divides."""
    out = quantized("nano_llama", "e4m3:b128x128", "--format", "quark", "--exclude", "*self_attn*")
    stored, weights = checkpoint.tensors(out), quark_oracle.dequantized(quark_oracle.load(out))
    assert weights
    for name, weight in weights.items():
        expected = blockwise(stored[name + ".weight"], stored[name + ".weight_scale"], 128)
        assert torch.equal(weight, expected.to(weight.dtype)), name


def test_layers_not_divisible_by_fp8_blocks_stay_float(kvant, model_dir, tmp_path):
    done = kvant("quantize", model_dir("nano_llama"), "--scheme", "e4m3:b128x128", "--format", "quark", "-o", tmp_path / "out")
    assert done.returncode == 0 and "`model.layers.0.self_attn.k_proj` and 7 more layers stay in floats" in done.stderr
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "pt") as written:
        dtypes = {name: written.get_slice(f"model.layers.0.self_attn.{name}.weight").get_dtype() for name in ("k_proj", "o_proj")}
    assert dtypes == {"k_proj": "BF16", "o_proj": "F8_E4M3"}
    none_fits = kvant("quantize", model_dir("nano_llama"), "--scheme", "e4m3:b100x100", "--format", "quark", "-o", tmp_path / "none")
    assert none_fits.returncode == 1 and "hint:" in none_fits.stderr and not (tmp_path / "none").exists()
