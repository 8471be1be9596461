"""kvant's compressed-tensors layout, read by compressed-tensors itself and by transformers."""

import re

import pytest
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme

import checkpoint
from loading import load_with_transformers
from models import GENERATED, MIXTURES, SHARED
from quark_oracle import TOKENS
from schemes import COMPRESSED_TENSORS, MORE_COMPRESSED_TENSORS, SAME_NUMBERS

DENSE = [m for m in SHARED + tuple(GENERATED) if m not in MIXTURES]
# compressed-tensors decodes block floats to bf16 whatever the model, so other models cannot run them on a CPU.
NOT_BF16 = ("nano_opt", "llama_f32", "llama_f16")
BLOCK_FLOATS = [s for s, (layout, _) in COMPRESSED_TENSORS.items() if layout.startswith(("nv", "mx"))]
LOADABLE = [(m, s) for m in DENSE for s in COMPRESSED_TENSORS if m not in NOT_BF16 or s not in BLOCK_FLOATS]
LOADABLE += [("nano_llama", s) for s in MORE_COMPRESSED_TENSORS]
LAYOUTS = {**COMPRESSED_TENSORS, **MORE_COMPRESSED_TENSORS}
MARKERS = (".weight_packed", ".weight_scale")
# Mixtures of experts that transformers merges rightly; the rest are limits of its loader.
MERGEABLE = [(m, s) for m in ("nano_mixtral", "qwen3_moe", "deepseek_v2") for s in ("FP8_DYNAMIC", "MXFP4A16")]


def scheme_of(directory):
    groups = checkpoint.config(directory)["quantization_config"]["config_groups"]
    assert len(groups) == 1
    return QuantizationScheme(**next(iter(groups.values())))


def decompressed(directory):
    """Every quantized weight through the library's own decompressor, by module."""
    config, tensors = checkpoint.config(directory)["quantization_config"], checkpoint.tensors(directory)
    compressor, scheme = BaseCompressor.get_value_from_registry(config["format"]), scheme_of(directory)
    modules = {name.removesuffix(m) for name in tensors for m in MARKERS if name.endswith(m)}
    states = {m: {k.removeprefix(m + "."): t for k, t in tensors.items() if k.rsplit(".", 1)[0] == m} for m in modules}
    return {m: compressor.decompress(state, scheme)["weight"] for m, state in states.items()}


def by_transformers(directory, modules):
    """The weights that a forward pass of the loaded model uses."""
    model = load_with_transformers(directory)
    with torch.no_grad():
        logits = model(TOKENS).logits
    assert logits.isfinite().all()
    state = model.state_dict()
    return {name: expert(state, name) if is_expert(name) else state[name + ".weight"] for name in modules}


def is_expert(name):
    return re.search(r"\.experts\.\d+\.", name)


def expert(state, name):
    """One expert's weight out of the merged 3-D parameters [expert, out, in]; gate above up."""
    base, index, role = re.match(r"(.*\.experts)\.(\d+)\.(\w+)$", name).groups()
    if role == "down_proj":
        return state[base + ".down_proj"][int(index)]
    gate, up = state[base + ".gate_up_proj"][int(index)].chunk(2)
    return gate if role == "gate_proj" else up


def block_maximum(weight, args):
    """|w| maximum of the set that shares a scale, at every element."""
    rows, cols = weight.shape
    if args.strategy == "block":
        high, wide = args.block_structure
        padded = torch.nn.functional.pad(weight.abs(), (0, -cols % wide, 0, -rows % high))[None]
        pooled = torch.nn.functional.max_pool2d(padded, (high, wide))[0]
        return pooled.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:rows, :cols]
    width = args.group_size or cols
    return weight.abs().reshape(rows, -1, width).amax(-1).repeat_interleave(width, 1)


def assert_close_to_source(weights, directory, args, bound):
    source = checkpoint.source_weights(directory)
    for name, got in weights.items():
        wanted = source[name].float()
        worst = ((got.float() - wanted).abs() / block_maximum(wanted, args).clamp(min=1e-30)).max()
        assert worst <= bound, (name, float(worst))


@pytest.mark.parametrize("model,scheme", LOADABLE)
def test_dense_models_load_in_transformers(model, scheme, model_dir, quantized):
    out = quantized(model, scheme)
    layout, bound = LAYOUTS[scheme]
    assert checkpoint.config(out)["quantization_config"]["format"] == layout
    by_library = decompressed(out)
    loaded = by_transformers(out, by_library)
    assert all(torch.equal(loaded[name].float(), w.to(loaded[name].dtype).float()) for name, w in by_library.items())
    assert_close_to_source(by_library, model_dir(model), scheme_of(out).weights, bound)


@pytest.mark.parametrize("model,scheme", MERGEABLE)
def test_mixtures_load_in_transformers(model, scheme, quantized):
    by_library = decompressed(quantized(model, scheme))
    loaded = by_transformers(quantized(model, scheme), by_library)
    assert any(map(is_expert, loaded))
    assert all(torch.equal(loaded[name].float(), w.to(loaded[name].dtype).float()) for name, w in by_library.items())


@pytest.mark.parametrize("model", NOT_BF16)
@pytest.mark.parametrize("scheme", BLOCK_FLOATS)
def test_block_floats_of_other_dtypes_decompress(model, scheme, model_dir, quantized):
    out = quantized(model, scheme)
    assert_close_to_source(decompressed(out), model_dir(model), scheme_of(out).weights, COMPRESSED_TENSORS[scheme][1])


@pytest.mark.parametrize("model", MIXTURES)
@pytest.mark.parametrize("scheme", ("W4A16_ASYM", "W8A8", "FP8_BLOCK", "NVFP4A16", "MXFP8A16"))
def test_mixtures_decompress(model, scheme, model_dir, quantized):
    weights = decompressed(quantized(model, scheme, "--exclude", "*self_attn*"))
    assert any(map(is_expert, weights))
    assert_close_to_source(weights, model_dir(model), scheme_of(quantized(model, scheme, "--exclude", "*self_attn*")).weights,
                           COMPRESSED_TENSORS[scheme][1])


@pytest.mark.parametrize("model", ("nano_llama", "nano_opt", "llama_f32"))
@pytest.mark.parametrize("scheme,twin", SAME_NUMBERS)
def test_weights_match_quark(model, scheme, twin, quantized, frozen):
    loaded = decompressed(quantized(model, scheme, "--format", "compressed-tensors"))
    expected = frozen(model, twin)
    assert sorted(loaded) == sorted(expected)
    wrong = [name for name in expected if not torch.equal(loaded[name].float(), expected[name].float())]
    assert not wrong, wrong


@pytest.mark.parametrize("scheme", ("NVFP4A16",))
def test_fused_siblings_share_the_global_scale(scheme, quantized):
    tensors = checkpoint.tensors(quantized("nano_llama", scheme))
    scale = {name: float(t) for name, t in tensors.items() if name.endswith("weight_global_scale")}
    for q in (name for name in scale if ".q_proj." in name):
        assert scale[q] == scale[q.replace("q_proj", "k_proj")] == scale[q.replace("q_proj", "v_proj")]
    for gate in (name for name in scale if ".gate_proj." in name):
        assert scale[gate] == scale[gate.replace("gate_proj", "up_proj")]
