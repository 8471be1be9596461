"""Models with other modalities: the language model is quantized, and transformers loads all else, the head too, as it was."""

import pytest
import torch
import transformers
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
