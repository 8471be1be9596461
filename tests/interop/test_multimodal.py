"""Models with other modalities: the language model is quantized, and transformers loads all else, the head too, as it was."""

import json

import pytest
import torch
import transformers

import undescribed_models
from test_llm_onnx import run

TEXT = dict(vocab_size=512, hidden_size=256, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512)  # fmt: skip
VISION = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8)


def llava():
    text, vision = transformers.LlamaConfig(**TEXT), transformers.CLIPVisionConfig(**VISION)
    return transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=511))


def gemma3():
    text = transformers.Gemma3TextConfig(**TEXT, head_dim=64, sliding_window=64)
    config = transformers.Gemma3Config(text_config=text, vision_config=transformers.SiglipVisionConfig(**VISION), mm_tokens_per_image=4)
    return transformers.Gemma3ForConditionalGeneration(config)


@pytest.mark.parametrize("scheme, most", [("FP8_DYNAMIC", 0.1), ("W4A16", 0.3)])
@pytest.mark.parametrize("make", [llava, gemma3], ids=lambda make: make.__name__)
def test_transformers_loads_multimodal_checkpoints(kvant, tmp_path, make, scheme, most):
    torch.manual_seed(0)
    model = make().to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path / "source")
    done = kvant("quantize", tmp_path / "source", "--scheme", scheme, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "AutoModelForImageTextToText" in done.stderr + done.stdout
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "out").eval()
    tokens = torch.arange(5, 69)[None]
    with torch.no_grad():
        expected, found = (each(input_ids=tokens).logits.float() for each in (model, loaded))
    assert (found - expected).norm() < most * expected.norm()
    assert torch.equal(loaded.get_output_embeddings().weight, model.get_output_embeddings().weight)


def test_the_language_model_becomes_a_graph_whatever_loaders_make_of_its_codes(kvant, tmp_path):
    """No loader takes them between whole checkpoint and graph: quark's layout, models for images and integers of groups."""
    torch.manual_seed(0)
    model = llava().eval()
    model.save_pretrained(tmp_path / "source")
    out = tmp_path / "out" / "model.onnx"
    done = kvant("quantize", tmp_path / "source", "--scheme", "int8:g32", "--format", "onnx", "-o", out)
    assert done.returncode == 0 and sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"], done.stderr
    tokens = torch.arange(5, 37)[None]
    found, _ = run(out, tokens.numpy())
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
    assert (torch.from_numpy(found) - expected).norm() < 0.05 * expected.norm()


# Layers of the tower are named as those of the language model, by whose names Quark knows what its cache stores; and no loader takes quantized
# queries beside a tower.
@pytest.mark.parametrize("option, reason", [("--kv-cache", "would count as one whose output the cache stores"), ("--attention", "no known loader")])
def test_attention_of_multimodal_models_is_refused_before_the_work(kvant, tmp_path, option, reason):
    torch.manual_seed(0)
    llava().to(torch.bfloat16).save_pretrained(tmp_path / "source")
    for command in (("plan",), ("quantize", "-o", tmp_path / "out")):
        done = kvant(command[0], tmp_path / "source", "--scheme", "fp8", "--format", "quark", option, "fp8", *command[1:])
        assert done.returncode == 1 and reason in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


# Models around a language model, whose towers have linear layers.
TOWERS = ("blip-2", "internvl", "mistral3", "paligemma", "qwen2_5_vl", "qwen2_audio", "qwen3_vl", "voxtral", "llava", "gemma3")


def of_towers(name, directory):
    """The directory of a model, in bf16."""
    if name in ("llava", "gemma3"):
        torch.manual_seed(0)
        {"llava": llava, "gemma3": gemma3}[name]().to(torch.bfloat16).save_pretrained(directory)
        return directory
    return undescribed_models.save(name, directory)


def layer_outputs(directory):
    """What the linear layers beside the language model give for random inputs, once the model has loaded."""
    config = transformers.AutoConfig.from_pretrained(directory)
    has_codes = hasattr(config, "quantization_config") and config.quantization_config.get("quant_method") == "compressed-tensors"
    dequantized = dict(quantization_config=transformers.CompressedTensorsConfig(dequantize=True)) if has_codes else {}
    model, report = getattr(transformers, config.architectures[0]).from_pretrained(
        directory, dtype=torch.bfloat16, output_loading_info=True, **dequantized)  # fmt: skip
    missing = {name for name in report["missing_keys"] if not name.endswith("lm_head.weight")}
    assert not missing and not report["unexpected_keys"], report
    generator, found = torch.Generator().manual_seed(1), {}
    for name, layer in model.eval().named_modules():
        if isinstance(layer, torch.nn.Linear) and not any(part in name for part in ("language_model", "lm_head", "qformer")):
            inputs = torch.randn(8, layer.in_features, generator=generator).to(torch.bfloat16)
            with torch.no_grad():
                found[name] = layer(inputs).float().flatten()
    return found


# transformers saves these under other names than published models have: of these Kvant names no loader, and a second scheme is listed by names.
ONE_SCHEME = ("qwen2_audio", "voxtral")


@pytest.mark.parametrize("towers", ["FP8_DYNAMIC", "W8A8"])
@pytest.mark.parametrize("name", TOWERS)
def test_quantized_towers_load_with_the_weights_of_fake_quantization(kvant, tmp_path, name, towers):
    source = of_towers(name, tmp_path / "source")
    outputs = []
    scheme = towers if name in ONE_SCHEME else "FP8_DYNAMIC"
    for layout in ("compressed-tensors", "fake"):
        out = tmp_path / layout
        done = kvant("quantize", source, "--scheme", scheme, "--towers", towers, "--format", layout, "-o", out)
        assert done.returncode == 0, done.stderr
        outputs.append(layer_outputs(out))
    ours, fake = outputs
    assert ours.keys() == fake.keys() and len(ours) >= 4
    # Inputs are quantized in one of them only.
    worst = min(torch.nn.functional.cosine_similarity(ours[name], fake[name], dim=0) for name in ours)
    assert worst > 0.999
    plain = layer_outputs(source)
    changed = sum(not torch.equal(plain[name], fake[name]) for name in fake)
    assert changed >= len(fake) // 2, "the towers are quantized"


@pytest.mark.parametrize("options, reason", [(["--towers", "int4:g7"], "not a multiple of the group size 7"),
                                             (["--towers", "fp8"], "are not calibrated in files"),
                                             (["--towers", "W8A8", "--format", "gguf"], "does not apply")])  # fmt: skip
def test_schemes_that_no_tower_has_are_refused(kvant, tmp_path, options, reason):
    source = of_towers("llava", tmp_path / "source")
    done = kvant("quantize", source, "--scheme", "FP8_DYNAMIC" if "gguf" not in options else "Q8_0", *options, "-o", tmp_path / "out.gguf")
    assert done.returncode in (1, 2) and reason in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_towers_with_several_schemes_are_not_said_to_load_in_vllm(kvant, tmp_path):
    """It fuses gate and up."""
    source = of_towers("qwen2_5_vl", tmp_path / "source")
    for excluded, loads in (([], "yes"), (["-x", "*visual.blocks.0.mlp.up_proj"], "no")):
        out = tmp_path / loads
        done = kvant("quantize", source, "--scheme", "FP8_DYNAMIC", "--towers", "FP8_DYNAMIC", *excluded, "-o", out)
        assert done.returncode == 0 and "nothing changes" not in done.stderr, done.stderr
        verdicts = json.loads(kvant("verify", out, "--json").stdout)["loaders"]
        assert next(verdict["loads"] for verdict in verdicts if verdict["id"] == "vllm") == loads
