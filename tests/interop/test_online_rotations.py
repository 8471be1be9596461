"""Rotations of inputs that loaders compute while the model runs (R4): amd-quark and compressed-tensors compute what Kvant does, and Kvant
computes what amd-quark writes."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from compressed_tensors.transform import TransformConfig, apply_transform_config
from safetensors.torch import load_file, save_file

import forward_models
from test_forward import logits  # noqa: F401

quark_oracle = pytest.importorskip("quark_oracle")

# Down projections of a number of inputs that is a power of two, and of one that is not: groups of 64 channels.
MODELS = {"whole": ("llama_yarn", dict(intermediate_size=256)), "groups": ("llama_yarn", {})}
ROTATIONS = ("rotate:stream=off:heads=off:down=on", "rotate:down=on", "rotate:down=on:size=32")
# Rounded activations of a model with random weights are far apart from the last bit on.
SCHEMES = ("int8:channel", "int4:g32")


def model(kind, tmp):
    name, changes = MODELS[kind]
    return forward_models.save(name, tmp / kind, **changes)


def written(kvant, source, out, *options):
    done = kvant("quantize", source, *options, "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def tokens_of(directory):
    vocabulary = transformers.AutoConfig.from_pretrained(directory).vocab_size
    return np.random.default_rng(1).integers(0, vocabulary, (2, 48))


def of_torch(loaded, tokens):
    with torch.no_grad():
        return loaded(torch.tensor(tokens)).logits.float().numpy()


def assert_close(found, expected, tolerance=1e-3):
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("name", ["gpt2", "llama_bias", "mixtral", "opt", "qwen2_moe", "qwen3_moe_whole"])
def test_rotated_inputs_keep_the_logits(name, logits, tmp_path, monkeypatch):  # noqa: F811
    directory = forward_models.save(name, tmp_path / name)
    tokens = tokens_of(directory)
    expected = logits(directory, tokens, tmp_path)
    for rotation in ROTATIONS[:2]:
        monkeypatch.setenv("KVANT_ROTATE", rotation)
        assert_close(logits(directory, tokens, tmp_path), expected, 1e-4)
        monkeypatch.delenv("KVANT_ROTATE")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("kind", MODELS)
def test_quark_rotates_inputs_as_kvant_does(kind, rotation, scheme, logits, kvant, tmp_path):  # noqa: F811
    out = written(kvant, model(kind, tmp_path), tmp_path / "out", "--scheme", scheme, "--format", "quark", "--algorithm", rotation)
    tokens = tokens_of(out)
    loaded = quark_oracle.load(out)
    rotated = [name for name, module in loaded.named_modules() if type(module).__name__ == "QParamsLinearWithRotation"]
    assert len(rotated) == loaded.config.num_hidden_layers and all(name.endswith("down_proj") for name in rotated)
    assert_close(of_torch(loaded, tokens), logits(out, tokens, tmp_path))


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("kind", MODELS)
def test_transform_config_says_how_inputs_are_rotated(kind, rotation, logits, kvant, tmp_path):  # noqa: F811
    source = model(kind, tmp_path)
    out = written(kvant, source, tmp_path / "out", "--scheme", SCHEMES[0], "--format", "compressed-tensors", "--algorithm", rotation)
    config = json.loads((out / "config.json").read_text())["quantization_config"]["transform_config"]
    transforms = TransformConfig.model_validate(config)
    # What is done to weights has been done.
    for scheme in transforms.config_groups.values():
        scheme.apply = [args for args in scheme.apply if args.is_online()]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokens = tokens_of(out)
    expected = logits(out, tokens, tmp_path)
    # transformers alone leaves the rotation out, as the rules of the loader say.
    assert np.abs(of_torch(loaded, tokens) - expected).max() > 0.1 * np.abs(expected).max()
    apply_transform_config(loaded, transforms)
    assert_close(of_torch(loaded, tokens), expected)
    # The stored matrices are those that the library makes.
    stored = {name: tensor for name, tensor in load_file(out / "model.safetensors").items() if "R4_input" in name}
    made = dict(loaded.named_parameters(remove_duplicate=False))
    assert stored and all(torch.equal(tensor.float(), made[name].float()) for name, tensor in stored.items())


def test_kvant_reads_what_quark_rotates(logits, tmp_path):  # noqa: F811
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization.config.config import QConfig, QLayerConfig, RotationConfig

    source = model("groups", tmp_path)
    targets = {"first_layer": [{"target_modules": [f"model.layers.layer_id.self_attn.{name}_proj" for name in "qkv"]},
                               {"target_modules": ["model.layers.layer_id.mlp.gate_proj", "model.layers.layer_id.mlp.up_proj"]}]}  # fmt: skip
    targets |= {"middle_layers": targets["first_layer"], "last_layer": [{"target_modules": []}]}
    spec = quark_oracle.weight_spec("int8", "channel", None, True)
    for size in (None, 32):
        rotation = RotationConfig(scaling_layers=targets, r1=True, r2=True, r4=True, online_r1_rotation=True, rotation_size=size)
        config = QConfig(global_quant_config=QLayerConfig(weight=spec), exclude=["lm_head"], algo_config=[rotation])
        quantized = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
        quantized = ModelQuantizer.freeze(ModelQuantizer(config).quantize_model(quantized, None))
        out = tmp_path / f"quark-{size}"
        export_safetensors(quantized, str(out))
        tokens = tokens_of(out)
        assert_close(logits(out, tokens, tmp_path), of_torch(quark_oracle.load(out), tokens))


def test_trained_rotations_are_read(logits, kvant, tmp_path):  # noqa: F811
    out = written(kvant, model("groups", tmp_path), tmp_path / "out", "--scheme", SCHEMES[0], "--format", "quark", "--algorithm", ROTATIONS[2])
    trained = shutil.copytree(out, tmp_path / "trained")
    tensors = load_file(out / "model.safetensors")
    for name in [name for name in tensors if name.endswith("input_rotation")]:
        tensors[name] = tensors[name].double() / 32**0.5
    save_file(tensors, trained / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["algo_config"][0]["trainable"] = True
    (trained / "config.json").write_text(json.dumps(config))
    tokens = tokens_of(out)
    expected = logits(out, tokens, tmp_path)
    assert_close(logits(trained, tokens, tmp_path), expected, 1e-5)
    assert_close(of_torch(quark_oracle.load(trained), tokens), expected)
    refused = kvant("convert", trained, "--to", "compressed-tensors", "-o", tmp_path / "other")
    assert refused.returncode == 1 and "another matrix than Sylvester's" in refused.stderr, refused.stderr


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe_whole"])
def test_experts_with_rotated_inputs_load_in_quark(name, logits, kvant, tmp_path):  # noqa: F811
    source = forward_models.save(name, tmp_path / name)
    out = written(kvant, source, tmp_path / "out", "--scheme", SCHEMES[0], "--format", "quark", "--algorithm", "rotate:down=on")
    config = transformers.AutoConfig.from_pretrained(out)
    del config.quantization_config
    loaded = forward_models.model_class(config)._from_config(config, dtype=torch.float32)
    loaded = quark_oracle.import_model_from_safetensors(loaded, str(out)).eval()
    tokens = tokens_of(out)
    found, expected = of_torch(loaded, tokens), logits(out, tokens, tmp_path)
    # Rounding may send a few tokens to other experts.
    assert np.median(np.abs(found - expected)) <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("format", ["quark", "compressed-tensors"])
def test_loaders_that_do_not_rotate_are_refused(format, kvant, tmp_path):
    source = model("groups", tmp_path)
    options = ("--format", format, "--algorithm", "rotate:down=on", "--no-verify")
    out = written(kvant, source, tmp_path / "out", "--scheme", "int4:g32" if format == "compressed-tensors" else "ptpc_fp8", *options)
    said = json.loads(kvant("verify", out, "--json", "--tensor-parallel", "2").stdout)
    loads = {row["id"]: row["loads"] for row in said["loaders"]}
    parallel = {row["id"]: row["tensor_parallel"] for row in said["loaders"]}
    assert loads["transformers"] == loads["sglang"] == "no"
    takes = {"quark": ("amd-quark", "vllm"), "compressed-tensors": ("vllm", "amd-quark")}[format]
    assert (loads[takes[0]], loads[takes[1]]) == ("yes", "no"), said
    assert 2 not in parallel["vllm"]


def test_transformers_does_not_complete_layers_of_quark(kvant, tmp_path):
    out = written(kvant, model("groups", tmp_path), tmp_path / "out", "--scheme", SCHEMES[0], "--format", "quark", "--algorithm", ROTATIONS[2], "--no-verify")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    with pytest.raises(AttributeError, match="transform"):
        of_torch(loaded, tokens_of(out))
