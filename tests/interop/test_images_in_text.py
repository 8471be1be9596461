"""Models of text and images: conversations with images as tokens, the logits of both, calibration and evaluation, against transformers."""

import json
import math
import subprocess

import numpy as np
import pytest
import torch
import transformers

import undescribed_models
import vision_models
from conftest import example


def run_logits(directory, file, tmp):
    """The tokens and logits that kvant's forward pass gives for conversations, row by row."""
    command = [example("logits"), directory, 1, file, tmp / "logits"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    words, logits = np.fromfile(tmp / "logits.tokens", dtype="<u4"), np.fromfile(tmp / "logits", dtype="<f4")
    rows = []
    vocabulary = logits.size // (words.size - count_rows(words))
    while words.size:
        count, words = int(words[0]), words[1:]
        rows.append((words[:count], logits[: count * vocabulary].reshape(count, vocabulary)))
        words, logits = words[count:], logits[count * vocabulary :]
    return rows


def count_rows(words):
    count = at = 0
    while at < words.size:
        at, count = at + 1 + int(words[at]), count + 1
    return count


def prepared(processor, messages, pictures):
    """What the processor of transformers makes of a conversation, as its own `apply_chat_template` would."""
    text = processor.apply_chat_template(messages, tokenize=False)
    begin = processor.tokenizer.bos_token
    return processor(text=[text], images=[pictures], return_tensors="pt", add_special_tokens=begin is None or not text.startswith(begin))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """compared(name) -> model, processor, rows of (tokens, logits) of kvant, inputs of transformers."""

    def run(name):
        tmp = tmp_path_factory.mktemp(name)
        directory = vision_models.save(name, tmp / "model")
        file, chats = vision_models.conversations(tmp / "data")
        processor = transformers.AutoProcessor.from_pretrained(directory)
        inputs = [prepared(processor, messages, pictures) for messages, pictures in chats]
        return vision_models.load(directory), run_logits(directory, file, tmp), inputs

    return run


@pytest.mark.parametrize("name", vision_models.MODELS)
def test_conversations_with_images_match_transformers(name, compared):
    model, rows, inputs = compared(name)
    assert len(rows) == len(inputs)
    for (tokens, logits), expected in zip(rows, inputs, strict=True):
        ids = expected["input_ids"][0].numpy()
        is_image = tokens >= vision_models.VOCABULARY
        assert is_image.any() and (ids[is_image] == model.config.image_token_id).all()
        assert (tokens[~is_image] == ids[~is_image]).all()
        with torch.no_grad():
            wanted = model(**expected).logits[0].numpy()
        assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["llava", "llava_full", "gemma3"])
def test_pictures_of_any_size_have_the_tokens_of_processors(name, tmp_path):
    directory = vision_models.save(name, tmp_path / "model")
    file, chats = vision_models.conversations(tmp_path / "data", size=(37, 53))
    processor = transformers.AutoProcessor.from_pretrained(directory)
    for (tokens, _), (messages, pictures) in zip(run_logits(directory, file, tmp_path), chats, strict=True):
        expected = prepared(processor, messages, pictures)["input_ids"][0].numpy()
        is_image = tokens >= vision_models.VOCABULARY
        assert tokens.shape == expected.shape and (tokens[~is_image] == expected[~is_image]).all()
        image = {"llava": vision_models.IMAGE, "gemma3": vision_models.SOFT}[name.split("_")[0]]
        assert ((expected == image) == is_image).all()


# Recipes, and whether transformers decompresses their codes to the weights that kvant computes with.
RECIPES = {
    "nearest": ["-s", "int4:g32"],
    "gptq": ["-s", "int4:g32", "-a", "gptq"],
    "awq": ["-s", "int4:g32", "-a", "awq"],
    "autoround": ["-s", "int4:g32", "-a", "autoround:iterations=8"],
    "static": ["-s", "int8:channel+int8:tensor!static"],
    "smoothquant": ["-s", "int8:channel+int8:tensor!static", "-a", "smoothquant,gptq"],
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_quantized_checkpoints_compute_in_transformers_what_kvant_evaluates(name, recipe, kvant, tmp_path):
    source, out = vision_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, chats = vision_models.conversations(tmp_path / "data", rows=8)
    done = kvant("quantize", source, *RECIPES[recipe], "-f", "compressed-tensors", "--calib", file, "--num-samples", "6", "-o", out)
    assert done.returncode == 0, done.stderr
    rows, floats = run_logits(out, file, tmp_path), run_logits(source, file, tmp_path)
    processor, model = transformers.AutoProcessor.from_pretrained(source), vision_models.load(out)
    total = count = divergence = 0.0
    for (tokens, logits), (_, float_logits), (messages, pictures) in zip(rows, floats, chats, strict=True):
        with torch.no_grad():
            wanted = model(**prepared(processor, messages, pictures)).logits[0].float().numpy()
        # A value at the edge of two codes of an activation may get either.
        assert np.square(logits - wanted).sum() < 1e-3 * np.square(wanted).sum()
        targets = torch.tensor(tokens[1:].astype(np.int64))
        is_text = targets < vision_models.VOCABULARY
        ours, theirs = (torch.tensor(found[:-1]).double().log_softmax(-1)[is_text] for found in (logits, float_logits))
        total -= ours.gather(-1, targets[is_text][:, None]).sum().item()
        divergence += (theirs.exp() * (theirs - ours)).sum().item()
        count += int(is_text.sum())
    done = kvant("eval", out, "--reference", source, "--data", file, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["tokens"], report["windows"]) == (count, len(chats))
    assert report["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    assert report["kl_mean"] == pytest.approx(divergence / count, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_calibration_on_images_loses_less_there_than_rounding_to_nearest(name, kvant, tmp_path):
    source, out = vision_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, _ = vision_models.conversations(tmp_path / "data", rows=12)

    def divergence(*options):
        done = kvant("quantize", source, "-s", "int4:g32", "-f", "fake", "--calib", file, "--num-samples", "8", "--overwrite", "-o", out, *options)
        assert done.returncode == 0, done.stderr
        done = kvant("eval", out, "--reference", source, "--data", file, "--json")
        return json.loads(done.stdout)["kl_mean"]

    nearest, gptq, tuned = divergence(), divergence("-a", "gptq"), divergence("-a", "autoround:iterations=40")
    assert gptq < 0.8 * nearest and tuned < 0.8 * nearest, (nearest, gptq, tuned)


@pytest.mark.parametrize("layout, scheme", [("fake", "int8:channel"), ("compressed-tensors", "W8A8")])
def test_towers_are_run_as_they_are_quantized(layout, scheme, kvant, tmp_path):
    source, out = vision_models.save("llava", tmp_path / "model"), tmp_path / "out"
    file, chats = vision_models.conversations(tmp_path / "data")
    done = kvant("quantize", source, "-s", scheme, "--towers", scheme, "-f", layout, "-o", out)
    assert done.returncode == 0, done.stderr
    processor, (_, logits) = transformers.AutoProcessor.from_pretrained(source), run_logits(out, file, tmp_path)[0]
    with torch.no_grad():
        inputs = prepared(processor, *chats[0])
        floats, wanted = (vision_models.load(each)(**inputs).logits[0].float().numpy() for each in (source, out))
    error, of_codes = np.square(logits - wanted).sum(), np.square(floats - wanted).sum()
    # Many values are at the edge of two codes, and may get either.
    assert of_codes > 0 and error < of_codes * (1e-6 if layout == "fake" else 0.5)


def test_models_whose_tower_does_not_run_refuse_images_by_name(kvant, tmp_path):
    undescribed_models.save("qwen2_5_vl", tmp_path / "model")
    file, _ = vision_models.conversations(tmp_path / "data")
    gptq = ["-s", "int4:g32", "-a", "gptq", "--calib", file]
    for command in (["plan", *gptq], ["quantize", *gptq, "-o", tmp_path / "out"], ["eval", "--data", file]):
        done = kvant(command[0], tmp_path / "model", *command[1:])
        assert done.returncode == 1 and "row 1" in done.stderr and "tower for images of qwen2_5_vl" in done.stderr, done.stderr
        assert "text alone" in done.stderr
    assert not (tmp_path / "out").exists()
