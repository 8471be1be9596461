"""kvant's AWQ, GPTQ, fp8 and MXFP4 layouts, and conversions between layouts, read by others: references in plain torch made from the
layouts' descriptions, AutoAWQ's own code where it is installed, compressed-tensors, amd-quark and transformers.

What others find must be what `kvant convert --to float` makes of the same checkpoint, bit for bit."""

import importlib.util

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.integrations.finegrained_fp8 import FP8Experts

import checkpoint
import foreign_layouts
import quark_oracle
from test_compressed_tensors import decompressed

MODELS = ("nano_llama", "nano_mixtral", "nano_opt")
INTEGERS = [("awq", "uint4:g32:zp"), ("awq", "int4:g64"), ("awq", "int4:channel"), ("gptq", "int4:g32"), ("gptq", "int2:g32"),
            ("gptq", "int8:channel"), ("gptq", "uint4:g32:zp"), ("gptq_v2", "int3:g32"), ("gptq_v2", "uint2:g32:zp"),
            ("gptq_v2", "uint8:g32:zp")]  # fmt: skip


@pytest.fixture
def floats(kvant, tmp_path):
    """floats(directory) -> every weight in f32, by kvant."""

    def of(directory):
        out = tmp_path / f"float-{directory.name}"
        done = kvant("convert", directory, "--to", "float", "--dtype", "f32", "-o", out)
        assert done.returncode == 0, done.stderr
        return {name.removesuffix(".weight"): t for name, t in load_file(out / "model.safetensors").items()}

    return of


@pytest.fixture
def convert(kvant, tmp_path):
    """convert(directory, target) -> directory."""

    def of(directory, target):
        out = tmp_path / f"{directory.name}-{target}"
        done = kvant("convert", directory, "--to", target, "-o", out)
        assert done.returncode == 0, done.stderr
        return out

    return of


def layers(directory, marker):
    """The tensors of every module that has the marker."""
    tensors = load_file(directory / "model.safetensors")
    modules = [name.removesuffix(marker) for name in tensors if name.endswith(marker)]
    return {m: {n.removeprefix(f"{m}."): t for n, t in tensors.items() if n.rpartition(".")[0] == m} for m in modules}


def assert_same(theirs, ours):
    assert theirs
    wrong = [module for module, weight in theirs.items() if not torch.equal(weight.float(), ours[module])]
    assert not wrong, wrong


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout,scheme", INTEGERS)
def test_awq_and_gptq_match_their_description(model, layout, scheme, quantized, floats):
    directory = quantized(model, scheme, "--format", layout)
    config = checkpoint.config(directory)["quantization_config"]
    decode = foreign_layouts.decode_awq if layout == "awq" else foreign_layouts.decode_gptq
    assert_same({m: decode(state, config) for m, state in layers(directory, ".qweight").items()}, floats(directory))


@pytest.mark.parametrize("layout,scheme", INTEGERS)
def test_integers_have_the_same_codes_in_compressed_tensors(layout, scheme, quantized, convert, floats):
    directory = quantized("nano_llama", scheme, "--format", layout)
    converted = convert(directory, "compressed-tensors")
    ours = floats(directory)
    for module, weight in decompressed(converted).items():
        # The library dequantizes in the type of the scales.
        assert torch.equal(weight, ours[module].to(weight.dtype)), module


def test_awq_matches_autoawq(quantized, floats):
    spec = importlib.util.find_spec("awq")
    if spec is None:
        pytest.skip("AutoAWQ is not installed")
    # The package itself wants older versions of others; what unpacks does not.
    path = f"{spec.submodule_search_locations[0]}/utils/packing_utils.py"
    source = importlib.util.spec_from_file_location("packing_utils", path)
    packing = importlib.util.module_from_spec(source)
    source.loader.exec_module(packing)
    directory = quantized("nano_llama", "uint4:g32:zp", "--format", "awq")
    ours = floats(directory)
    for module, state in layers(directory, ".qweight").items():
        theirs = packing.dequantize_gemm(state["qweight"], state["qzeros"], state["scales"], 4, 32)
        assert torch.equal(theirs.t(), ours[module].half()), module


@pytest.mark.parametrize("source,scheme", [("awq", "uint4:g32:zp"), ("gptq", "int4:g32"), ("compressed-tensors", "MXFP4A16")])
def test_quark_reads_converted_checkpoints(source, scheme, quantized, convert, floats):
    converted = convert(quantized("nano_llama", scheme, "--format", source), "quark")
    theirs = quark_oracle.dequantized(quark_oracle.load(converted), torch.float32)
    ours = {checkpoint.canonical(f"{name}.weight").removesuffix(".weight"): weight for name, weight in floats(converted).items()}
    assert_same(theirs, ours)


def test_fp8_blocks_match_transformers(quantized, floats, monkeypatch):
    # 5.16.1 asks this table for models without experts too, and goes on with None.
    monkeypatch.setitem(FP8Experts._impl_tp_layer_overrides, None, {})
    directory = quantized("nano_llama", "FP8_BLOCK", "--format", "fp8")
    config = transformers.FineGrainedFP8Config(weight_block_size=(128, 128), modules_to_not_convert=["lm_head"], dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, quantization_config=config, dtype=torch.float32)
    ours = floats(directory)
    modules = layers(directory, ".weight_scale_inv")
    assert_same({module: model.get_submodule(module).weight.data for module in modules}, ours)


@pytest.mark.parametrize("scheme", ("FP8_BLOCK", "e4m3:tensor+e4m3:tensor!dynamic"))
def test_fp8_matches_its_description(scheme, quantized, floats):
    directory = quantized("nano_llama", scheme, "--format", "fp8")

    def decode(state):
        weight = state["weight"].float()
        if "weight_scale" in state:
            return weight * state["weight_scale"]
        scale = state["weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
        return weight * scale[: weight.shape[0], : weight.shape[1]]

    marker = ".weight_scale_inv" if scheme == "FP8_BLOCK" else ".weight_scale"
    assert_same({m: decode(state) for m, state in layers(directory, marker).items()}, floats(directory))


def test_gpt_oss_mxfp4_matches_transformers(quantized, floats):
    directory = quantized("gpt_oss", "mxfp4_weight_only", "--format", "mxfp4")
    config = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, quantization_config=config, dtype=torch.bfloat16)
    ours = floats(directory)
    names = [name for name in ours if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert_same({name: model.get_parameter(name).data for name in names}, ours)
