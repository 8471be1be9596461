"""kvant's Quark layout against Quark's own export: the same tensors, and the same weights through the loaders."""

import json

import pytest
import torch

import checkpoint
import quark_oracle
from loading import load_with_transformers
from models import GENERATED, MIXTURES, SHARED
from schemes import DATA_FREE, REPRESENTATIVE, REPRESENTATIVE_STATIC, STATIC, TWO_STAGE

# All schemes of one model, those of each layout of others, and of generated models one of each kind of packing.
FIRST, OTHERS = SHARED[0], SHARED[1:]
PACKINGS = ("int4_wo_32", "uint4_wo_128", "ptpc_fp8", "mxfp4", "mxfp6_e2m3", "int4_fp8")
CASES = [(FIRST, s) for s in DATA_FREE] + [(m, s) for m in OTHERS for s in REPRESENTATIVE] + [(m, s) for m in GENERATED for s in PACKINGS]
WEIGHTS_ONLY = [(FIRST, s) for s in STATIC] + [(m, s) for m in OTHERS for s in REPRESENTATIVE_STATIC] + [(m, s) for m in GENERATED for s in ("fp8", "nvfp4")]
ACTIVATION_STATE = ("input_scale", "input_zero_point", "input_scale_2")


def equal(a, b):
    """Integers bit for bit; floats by value, so that one may be stored wider if it holds the same number."""
    if a.is_floating_point() and b.is_floating_point():
        return torch.equal(a.float(), b.float())
    return a.dtype == b.dtype and torch.equal(a, b)


def assert_same_tensors(ours, theirs):
    """Same names, shapes and values."""
    assert sorted(ours) == sorted(theirs)
    wrong = [name for name in theirs if ours[name].shape != theirs[name].shape or not equal(ours[name], theirs[name])]
    assert not wrong, {name: (ours[name].dtype, theirs[name].dtype) for name in wrong}


def assert_same_weights(ours, theirs):
    assert sorted(ours) == sorted(theirs) and ours
    wrong = [name for name in theirs if not torch.equal(ours[name].float(), theirs[name].float())]
    assert not wrong, wrong


def without_activation_state(tensors):
    return {name: t for name, t in tensors.items() if name.rsplit(".", 1)[-1] not in ACTIVATION_STATE}


@pytest.mark.parametrize("model,scheme", CASES)
def test_tensors_match_quark(model, scheme, quantized, reference):
    assert_same_tensors(checkpoint.tensors(quantized(model, scheme)), checkpoint.tensors(reference(model, scheme)))


@pytest.mark.parametrize("model,scheme", WEIGHTS_ONLY)
def test_weights_only_tensors_match_quark(model, scheme, quantized, reference):
    theirs = without_activation_state(checkpoint.tensors(reference(model, scheme)))
    assert_same_tensors(checkpoint.tensors(quantized(model, scheme, "--weights-only")), theirs)


@pytest.mark.parametrize("model,scheme", CASES)
def test_quark_loads_weights_matching_its_own(model, scheme, quantized, reference, frozen):
    loaded = quark_oracle.load(quantized(model, scheme))
    ours = quark_oracle.dequantized(loaded)
    # The frozen in-memory weight of a two-stage scheme is not quantized: take the incumbent's export instead.
    expected = quark_oracle.dequantized(quark_oracle.load(reference(model, scheme))) if scheme in TWO_STAGE else frozen(model, scheme)
    assert_same_weights(ours, expected)
    assert loaded(quark_oracle.TOKENS).logits.isfinite().all()


@pytest.mark.parametrize("model,scheme", WEIGHTS_ONLY)
def test_quark_loads_the_weights_only_form(model, scheme, quantized, reference):
    loaded = quark_oracle.load(quantized(model, scheme, "--weights-only"))
    assert_same_weights(quark_oracle.dequantized(loaded), quark_oracle.dequantized(quark_oracle.load(reference(model, scheme))))
    assert loaded(quark_oracle.TOKENS).logits.isfinite().all()


@pytest.mark.parametrize("model,scheme", [(m, s) for m, s in CASES if m not in MIXTURES and s not in TWO_STAGE])
def test_transformers_loads_weights_matching_quark(model, scheme, quantized, frozen):
    loaded = load_with_transformers(quantized(model, scheme))
    assert_same_weights(quark_oracle.dequantized(loaded), frozen(model, scheme))
    assert loaded(quark_oracle.TOKENS).logits.isfinite().all()


@pytest.mark.parametrize("scheme", ("int4_wo_128", "uint4_wo_32", "int4_wo_per_channel"))
def test_natural_packing_order(scheme, quantized, frozen):
    out = quantized("nano_llama", scheme, "--pack-method", "order")
    assert checkpoint.config(out)["quantization_config"]["export"]["pack_method"] == "order"
    assert_same_weights(quark_oracle.dequantized(quark_oracle.load(out)), frozen("nano_llama", scheme))


@pytest.mark.parametrize("scheme", DATA_FREE)
def test_quantization_config_describes_the_same_scheme(scheme, quantized, reference):
    def specification(directory):
        config = checkpoint.config(directory)["quantization_config"]
        chosen = {key: config["global_quant_config"][key] for key in ("weight", "input_tensors", "output_tensors", "bias")}
        return json.dumps({**chosen, "export": config["export"], "method": config["quant_method"]}, sort_keys=True)

    assert specification(quantized("nano_llama", scheme)) == specification(reference("nano_llama", scheme))


def test_overrides_and_exclusions_reach_the_loader(quantized, frozen):
    options = ("--override", "*.down_proj=ptpc_fp8", "--exclude", "*.o_proj")
    ours = quark_oracle.dequantized(quark_oracle.load(quantized("nano_llama", "int4_wo_128", *options)))
    base, other = frozen("nano_llama", "int4_wo_128"), frozen("nano_llama", "ptpc_fp8")
    expected = {name: other[name] if name.endswith("down_proj") else w for name, w in base.items() if not name.endswith("o_proj")}
    assert_same_weights(ours, expected)


@pytest.mark.parametrize("scheme", DATA_FREE)
def test_quark_config_is_a_recipe(scheme, kvant, model_dir, quantized, reference, tmp_path):
    (tmp_path / "quark.json").write_text(json.dumps(checkpoint.config(reference("nano_llama", scheme))["quantization_config"]))
    done = kvant("quantize", model_dir("nano_llama"), "--recipe", tmp_path / "quark.json", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert_same_tensors(checkpoint.tensors(tmp_path / "out"), checkpoint.tensors(quantized("nano_llama", scheme)))


def test_shards_load(quantized, frozen):
    out = quantized("nano_llama", "int4_wo_128", "--max-shard-size", "300KB")
    assert len(list(out.glob("model-*.safetensors"))) > 1
    for loaded in (quark_oracle.load(out), load_with_transformers(out)):
        assert_same_weights(quark_oracle.dequantized(loaded), frozen("nano_llama", "int4_wo_128"))
