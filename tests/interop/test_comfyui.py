"""Files for ComfyUI: comfy-kitchen, the library that ComfyUI computes with, reads the codes and scales, and Kvant reads those of other tools."""

import json

import comfy_kitchen.tensor as kitchen
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

LAYOUTS = {"float8_e4m3fn": kitchen.TensorCoreFP8Layout, "float8_e5m2": kitchen.TensorCoreFP8Layout, "int8_tensorwise": kitchen.TensorWiseINT8Layout}
PREFIX = "model.diffusion_model."


def flux(width=96, prefix=""):
    """The tensors of a small FLUX in the original naming."""
    generator = torch.Generator().manual_seed(3)
    tensors = {}

    def linear(name, outputs, inputs):
        tensors[f"{prefix}{name}.weight"] = (torch.randn(outputs, inputs, generator=generator) * 0.05).bfloat16()
        tensors[f"{prefix}{name}.bias"] = torch.randn(outputs, generator=generator).bfloat16()

    linear("img_in", width, 16)
    linear("time_in.in_layer", width, 32)
    linear("vector_in.in_layer", width, 24)
    for stream in ("img", "txt"):
        block = f"double_blocks.0.{stream}"
        linear(f"{block}_mod.lin", 6 * width, width)
        linear(f"{block}_attn.qkv", 3 * width, width)
        linear(f"{block}_mlp.0", 4 * width, width)
        tensors[f"{prefix}{block}_attn.norm.query_norm.scale"] = torch.ones(24).bfloat16()
    linear("single_blocks.0.linear1", 7 * width, width)
    linear("single_blocks.0.modulation.lin", 3 * width, width)
    linear("final_layer.linear", 16, width)
    linear("final_layer.adaLN_modulation.1", 2 * width, width)
    return tensors


def described(path):
    """The layers that the metadata of a file describe."""
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["_quantization_metadata"])["layers"]


def values(layout, codes, scale, shape):
    """What comfy-kitchen computes with."""
    parameters = layout.Params(scale=scale, orig_dtype=torch.float32, orig_shape=shape)
    return layout.dequantize(codes, parameters)


@pytest.mark.parametrize(
    "scheme, limit",
    [
        ("e4m3:tensor", 1.1e-3),
        ("e5m2:tensor", 4.5e-3),
        ("e4m3:tensor+e4m3:tensor!dynamic", 1.1e-3),
        ("int8:channel", 1e-4),
        ("int8:tensor+int8:channel!dynamic", 4e-4),
    ],
)
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_comfy_kitchen_reads_codes_and_scales(kvant, tmp_path, scheme, limit, prefix):
    source = flux(prefix=prefix)
    if prefix:
        source["first_stage_model.decoder.mid.attn_1.q.weight"] = torch.randn(96, 96).bfloat16()
        source["conditioner.embedders.0.layers.0.mlp.fc1.weight"] = torch.randn(96, 96).bfloat16()
    save_file(source, tmp_path / "flux.safetensors")
    out = tmp_path / "out"
    run = kvant("quantize", tmp_path / "flux.safetensors", "--scheme", scheme, "--format", "comfyui", "-o", out)
    assert run.returncode == 0, run.stderr
    written, layers = load_file(out / "model.safetensors"), described(out / "model.safetensors")
    expected = {"img_in", "double_blocks.0.img_attn.qkv", "double_blocks.0.img_mlp.0", "double_blocks.0.txt_attn.qkv"}
    expected |= {"double_blocks.0.txt_mlp.0", "single_blocks.0.linear1", "final_layer.linear"}
    assert set(layers) == {prefix + name for name in expected}
    for name, stated in layers.items():
        weight = source[f"{name}.weight"].float()
        found = values(LAYOUTS[stated["format"]], written[f"{name}.weight"], written[f"{name}.weight_scale"], tuple(weight.shape))
        assert ((found - weight).square().mean() / weight.square().mean()).item() < limit, name
        assert stated.get("full_precision_matrix_mult", False) == ("dynamic" not in scheme)
    kept = source.keys() - {f"{name}.weight" for name in layers}
    assert all(torch.equal(written[name], source[name]) for name in kept)
    assert kvant("verify", out, "--for", "comfyui").returncode == 0


@pytest.mark.parametrize("marked", ["metadata", "tensors", "scaled_fp8"])
def test_files_of_other_tools_become_floats(kvant, tmp_path, marked):
    """Layers that comfy-kitchen has quantized, described in each of the ways that ComfyUI reads."""
    source = flux()
    tensors, expected, layers = dict(source), {}, {}
    for name in ("double_blocks.0.img_attn.qkv", "single_blocks.0.linear1"):
        weight = source[f"{name}.weight"].float()
        is_int8 = marked == "tensors" and name.startswith("single")
        layout = kitchen.TensorWiseINT8Layout if is_int8 else kitchen.TensorCoreFP8Layout
        codes, parameters = layout.quantize(weight, per_channel=True) if is_int8 else layout.quantize(weight)
        expected[f"{name}.weight"] = layout.dequantize(codes, parameters)
        tensors[f"{name}.weight"] = codes
        tensors[f"{name}.{'scale_weight' if marked == 'scaled_fp8' else 'weight_scale'}"] = parameters.scale
        layers[name] = {"format": "int8_tensorwise" if is_int8 else "float8_e4m3fn"}
        if marked == "tensors":
            tensors[f"{name}.comfy_quant"] = torch.tensor(list(json.dumps(layers[name]).encode()), dtype=torch.uint8)
    metadata = None
    if marked == "metadata":
        metadata = {"_quantization_metadata": json.dumps({"layers": layers})}
    if marked == "scaled_fp8":
        tensors["scaled_fp8"] = torch.zeros(2).to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "theirs.safetensors", metadata)
    run = kvant("convert", tmp_path / "theirs.safetensors", "--to", "float", "--dtype", "f32", "-o", tmp_path / "floats")
    assert run.returncode == 0, run.stderr
    floats = load_file(tmp_path / "floats" / "model.safetensors")
    assert floats.keys() == source.keys()
    for name, weight in expected.items():
        assert torch.equal(floats[name].float(), weight), name
