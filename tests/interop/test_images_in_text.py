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
        file, chats = vision_models.conversations(tmp / "data", sizes=vision_models.sizes_of(name))
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


QWEN = [name for name in vision_models.MODELS if name.startswith("qwen")]


@pytest.mark.parametrize("name", QWEN)
def test_images_of_any_size_match_transformers(name, tmp_path):
    directory = vision_models.save(name, tmp_path / "model")
    file, chats = vision_models.conversations(tmp_path / "data", rows=4, sizes=[(37, 53), (100, 75), (20, 31), (90, 140), (32, 80)])
    processor, model = transformers.AutoProcessor.from_pretrained(directory), vision_models.load(directory)
    for (tokens, logits), (messages, pictures) in zip(run_logits(directory, file, tmp_path), chats, strict=True):
        expected = prepared(processor, messages, pictures)
        ids, is_image = expected["input_ids"][0].numpy(), tokens >= vision_models.VOCABULARY
        assert tokens.shape == ids.shape and (tokens[~is_image] == ids[~is_image]).all()
        assert (is_image == (ids == vision_models.IMAGE)).all()
        with torch.no_grad():
            wanted = model(**expected).logits[0].numpy()
        assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("mean", [None, [0.5, 0.4, 0.6]])
def test_pixels_of_images_of_any_size_are_those_of_processors(mean, tmp_path):
    images = vision_models.qwen_processor("Qwen2VL", vision_models.tokenizer(vision_models.OF_QWEN), mean).image_processor
    images.save_pretrained(tmp_path)
    for height, width in [(37, 53), (300, 211), (17, 60), (64, 96), (1, 150)]:
        picture = vision_models.picture(tmp_path / "a.png", height, width, height)
        done = subprocess.run([example("pixels"), tmp_path, tmp_path / "a.png", tmp_path / "out"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = images(picture, return_tensors="np")
        patches, (_, rows, columns) = found["pixel_values"], found["image_grid_thw"][0]
        # [rows / 2, columns / 2, 2, 2, channels, frames, patch, patch], of equal frames.
        patches = patches.reshape(rows // 2, columns // 2, 2, 2, 3, 2, 8, 8)
        assert (patches[..., 0, :, :] == patches[..., 1, :, :]).all()
        wanted = patches[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * 8, columns * 8)
        assert np.abs(np.fromfile(tmp_path / "out", dtype="<f4") - wanted.ravel()).max() <= 1e-5


# Recipes, and whether transformers decompresses their codes to the weights that kvant computes with.
RECIPES = {
    "nearest": ["-s", "int4:g32"],
    "gptq": ["-s", "int4:g32", "-a", "gptq"],
    "awq": ["-s", "int4:g32", "-a", "awq"],
    "autoround": ["-s", "int4:g32", "-a", "autoround:iterations=8"],
    "static": ["-s", "int8:channel+int8:tensor!static"],
    "smoothquant": ["-s", "int8:channel+int8:tensor!static", "-a", "smoothquant,gptq"],
}


ALSO = [(name, "gptq") for name in ("qwen2_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")]


@pytest.mark.parametrize("name, recipe", [(name, recipe) for name in ("llava", "gemma3", "qwen2_5_vl", "qwen3_vl") for recipe in RECIPES] + ALSO)
def test_quantized_checkpoints_compute_in_transformers_what_kvant_evaluates(name, recipe, kvant, tmp_path):
    source, out = vision_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, chats = vision_models.conversations(tmp_path / "data", rows=8, sizes=vision_models.sizes_of(name))
    # transformers with compressed-tensors does not find experts that were split.
    layout = "fake" if name.endswith("moe") else "compressed-tensors"
    done = kvant("quantize", source, *RECIPES[recipe], "-f", layout, "--calib", file, "--num-samples", "6", "-o", out)
    assert done.returncode == 0, done.stderr
    rows, floats = run_logits(out, file, tmp_path), run_logits(source, file, tmp_path)
    processor, model = transformers.AutoProcessor.from_pretrained(source), vision_models.load(out)
    total = count = divergence = error = size = 0.0
    for (tokens, logits), (_, float_logits), (messages, pictures) in zip(rows, floats, chats, strict=True):
        with torch.no_grad():
            wanted = model(**prepared(processor, messages, pictures)).logits[0].float().numpy()
        error, size = error + np.square(logits - wanted).sum(), size + np.square(wanted).sum()
        targets = torch.tensor(tokens[1:].astype(np.int64))
        is_text = targets < vision_models.VOCABULARY
        ours, theirs = (torch.tensor(found[:-1]).double().log_softmax(-1)[is_text] for found in (logits, float_logits))
        total -= ours.gather(-1, targets[is_text][:, None]).sum().item()
        divergence += (theirs.exp() * (theirs - ours)).sum().item()
        count += int(is_text.sum())
    # A value at the edge of two codes of an activation may get either.
    assert error < 1e-3 * size
    done = kvant("eval", out, "--reference", source, "--data", file, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["tokens"], report["windows"]) == (count, len(chats))
    assert report["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    assert report["kl_mean"] == pytest.approx(divergence / count, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["llava", "gemma3", "qwen2_5_vl", "qwen3_vl"])
def test_calibration_on_images_loses_less_there_than_rounding_to_nearest(name, kvant, tmp_path):
    source, out = vision_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, _ = vision_models.conversations(tmp_path / "data", rows=12, sizes=vision_models.sizes_of(name))

    def divergence(*options):
        done = kvant("quantize", source, "-s", "int4:g32", "-f", "fake", "--calib", file, "--num-samples", "8", "--overwrite", "-o", out, *options)
        assert done.returncode == 0, done.stderr
        done = kvant("eval", out, "--reference", source, "--data", file, "--json")
        return json.loads(done.stdout)["kl_mean"]

    nearest, gptq, tuned = divergence(), divergence("-a", "gptq"), divergence("-a", "autoround:iterations=40")
    assert gptq < 0.8 * nearest and tuned < 0.8 * nearest, (nearest, gptq, tuned)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
def test_conversations_of_text_alone_stand_beside_those_with_images(name, kvant, tmp_path):
    source, out = vision_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, chats = vision_models.conversations(tmp_path / "data", rows=4, sizes=vision_models.sizes_of(name))
    messages = [dict(role="user", content=vision_models.TALES[0]), dict(role="assistant", content=vision_models.TALES[1])]
    file.write_text(json.dumps({"messages": messages}) + "\n" + file.read_text())
    processor, model = transformers.AutoProcessor.from_pretrained(source), vision_models.load(source)
    (tokens, logits), *others = run_logits(source, file, tmp_path)
    inputs = processor(text=[processor.apply_chat_template(messages, tokenize=False)], return_tensors="pt")
    assert (tokens == inputs["input_ids"][0].numpy()).all() and len(others) == len(chats)
    with torch.no_grad():
        wanted = model(**inputs).logits[0].numpy()
    assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()
    gptq = ["-s", "int4:g32", "-a", "gptq", "-f", "compressed-tensors", "--calib", file, "--num-samples", "5", "--seq-len", "64"]
    done = kvant("quantize", source, *gptq, "-o", out)
    assert done.returncode == 0, done.stderr
    done = kvant("eval", out, "--reference", source, "--data", file, "--json")
    assert done.returncode == 0, done.stderr
    counts = [int((found[1:] < vision_models.VOCABULARY).sum()) for found in [tokens, *(found for found, _ in others)]]
    assert json.loads(done.stdout)["tokens"] == sum(counts)


# compressed-tensors has one scale for all rows where these are not in batches, as in towers of Qwen: not that of each token.
@pytest.mark.parametrize("name, layout, scheme", [
    ("llava", "fake", "int8:channel"), ("llava", "compressed-tensors", "W8A8"), ("qwen2_5_vl", "fake", "int8:channel"), ("qwen3_vl", "fake", "int8:channel"),
])  # fmt: skip
def test_towers_are_run_as_they_are_quantized(name, layout, scheme, kvant, tmp_path):
    source, out = vision_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, chats = vision_models.conversations(tmp_path / "data", sizes=vision_models.sizes_of(name))
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
    undescribed_models.save("internvl", tmp_path / "model")
    file, _ = vision_models.conversations(tmp_path / "data")
    gptq = ["-s", "int4:g32", "-a", "gptq", "--calib", file]
    for command in (["plan", *gptq], ["quantize", *gptq, "-o", tmp_path / "out"], ["eval", "--data", file]):
        done = kvant(command[0], tmp_path / "model", *command[1:])
        assert done.returncode == 1 and "row 1" in done.stderr and "tower for images of internvl" in done.stderr, done.stderr
        assert "text alone" in done.stderr
    assert not (tmp_path / "out").exists()
