"""Encoders: the forward pass, calibrated quantization and evaluation, against transformers in f32."""

import json
import subprocess

import numpy as np
import pytest
import torch

import encoder_models
from conftest import example


@pytest.fixture(scope="module")
def encode():
    """encode(directory, tokens, tmp) -> all numbers that kvant's forward pass gives: last hidden states, then readouts."""
    binary = example("logits")

    def run(directory, tokens, tmp):
        tokens.astype("<u4").tofile(tmp / "tokens")
        command = [binary, directory, tokens.shape[1], tmp / "tokens", tmp / "numbers"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return np.fromfile(tmp / "numbers", dtype="<f4")

    return run


def tokens_for(model, shape, seed=1):
    """Some tokens, among them padding and masks, which some encoders treat in a way of their own."""
    tokens = np.random.default_rng(seed).integers(4, model.config.vocab_size, shape)
    tokens[0, 5], tokens[-1, 9] = model.config.pad_token_id or 0, getattr(model.config, "mask_token_id", None) or 3
    return tokens


@pytest.mark.parametrize("name", encoder_models.MODELS)
def test_outputs_of_generated_models_match_transformers(name, encode, tmp_path):
    directory = encoder_models.save(name, tmp_path / name)
    model = encoder_models.load(directory)
    tokens = tokens_for(model, (2, 96))
    hidden, readouts = encoder_models.outputs(model, torch.tensor(tokens))
    found = encode(directory, tokens, tmp_path)
    assert found.size == hidden.size + sum(readout.size for readout in readouts)
    for expected in [hidden, *readouts]:
        ours, found = found[: expected.size].reshape(expected.shape), found[expected.size :]
        assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()


def test_older_configurations_of_modernbert_are_read_as_transformers_reads_them(encode, tmp_path):
    directory = encoder_models.save("modernbert", tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    for key in ("layer_types", "rope_parameters"):
        config.pop(key)
    for changes in (dict(global_attn_every_n_layers=2, global_rope_theta=2000.0, local_rope_theta=300.0), {}):
        (directory / "config.json").write_text(json.dumps(config | changes))
        model = encoder_models.load(directory)
        tokens = tokens_for(model, (2, 96))
        hidden, _ = encoder_models.outputs(model, torch.tensor(tokens))
        ours = encode(directory, tokens, tmp_path).reshape(hidden.shape)
        assert np.abs(ours - hidden).max() <= 1e-4 * np.abs(hidden).max()


# Quantized checkpoints that transformers loads.
RECIPES = {
    "static": ["-s", "int8:channel+int8:tensor!static"],
    "static_fp8": ["-s", "e4m3:channel+e4m3:tensor!static"],
    "dynamic": ["-s", "FP8_DYNAMIC"],
    "smoothquant": ["-s", "int8:channel+int8:tensor!static", "-a", "smoothquant,gptq"],
    "gptq": ["-s", "int4:g32", "-a", "gptq"],
    "awq": ["-s", "int4:g32", "-a", "awq"],
    "qronos": ["-s", "int4:g32", "-a", "qronos"],
}
PACKED = ("gptq", "awq", "qronos")
# The class of ModernBERT reads the float weights of its layers, which packed ones do not have.
QUANTIZED = [(name, recipe) for name in ("bert_mlm", "modernbert_mlm") for recipe in RECIPES
             if (name, recipe) not in {("modernbert_mlm", packed) for packed in PACKED}]  # fmt: skip
# Those of T5 read them too.
QUANTIZED += [("t5_encoder", recipe) for recipe in RECIPES if recipe not in PACKED]
QUANTIZED += [("umt5_encoder", recipe) for recipe in ("static_fp8", "dynamic", "smoothquant")]
QUANTIZED += [(name, recipe) for name in ("roberta_classes", "distilbert_mlm", "mpnet", "electra", "esm", "clip_text_projection", "siglip_text", "deberta", "deberta_classes") for recipe in ("static", "gptq")
              if (name, recipe) != ("siglip_text", "gptq")]


def token_file(model, path, count=24, length=48):
    """Texts as tokens, among which are no padding and no masks."""
    tokens = np.random.default_rng(5).integers(4, 30, (count, length)).tolist()
    path.write_text("\n".join(map(json.dumps, tokens)))
    return path, np.array(tokens)


@pytest.mark.parametrize(("name", "recipe"), QUANTIZED)
def test_quantized_checkpoints_compute_in_transformers_what_kvant_evaluates(name, recipe, kvant, encode, tmp_path):
    source, out = encoder_models.save(name, tmp_path / "model"), tmp_path / "out"
    model = encoder_models.load(source)
    file, tokens = token_file(model, tmp_path / "tokens.jsonl")
    options = [*RECIPES[recipe], "-f", "compressed-tensors", "--num-samples", "16", "--seq-len", "48"]
    done = kvant("quantize", source, *options, "--calib", file, "-o", out)
    assert done.returncode == 0, done.stderr
    loaded, report = type(model).from_pretrained(out, dtype="auto", attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    hidden, readouts = encoder_models.outputs(loaded.eval(), torch.tensor(tokens))
    found, float_found = encode(out, tokens, tmp_path), encode(source, tokens, tmp_path)
    theirs = np.concatenate([hidden.ravel(), *(readout.ravel() for readout in readouts)])
    # A value at the edge of two codes of an activation may get either.
    assert np.square(found - theirs).sum() < 1e-3 * np.square(theirs).sum()
    assert np.square(found - float_found).sum() > 0

    done = kvant("eval", out, "--reference", source, "--data", file, "--seq-len", "48", "--json")
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    ours_hidden, expected = (all_outputs[: hidden.size].reshape(hidden.shape).astype(float) for all_outputs in (found, float_found))
    decibels = 10 * np.log10(np.square(expected).sum() / np.square(expected - ours_hidden).sum())
    a, b = ours_hidden.mean(1), expected.mean(1)
    cosines = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    assert (ours["sequences"], ours["tokens"], len(ours["outputs"])) == (len(tokens), tokens.size, len(readouts))
    assert ours["hidden_sqnr_db"] == pytest.approx(decibels, abs=0.01) and len(ours["blocks"]) == model.config.num_hidden_layers
    assert ours["embedding_cosine_mean"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert ours["embedding_cosine_min"] == pytest.approx(cosines.min(), abs=1e-6)
    assert all(output["sqnr_db"] > 5 and 0 <= output["top1_agreement"] <= 1 for output in ours["outputs"])


def test_encoders_are_refused_where_tokens_are_predicted(kvant, tmp_path):
    source = encoder_models.save("bert", tmp_path / "model")
    file, _ = token_file(None, tmp_path / "tokens.jsonl", 4)
    refusals = [
        ("eval", source, "--data", file, "--seq-len", "48"),
        ("generate", source, "--prompt", "x"),
        ("convert", source, "--to", "onnx", "-o", tmp_path / "graph"),
        ("quantize", source, "-s", "int8", "-o", tmp_path / "out", "--calib", file, "--max-kl", "0.1"),
        ("quantize", source, "-s", "int8:channel", "--kv-cache", "fp8", "-o", tmp_path / "out", "--calib", file),
        ("quantize", source, "-s", "Q4_K_M", "-o", tmp_path / "out.gguf"),
    ]
    for arguments in refusals:
        done = kvant(*arguments)
        assert done.returncode in (1, 2) and ("encoder" in done.stderr or "cannot be written as GGUF" in done.stderr), (arguments, done.stderr)


def test_packed_modernbert_is_not_said_to_load(kvant, tmp_path):
    source, out = encoder_models.save("modernbert", tmp_path / "model"), tmp_path / "out"
    options = ("-s", "int4:g32", "-f", "compressed-tensors", "-o", out)
    refused = kvant("quantize", source, *options)
    assert refused.returncode == 1 and "no known loader takes" in refused.stderr, refused.stderr
    assert kvant("quantize", source, *options, "--no-verify").returncode == 0
    loaders = json.loads(kvant("verify", out, "--for", "transformers", "--json").stdout)["loaders"]
    assert [loader["loads"] for loader in loaders if loader["id"] == "transformers"] == ["no"], loaders
