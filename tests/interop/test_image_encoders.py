"""Encoders of images: preprocessing, the forward pass, calibrated quantization and evaluation, against transformers in f32."""

import json
import subprocess

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

import encoder_models
from conftest import example
from test_encoders import PACKED, RECIPES


@pytest.fixture(scope="module")
def encode():
    """encode(directory, images, tmp) -> all numbers that kvant's forward pass gives: last hidden states, then readouts."""
    binary = example("logits")

    def run(directory, images, tmp):
        command = [binary, directory, 1, images, tmp / "numbers"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return np.fromfile(tmp / "numbers", dtype="<f4")

    return run


def saved_pixels(model, path, count, seed=1):
    """A file with some images, and the images."""
    pixels = encoder_models.pixels_for(model, count, seed)
    np.save(path, pixels)
    return path, pixels


@pytest.mark.parametrize("name", encoder_models.IMAGE_MODELS)
def test_outputs_of_generated_models_match_transformers(name, encode, tmp_path):
    directory = encoder_models.save(name, tmp_path / name)
    model = encoder_models.load(directory)
    file, pixels = saved_pixels(model, tmp_path / "pixels.npy", 3)
    hidden, readouts = encoder_models.outputs(model, torch.tensor(pixels))
    found = encode(directory, file, tmp_path)
    assert found.size == hidden.size + sum(readout.size for readout in readouts)
    for expected in [hidden, *readouts]:
        ours, found = found[: expected.size].reshape(expected.shape), found[expected.size :]
        assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()


QUANTIZED = [("vit_classes", recipe) for recipe in RECIPES]
QUANTIZED += [
    (name, recipe)
    for name in ("vit", "deit_classes", "clip_vision", "dinov2_with_registers", "dinov2_classes", "dinov2_gated", "dinov3_vit", "dinov3_vit_gated", "siglip_vision")
    for recipe in ("static", "smoothquant", "gptq", "awq")
    # Their classes read the float weights of their layers, which packed ones do not have.
    if recipe not in PACKED or not name.startswith(("dinov", "siglip"))
]


@pytest.mark.parametrize(("name", "recipe"), QUANTIZED)
def test_quantized_checkpoints_compute_in_transformers_what_kvant_evaluates(name, recipe, kvant, encode, tmp_path):
    source, out = encoder_models.save(name, tmp_path / "model"), tmp_path / "out"
    model = encoder_models.load(source)
    file, pixels = saved_pixels(model, tmp_path / "pixels.npy", 24, 5)
    options = [*RECIPES[recipe], "-f", "compressed-tensors", "--num-samples", "16"]
    done = kvant("quantize", source, *options, "--calib", file, "-o", out)
    assert done.returncode == 0, done.stderr
    loaded, report = type(model).from_pretrained(out, dtype="auto", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"] and not report["unexpected_keys"], report
    hidden, readouts = encoder_models.outputs(loaded.eval(), torch.tensor(pixels))
    found, float_found = encode(out, file, tmp_path), encode(source, file, tmp_path)
    theirs = np.concatenate([hidden.ravel(), *(readout.ravel() for readout in readouts)])
    # A value at the edge of two codes of an activation may get either.
    assert np.square(found - theirs).sum() < 1e-3 * np.square(theirs).sum()
    assert np.square(found - float_found).sum() > 0

    done = kvant("eval", out, "--reference", source, "--data", file, "--json")
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    ours_hidden, expected = (numbers[: hidden.size].reshape(hidden.shape).astype(float) for numbers in (found, float_found))
    decibels = 10 * np.log10(np.square(expected).sum() / np.square(expected - ours_hidden).sum())
    a, b = ours_hidden.mean(1), expected.mean(1)
    cosines = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    assert (ours["sequences"], ours["tokens"], len(ours["outputs"])) == (len(pixels), hidden[..., 0].size, len(readouts))
    assert ours["hidden_sqnr_db"] == pytest.approx(decibels, abs=0.01) and len(ours["blocks"]) == model.config.num_hidden_layers
    assert ours["embedding_cosine_mean"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert ours["embedding_cosine_min"] == pytest.approx(cosines.min(), abs=1e-6)
    assert all(output["sqnr_db"] > 5 and 0 <= output["top1_agreement"] <= 1 for output in ours["outputs"])


@pytest.mark.parametrize("name", ["vit_classes", "dinov2_classes", "dinov3_vit", "clip_vision", "siglip_vision"])
def test_algorithms_lose_less_than_rounding_to_nearest(name, kvant, tmp_path):
    source, out = encoder_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, _ = saved_pixels(encoder_models.load(source), tmp_path / "pixels.npy", 24, 5)

    def decibels(*options):
        done = kvant("quantize", source, "-s", "int4:g32", "-f", "fake", "--num-samples", "16", "--calib", file, "--overwrite", "-o", out, *options)
        assert done.returncode == 0, done.stderr
        done = kvant("eval", out, "--reference", source, "--data", file, "--json")
        return json.loads(done.stdout)["hidden_sqnr_db"]

    nearest, gptq, tuned = decibels(), decibels("-a", "gptq"), decibels("-a", "autoround:iterations=40")
    assert gptq > nearest + 1 and tuned > nearest + 3, (nearest, gptq, tuned)


def picture(path, height, width, seed=0):
    """A picture with edges, gradients and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(x / 7 + channel) * np.cos(y / 5 - channel) for channel in range(3)]
    values = np.stack(waves, -1) + rng.normal(0, 20, (height, width, 3))
    values[height // 3 : height // 2, width // 4 :] = [255, 0, 128]
    image = PIL.Image.fromarray(values.clip(0, 255).astype(np.uint8))
    image.save(path)
    return image


# Processors and the model whose images they make.
PROCESSORS = {
    "vit": ("ViTImageProcessor", dict(size=dict(height=32, width=32))),
    "vit_bicubic": ("ViTImageProcessor", dict(size=dict(height=32, width=32), resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4])),
    "vit_nearest": ("ViTImageProcessor", dict(size=dict(height=32, width=32), resample=0, do_normalize=False)),
    "shortest_edge": ("CLIPImageProcessor", dict(size=dict(shortest_edge=37), crop_size=dict(height=32, width=32))),
    "padded_crop": ("CLIPImageProcessor", dict(size=dict(shortest_edge=27), crop_size=dict(height=32, width=32))),
    "bit": ("BitImageProcessor", dict(size=dict(shortest_edge=36), crop_size=dict(height=32, width=32), resample=2)),
    "siglip": ("SiglipImageProcessor", dict(size=dict(height=32, width=32))),
    "deit": ("DeiTImageProcessor", dict(size=dict(height=40, width=40), crop_size=dict(height=32, width=32), do_rescale=False)),
    "dinov3": ("DINOv3ViTImageProcessor", dict(size=dict(height=32, width=32))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", [(67, 90), (53, 41), (20, 24)])
def test_pictures_are_prepared_as_by_image_processors(name, size, tmp_path):
    kind, arguments = PROCESSORS[name]
    image = picture(tmp_path / "image.png", *size)
    classes = [kind]
    # Pillow 13 resizes tall pictures along columns first, and its backend crops beyond a picture at other places than torchvision's, which is
    # what transformers takes.
    if hasattr(transformers, kind + "Pil") and size[0] < size[1] and name != "padded_crop":
        classes.append(kind + "Pil")
    for used in classes:
        processor = getattr(transformers, used)(**arguments)
        processor.save_pretrained(tmp_path)
        expected = np.array(processor(images=image, return_tensors="np")["pixel_values"]).astype("<f4")
        command = [example("pixels"), tmp_path, tmp_path / "image.png", tmp_path / "dump"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        pixels = np.fromfile(tmp_path / "dump", dtype="<f4").reshape(expected.shape)
        std = np.array(arguments.get("image_std") or processor.image_std).reshape(3, 1, 1) if processor.do_normalize else 1.0
        levels = np.abs(pixels - expected) * std / (processor.rescale_factor if processor.do_rescale else 1.0)
        # torchvision rounds weights of bytes to 16 bits, Pillow to 22.
        is_exact = used.endswith("Pil") or name == "dinov3"
        assert levels.max() <= (1e-3 if is_exact else 1.01), levels.max()


def test_folders_of_pictures_calibrate_and_evaluate(kvant, tmp_path):
    source, out, folder = encoder_models.save("vit_classes", tmp_path / "model"), tmp_path / "out", tmp_path / "pictures"
    folder.mkdir()
    for at in range(6):
        picture(folder / f"{at}.{'png' if at % 2 else 'jpg'}", 40 + at, 50, at)
    data = ("--calib", folder, "--num-samples", "4")
    refused = kvant("quantize", source, "-s", "int8:channel+int8:tensor!static", *data, "-o", out)
    assert refused.returncode == 1 and "preprocessor_config.json is missing" in refused.stderr, refused.stderr
    transformers.ViTImageProcessor(size=dict(height=32, width=32)).save_pretrained(source)
    done = kvant("quantize", source, "-s", "int8:channel+int8:tensor!static", *data, "-o", out)
    assert done.returncode == 0, done.stderr
    done = kvant("eval", out, "--reference", source, "--data", folder, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["sequences"], report["tokens"]) == (6, 6 * 17) and report["embedding_cosine_mean"] > 0.99, report
    fewer = kvant("eval", out, "--reference", source, "--data", folder / "1.png", "--num-samples", "1", "--json")
    assert json.loads(fewer.stdout)["sequences"] == 1, fewer.stderr


def test_data_that_are_no_images_of_the_model_are_refused_by_name(kvant, tmp_path):
    source, out, pictures = encoder_models.save("vit", tmp_path / "model"), tmp_path / "out", tmp_path / "pictures"
    pictures.mkdir()
    picture(pictures / "whole.png", 40, 40)
    (pictures / "broken.png").write_bytes((pictures / "whole.png").read_bytes()[:200])
    (tmp_path / "text.jsonl").write_text("[1, 2, 3]\n")
    np.save(tmp_path / "small.npy", np.zeros((2, 3, 16, 16), "<f4"))
    np.save(tmp_path / "nan.npy", np.full((2, 3, 32, 32), np.nan, "<f4"))
    np.save(tmp_path / "good.npy", np.zeros((2, 3, 32, 32), "<f4"))
    static = ("-s", "int8:channel+int8:tensor!static", "-o", out)
    gptq = ("-s", "int4:g32", "-a", "gptq", "-f", "compressed-tensors", "-o", out)

    def refused(words, *arguments):
        done = kvant("quantize", source, *arguments)
        assert done.returncode in (1, 2) and words in done.stderr, (arguments, done.stderr)
        assert not out.exists()

    refused("preprocessor_config.json is missing", *static, "--calib", pictures)
    transformers.ViTImageProcessor(size=dict(height=48, width=48)).save_pretrained(source)
    refused("makes images of [3, 48, 48]", *static, "--calib", pictures)
    transformers.ViTImageProcessor(size=dict(height=32, width=32)).save_pretrained(source)
    refused("broken.png", *static, "--calib", pictures)
    refused("text.jsonl", *static, "--calib", tmp_path / "text.jsonl")
    refused("[2, 3, 16, 16]", *gptq, "--calib", tmp_path / "small.npy")
    refused("nan.npy", *gptq, "--calib", tmp_path / "nan.npy")
    refused("--seq-len", *gptq, "--calib", tmp_path / "good.npy", "--seq-len", "8")
    refused("one file or directory", *gptq, "--calib", tmp_path / "good.npy", "--calib", tmp_path / "small.npy")
    for command in ("generate", "convert"):
        more = ("--prompt", "x") if command == "generate" else ("--to", "onnx", "-o", tmp_path / "graph.onnx")
        done = kvant(command, source, *more)
        assert done.returncode in (1, 2) and "encoder" in done.stderr, done.stderr
    done = kvant("eval", source, "--data", tmp_path / "good.npy")
    assert done.returncode == 2 and "--reference" in done.stderr, done.stderr


BLOCKS = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
TOWERS = dict(text_config=dict(BLOCKS, vocab_size=512, max_position_embeddings=77), vision_config=encoder_models.IMAGES)

# Models that are not computed, and what a refusal names.
REFUSED = {
    "clip": ("CLIPConfig", "CLIPModel", dict(TOWERS, projection_dim=32), "CLIPModel has a tower for text and one for images"),
    "siglip": ("SiglipConfig", "SiglipModel", TOWERS, "SiglipModel has a tower for text and one for images"),
    "teacher": ("DeiTConfig", "DeiTForImageClassificationWithTeacher", dict(encoder_models.IMAGES, num_labels=3), "cls_classifier"),
    "masked_images": ("ViTConfig", "ViTForMaskedImageModeling", dict(encoder_models.IMAGES, encoder_stride=8), "decoder.0"),
    "oblong": ("Dinov2Config", "Dinov2Model", dict(encoder_models.DINO, image_size=[24, 40]), "images of 24x40"),
    "own_projections": ("DebertaV2Config", "DebertaV2Model", dict(encoder_models.DEBERTA, share_att_key=False), "pos_key_proj"),
    "plain_deberta": ("DebertaV2Config", "DebertaV2Model", dict(encoder_models.DEBERTA, relative_attention=False), "relative_attention"),
    "convolution": ("DebertaV2Config", "DebertaV2Model", dict(encoder_models.DEBERTA, conv_kernel_size=3), "encoder.conv."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_not_computed_are_refused_by_name(name, kvant, tmp_path):
    kind, architecture, arguments, words = REFUSED[name]
    config = getattr(transformers, kind)(**arguments)
    if architecture in ("CLIPModel", "SiglipModel"):
        model = getattr(transformers, architecture)(config)
    else:
        model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager")
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "pixels.npy", np.zeros((2, 3, 32, 32), "<f4"))
    (tmp_path / "tokens.jsonl").write_text("[1, 2, 3, 4]\n")
    data = tmp_path / ("tokens.jsonl" if "Deberta" in architecture else "pixels.npy")
    out = tmp_path / "out"
    done = kvant("quantize", tmp_path / "model", "-s", "int4:g32", "-a", "gptq", "--calib", data, "-f", "fake", "-o", out)
    assert done.returncode == 1 and words in done.stderr and not out.exists(), done.stderr
    if "tower" not in words:
        return
    assert "CLIPVisionModelWithProjection" in done.stderr, done.stderr
    done = kvant("quantize", tmp_path / "model", "-s", "int8:channel", "-f", "fake", "-o", out, "--json")
    # The layers of the tower for text.
    assert done.returncode == 0 and json.loads(done.stdout)["quantized_layers"] >= 6 * 2, done.stderr
