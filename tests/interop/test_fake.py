"""Schemes and models without a layout on disk: the checkpoint holds floats that passed through the quantizer."""

import pytest
import torch

import checkpoint
import quark_oracle
from loading import load_with_transformers
from schemes import FAKE_ONLY

MODELS = ("nano_llama", "nano_opt", "nano_mixtral", "llama_f32")


def expected_weights(source, modules, scheme):
    weights = checkpoint.source_weights(source)
    return {name: quark_oracle.fake_quantized(scheme, weights[name]) for name in modules}


def changed_modules(source, out):
    ours, theirs = checkpoint.source_weights(out), checkpoint.source_weights(source)
    return {name: w for name, w in ours.items() if not torch.equal(w, theirs[name])}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scheme", FAKE_ONLY)
def test_weights_match_quark_fake_quantization(model, scheme, model_dir, quantized):
    changed = changed_modules(model_dir(model), quantized(model, scheme))
    assert changed and not [name for name in changed if "embed" in name or "lm_head" in name or "norm" in name]
    expected = expected_weights(model_dir(model), changed, scheme)
    wrong = [name for name in changed if not torch.equal(changed[name].float(), expected[name].float())]
    assert not wrong, wrong


@pytest.mark.parametrize("scheme", ("mx6", "mx9"))
def test_quantized_modules_match_quark(scheme, model_dir, quantized, frozen):
    assert set(changed_modules(model_dir("nano_llama"), quantized("nano_llama", scheme))) == set(frozen("nano_llama", scheme))


@pytest.mark.parametrize("scheme", ("mx6", "int4_wo_128"))
def test_fake_checkpoint_loads(scheme, quantized):
    """As a plain model where it has no quantization_config, else through Quark, the only reader of such a config."""
    out = quantized("nano_llama", scheme, "--format", "fake")
    plain = "quantization_config" not in checkpoint.config(out)
    loaded = load_with_transformers(out) if plain else quark_oracle.load(out)
    assert loaded(quark_oracle.TOKENS).logits.isfinite().all()


@pytest.mark.parametrize("scheme", ("int4_wo_32", "uint4_wo_128", "ptpc_fp8", "mxfp4", "amdfp4"))
def test_fake_format_of_a_scheme_with_a_layout(scheme, model_dir, quantized, frozen):
    out = quantized("nano_llama", scheme, "--format", "fake")
    changed, expected = changed_modules(model_dir("nano_llama"), out), frozen("nano_llama", scheme)
    assert set(changed) == set(expected)
    assert all(torch.equal(changed[name].float(), expected[name].float()) for name in changed)


def test_gpt2_weights_are_transposed(model_dir, quantized):
    """GPT-2's Conv1D keeps [in, out], and no quantized loader knows it: only the fake form is of use."""
    changed = changed_modules(model_dir("gpt2"), quantized("gpt2", "int4_wo_32", "--format", "fake"))
    assert any(name.endswith("attn.c_attn") for name in changed)
    source = checkpoint.source_weights(model_dir("gpt2"))
    for name, weight in changed.items():
        assert torch.equal(weight.t(), quark_oracle.fake_quantized("int4_wo_32", source[name].t().contiguous())), name
