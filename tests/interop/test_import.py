"""Checkpoints quantized by others, read by kvant: the weights that their loaders dequantize, bit for bit in f32, and logits."""

import json
import pathlib
import subprocess

import numpy as np
import pytest
import torch
import transformers
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file

import checkpoint
import foreign_layouts
import quark_oracle
from conftest import example
from schemes import DATA_FREE, REPRESENTATIVE, STATIC

CASES = [("nano_llama", s) for s in DATA_FREE + STATIC]
CASES += [(m, s) for m in ("nano_mixtral", "gpt_oss", "qwen3_moe", "gpt_neox", "llama_f16", "llama_tied") for s in REPRESENTATIVE]
TOKENS = np.random.default_rng(5).integers(0, 500, (2, 64))


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def read(tmp_path):
    """read(directory) -> (weights in f32 by module, what is said of activations)."""

    def of(directory):
        out = tmp_path / f"dequantized-{pathlib.Path(directory).name}"
        run(example("dequantize"), directory, out)
        weights = load_file(out / "model.safetensors")
        said = json.loads((out / "activations.json").read_text())
        return {checkpoint.canonical(name).removesuffix(".weight"): t for name, t in weights.items()}, said

    return of


@pytest.fixture
def logits(tmp_path):
    """logits(directory) -> of TOKENS, by kvant."""

    def of(directory):
        TOKENS.astype("<u4").tofile(tmp_path / "tokens")
        run(example("logits"), directory, TOKENS.shape[1], tmp_path / "tokens", tmp_path / "logits")
        return np.fromfile(tmp_path / "logits", dtype="<f4").reshape(*TOKENS.shape, -1)

    return of


def assert_same(ours, theirs):
    assert sorted(ours) == sorted(theirs) and ours
    wrong = [name for name in theirs if not torch.equal(ours[name], theirs[name].float())]
    assert not wrong, wrong


def assert_same_logits(ours, model):
    with torch.no_grad():
        expected = model(torch.tensor(TOKENS)).logits.float().numpy()
    assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("model,scheme", CASES)
def test_quark_exports_are_read(model, scheme, reference, read):
    directory = reference(model, scheme)
    assert_same(read(directory)[0], quark_oracle.dequantized(quark_oracle.load(directory), torch.float32))


@pytest.mark.parametrize("model", ("nano_llama", "nano_mixtral", "gpt_oss", "gpt_neox"))
@pytest.mark.parametrize("scheme", ("int4_wo_32", "uint4_wo_32", "mxfp4_weight_only"))
def test_logits_of_quark_exports_match(model, scheme, reference, logits):
    directory = reference(model, scheme)
    assert_same_logits(logits(directory), quark_oracle.load(directory).float())


@pytest.mark.parametrize("scheme,key", [("fp8", "input_scale"), ("int8", "input_scale"), ("mxfp4_fp8", "input_scale"),
                                        ("nvfp4", "input_scale_2")])  # fmt: skip
def test_static_scales_of_quark_exports_are_read(scheme, key, reference, read):
    directory = reference("nano_llama", scheme)
    tensors, said = checkpoint.tensors(directory), read(directory)[1]
    scales = {name.removesuffix(f".{key}"): t.float().item() for name, t in tensors.items() if name.endswith(f".{key}")}
    assert {module: one["input"]["parameters"]["scales"] for module, one in said.items()} == {m: [s] for m, s in scales.items()}
    assert len(scales) == 28


def linears(directory):
    """The [out, in] weights of a model that tools quantize, by module."""
    tensors = load_file(directory / "model.safetensors")
    return {n.removesuffix(".weight"): t for n, t in tensors.items() if n.endswith("_proj.weight")}


def save_as(source, tensors, quantization, out):
    """A checkpoint with the other tensors of `source`."""
    kept = {n: t for n, t in load_file(source / "model.safetensors").items() if not n.endswith("_proj.weight")}
    out.mkdir()
    save_file({n: t.contiguous() for n, t in {**kept, **tensors}.items()}, out / "model.safetensors", {"format": "pt"})
    config = {**checkpoint.config(source), "quantization_config": quantization}
    (out / "config.json").write_text(json.dumps(config))
    return out


def weights_args(bits, strategy, symmetric=True, group=None, kind="int"):
    return QuantizationArgs(num_bits=bits, type=kind, symmetric=symmetric, strategy=strategy, group_size=group)


def weight_scheme(*args, **kwargs):
    return QuantizationScheme(targets=["Linear"], weights=weights_args(*args, **kwargs))


COMPRESSED = {
    **{f"int{b}": ("pack-quantized", weight_scheme(b, "group", group=32)) for b in range(2, 9)},
    **{f"int{b}-zp": ("pack-quantized", weight_scheme(b, "group", False, 32)) for b in range(2, 9)},
    "int4-channel-zp": ("pack-quantized", weight_scheme(4, "channel", False)),
    **{name: (layout, preset_name_to_scheme(name, ["Linear"])) for name, layout in (
        ("W8A8", "int-quantized"), ("FP8_DYNAMIC", "float-quantized"), ("FP8_BLOCK", "float-quantized"),
        ("NVFP4A16", "nvfp4-pack-quantized"), ("MXFP4A16", "mxfp4-pack-quantized"), ("MXFP6A16", "mxfp6-pack-quantized"),
        ("MXFP8A16", "mxfp8-quantized"))},
}  # fmt: skip


def ranges(weight, args):
    """Minimum and maximum of what shares a scale."""
    if args.strategy == "block":
        high, wide = args.block_structure
        rows, columns = (-(-n // size) for n, size in zip(weight.shape, (high, wide)))
        padded = torch.nn.functional.pad(weight, (0, columns * wide - weight.shape[1], 0, rows * high - weight.shape[0]))
        view = padded.reshape(rows, high, columns, wide).transpose(1, 2).reshape(rows, columns, -1)
    else:
        view = weight.reshape(weight.shape[0], -1, args.group_size or weight.shape[1])
    return view.amin(-1), view.amax(-1)


def compress(weight, layout, scheme):
    """A module's tensors by the library's own compressor, and the weight that it makes of them."""
    args, state = scheme.weights, {"weight": weight}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
    scale, zero_point = calculate_qparams(*ranges(weight, args), args, global_scale=state.get("weight_global_scale"))
    state |= {"weight_scale": scale, **({} if args.symmetric else {"weight_zero_point": zero_point})}
    compressor = BaseCompressor.get_value_from_registry(layout)
    tensors = {name: t.clone(memory_format=torch.contiguous_format) for name, t in compressor.compress(state, scheme).items()}
    return tensors, compressor.decompress(dict(tensors), scheme)["weight"]


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors_are_read(name, model_dir, read, tmp_path):
    layout, scheme = COMPRESSED[name]
    modules = {m: compress(w.float() if layout == "pack-quantized" else w, layout, scheme) for m, w in linears(model_dir("nano_llama")).items()}
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=layout, quantization_status="compressed", ignore=["lm_head"])
    tensors = {f"{m}.{k}": t for m, (state, _) in modules.items() for k, t in state.items()}
    quantization = {**config.model_dump(mode="json"), "quant_method": "compressed-tensors"}
    ours, _ = read(save_as(model_dir("nano_llama"), tensors, quantization, tmp_path / name))
    assert sorted(ours) == sorted(modules)
    for module, (_, expected) in modules.items():
        # The library dequantizes in the type of the scales.
        assert torch.equal(ours[module].to(expected.dtype), expected), module


FOREIGN = {
    "awq": lambda w: foreign_layouts.awq(w, 32),
    **{f"gptq-{b}bit-v{v}{'-order' if order else ''}": (lambda w, b=b, v=v, order=order: foreign_layouts.gptq(w, b, 32, v, order))
       for b in (2, 3, 4, 8) for v in (1, 2) for order in (False, True)},
    "fp8": lambda w: foreign_layouts.fp8(w, None),
    "fp8-channel": lambda w: foreign_layouts.fp8(w, (1, w.shape[1])),
    "fp8-block": lambda w: foreign_layouts.fp8(w, (128, 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_layouts_are_read(name, model_dir, read, logits, tmp_path):
    made = {module: FOREIGN[name](weight.float()) for module, weight in linears(model_dir("nano_llama")).items()}
    tensors = {f"{m}.{k}": t for m, (state, _, _) in made.items() for k, t in state.items()}
    quantization = next(iter(made.values()))[2]
    directory = save_as(model_dir("nano_llama"), tensors, quantization, tmp_path / name)
    assert_same(read(directory)[0], {module: weight for module, (_, weight, _) in made.items()})
    if name.startswith("fp8"):
        return  # Inputs are quantized too.
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir("nano_llama"), dtype=torch.float32)
    for module, (_, weight, _) in made.items():
        model.get_submodule(module).weight.data = weight
    assert_same_logits(logits(directory), model.eval())


def test_gpt_oss_mxfp4_is_read(model_dir, read, logits, tmp_path):
    source, out = model_dir("gpt_oss"), tmp_path / "mxfp4"
    tensors = load_file(source / "model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    stored, expected = {}, {}
    for name, t in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):  # [experts, in, out] in floats, [experts, out, in] packed
            blocks, scales, values = foreign_layouts.mxfp4(t.float().transpose(1, 2))
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            expected[name] = values
            model.get_parameter(name).data = values.transpose(1, 2).contiguous()
        else:
            stored[name] = t
    out.mkdir()
    save_file({n: t.contiguous() for n, t in stored.items()}, out / "model.safetensors", {"format": "pt"})
    config = {**checkpoint.config(source), "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    (out / "config.json").write_text(json.dumps(config))
    assert_same(read(out)[0], expected)
    assert_same_logits(logits(out), model)
