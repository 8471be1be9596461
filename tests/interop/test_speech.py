"""Models of sounds: features, the forward pass, calibrated quantization and evaluation, against transformers in f32."""

import json
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import speech_models
from conftest import example
from test_encoders import PACKED, RECIPES


@pytest.fixture(scope="module")
def numbers():
    """numbers(directory, data, tmp, length=0) -> all that kvant's forward pass gives: see speech_models.outputs."""
    binary = example("logits")

    def run(directory, data, tmp, length=0):
        command = [binary, directory, length, data, tmp / "numbers"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return np.fromfile(tmp / "numbers", dtype="<f4")

    return run


def features(directory, sound, tmp):
    command = [example("features"), directory, sound, tmp / "features"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return np.fromfile(tmp / "features", dtype="<f4")


def saved_inputs(model, path, count, seed=1):
    inputs = speech_models.inputs_for(model, count, seed)
    np.save(path, inputs)
    return path, inputs


EXTRACTORS = {
    "whisper": transformers.WhisperFeatureExtractor(chunk_length=5),
    "whisper_128": transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=2, padding_value=0.01),
    "whisper_odd": transformers.WhisperFeatureExtractor(feature_size=20, n_fft=331, hop_length=97, chunk_length=1),
    "wav2vec2": transformers.Wav2Vec2FeatureExtractor(),
    "wav2vec2_plain": transformers.Wav2Vec2FeatureExtractor(do_normalize=False),
}


@pytest.mark.parametrize("kind", speech_models.KINDS)
@pytest.mark.parametrize("name", EXTRACTORS)
def test_features_are_those_of_transformers(name, kind, tmp_path):
    extractor = EXTRACTORS[name]
    extractor.save_pretrained(tmp_path)
    samples = speech_models.write_wav(tmp_path / "a.wav", speech_models.sound(30001, 1), kind)
    key = extractor.model_input_names[0]
    expected = extractor(samples.astype(np.float32), sampling_rate=16000, return_tensors="np")[key][0]
    found = features(tmp_path, tmp_path / "a.wav", tmp_path).reshape(expected.shape)
    # transformers computes spectrograms in f32 where torch is there, which loses digits of quiet frequencies.
    assert np.abs(found - expected).max() <= (1e-4 if name.startswith("whisper") else 1e-5), np.abs(found - expected).max()
    if name.startswith("whisper"):
        padded = np.full(extractor.n_samples, np.float32(extractor.padding_value), np.float32)
        cut = samples.astype(np.float32)[: extractor.n_samples]
        padded[: len(cut)] = cut
        exact = extractor._np_extract_fbank_features(padded[None], "cpu")[0]
        assert np.abs(found - exact).max() <= 1e-5, np.abs(found - exact).max()


def test_channels_are_averaged(tmp_path):
    speech_models.whisper_extractor().save_pretrained(tmp_path)
    both = np.stack([speech_models.sound(9000, 1), speech_models.sound(9000, 2)], 1)
    samples = speech_models.write_wav(tmp_path / "a.wav", both)
    speech_models.write_wav(tmp_path / "b.wav", samples.mean(1), "float32")
    assert np.abs(features(tmp_path, tmp_path / "a.wav", tmp_path) - features(tmp_path, tmp_path / "b.wav", tmp_path)).max() < 1e-5


@pytest.mark.parametrize("name", speech_models.MODELS)
def test_outputs_of_generated_models_match_transformers(name, numbers, tmp_path):
    directory = speech_models.save(name, tmp_path / name)
    model = speech_models.load(directory)
    file, inputs = saved_inputs(model, tmp_path / "inputs.npy", 2)
    expected = speech_models.outputs(model, inputs, 30)
    found = numbers(directory, file, tmp_path, 30)
    assert found.size == sum(part.size for parts in expected for part in parts)
    for part in (part for parts in expected for part in parts):
        ours, found = found[: part.size].reshape(part.shape), found[part.size :]
        assert np.abs(ours - part).max() <= 1e-4 * np.abs(part).max(), np.abs(ours - part).max() / np.abs(part).max()


@pytest.mark.parametrize("name", ["wav2vec2_ctc", "hubert"])
def test_both_spellings_of_normed_weights_are_read(name, numbers, tmp_path):
    directory = speech_models.save(name, tmp_path / name)
    file, _ = saved_inputs(speech_models.load(directory), tmp_path / "inputs.npy", 1)
    before = numbers(directory, file, tmp_path)
    weights = safetensors.torch.load_file(directory / "model.safetensors")
    names = [("parametrizations.weight.original0", "weight_g"), ("parametrizations.weight.original1", "weight_v")]
    if any("weight_g" in name for name in weights):
        names = [(old, new) for new, old in names]
    for new, old in names:
        assert any(new in name for name in weights), sorted(weights)
        weights = {name.replace(new, old): tensor for name, tensor in weights.items()}
    safetensors.torch.save_file(weights, directory / "model.safetensors", {"format": "pt"})
    assert np.array_equal(numbers(directory, file, tmp_path), before)


QUANTIZED = [("whisper", recipe) for recipe in RECIPES]
QUANTIZED += [(name, recipe) for name in ("wav2vec2_ctc", "wav2vec2_stable_ctc") for recipe in RECIPES]
QUANTIZED += [(name, recipe) for name in ("wav2vec2", "hubert", "hubert_ctc") for recipe in ("static", "gptq")]


def decibels(ours, expected):
    return 10 * np.log10(np.square(expected, dtype=float).sum() / np.square(expected.astype(float) - ours).sum())


@pytest.mark.parametrize(("name", "recipe"), QUANTIZED)
def test_quantized_checkpoints_compute_in_transformers_what_kvant_evaluates(name, recipe, kvant, numbers, tmp_path):
    source, out = speech_models.save(name, tmp_path / "model"), tmp_path / "out"
    model = speech_models.load(source)
    file, inputs = saved_inputs(model, tmp_path / "inputs.npy", 24, 5)
    options = [*RECIPES[recipe], "-f", "compressed-tensors", "--num-samples", "16"]
    done = kvant("quantize", source, *options, "--calib", file, "-o", out)
    assert done.returncode == 0, done.stderr
    loaded, report = type(model).from_pretrained(out, dtype="auto", attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"] and not report["unexpected_keys"], report
    length = 20 if name == "whisper" else 0
    parts = speech_models.outputs(loaded.eval(), inputs, length)
    theirs = np.concatenate([part.ravel() for sound in parts for part in sound])
    found, float_found = numbers(out, file, tmp_path, length), numbers(source, file, tmp_path, length)
    # A value at the edge of two codes of an activation may get either.
    assert np.square(found - theirs).sum() < 1e-3 * np.square(theirs).sum()
    assert np.square(found - float_found).sum() > 0

    done = kvant("eval", out, "--reference", source, "--data", file, "--json")
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    if name == "whisper":
        first, expected = (torch.log_softmax(torch.tensor(numbers(path, file, tmp_path)).reshape(24, -1).double(), -1) for path in (out, source))
        assert (ours["tokens"], ours["windows"], ours["perplexity"], ours["reference_perplexity"]) == (0, 24, None, None)
        assert ours["kl_mean"] == pytest.approx(float((expected.exp() * (expected - first)).sum(-1).mean()), rel=1e-3, abs=1e-6)
        return
    hidden = parts[0][0].size
    of_hidden = [values.reshape(24, -1)[:, :hidden] for values in (found, float_found)]
    assert (ours["sequences"], len(ours["outputs"])) == (24, len(parts[0]) - 1)
    assert ours["hidden_sqnr_db"] == pytest.approx(decibels(*of_hidden), abs=0.01)
    assert all(output["sqnr_db"] > 5 for output in ours["outputs"])


@pytest.mark.parametrize("name", ["whisper", "wav2vec2_stable_ctc"])
def test_algorithms_lose_less_than_rounding_to_nearest(name, kvant, tmp_path):
    source, out = speech_models.save(name, tmp_path / "model"), tmp_path / "out"
    file, _ = saved_inputs(speech_models.load(source), tmp_path / "inputs.npy", 24, 5)

    def loss(*options):
        done = kvant("quantize", source, "-s", "int4:g32", "-f", "fake", "--num-samples", "16", "--calib", file, "--overwrite", "-o", out, *options)
        assert done.returncode == 0, done.stderr
        done = kvant("eval", out, "--reference", source, "--data", file, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        return -report["hidden_sqnr_db"] if "hidden_sqnr_db" in report else -report["blocks"][-1]["sqnr_db"]

    nearest, gptq, tuned = loss(), loss("-a", "gptq"), loss("-a", "autoround:iterations=40")
    assert gptq < nearest and tuned < nearest, (nearest, gptq, tuned)


def sounds(folder, count):
    """A folder of sounds of less than a second, some stereo, the first ones with texts; and what was written."""
    folder.mkdir()
    samples = []
    for at in range(count):
        mono = speech_models.sound(9000 + 500 * at, at)
        both = np.stack([mono, mono[::-1]], 1) if at % 2 else mono
        written = speech_models.write_wav(folder / f"{at}.wav", both, list(speech_models.KINDS)[at % 4])
        samples.append((written.mean(1) if at % 2 else written).astype(np.float32))
        if at < count - 1:
            (folder / f"{at}.txt").write_text(" ".join(f"w{(at * 7 + word) % 200}" for word in range(5 + at)) + "\n")
    return samples


def test_folders_of_sounds_and_texts_calibrate_and_evaluate_whisper(kvant, tmp_path):
    source, out, folder = speech_models.save("whisper", tmp_path / "model"), tmp_path / "out", tmp_path / "sounds"
    samples = sounds(folder, 6)
    static = ("-s", "int8:channel+int8:tensor!static", "--calib", folder, "--num-samples", "4", "-o", out)
    refused = kvant("quantize", source, *static)
    assert refused.returncode == 1 and "preprocessor_config.json is missing" in refused.stderr, refused.stderr
    extractor = speech_models.whisper_extractor()
    extractor.save_pretrained(source)
    refused = kvant("quantize", source, *static)
    assert refused.returncode == 1 and "tokenizer.json" in refused.stderr, refused.stderr
    tokenizer = speech_models.save_tokenizer(source)
    done = kvant("quantize", source, *static)
    assert done.returncode == 0, done.stderr
    done = kvant("eval", out, "--reference", source, "--data", folder, "--json")
    assert done.returncode == 0 and "1 of 6 sounds have no text" in done.stderr, done.stderr
    report = json.loads(done.stdout)

    model, losses = speech_models.load(source), []
    for at in range(5):
        labels = torch.tensor([tokenizer((folder / f"{at}.txt").read_text().strip()).input_ids])
        inputs = torch.tensor(extractor(samples[at], sampling_rate=16000, return_tensors="np").input_features)
        with torch.no_grad():
            rows = torch.log_softmax(model(input_features=inputs, decoder_input_ids=labels[:, :-1]).logits[0].double(), -1)
        # The two special tokens before a text are given.
        losses.append(-rows.gather(-1, labels[0, 1:, None])[1:, 0])
    losses = torch.cat(losses)
    assert (report["tokens"], report["windows"]) == (len(losses), 6)
    assert report["reference_perplexity"] == pytest.approx(float(losses.mean().exp()), rel=1e-4)
    assert report["perplexity_ratio"] == pytest.approx(1, abs=0.2) and 0 < report["kl_mean"] < 0.1, report

    alone = kvant("eval", source, "--data", folder, "--num-samples", "2", "--json")
    assert alone.returncode == 0 and json.loads(alone.stdout)["windows"] == 2, alone.stderr
    silent = kvant("eval", source, "--data", folder / "5.wav")
    assert silent.returncode == 1 and "a.txt" in silent.stderr, silent.stderr
    table = kvant("eval", out, "--reference", source, "--data", folder / "5.wav")
    assert table.returncode == 0 and "NaN" not in table.stdout, table.stdout
    (source / "generation_config.json").write_text(json.dumps({"forced_decoder_ids": [[1, 3], [2, 4]], "decoder_start_token_id": 2}))
    forced = json.loads(kvant("eval", source, "--data", folder / "0.wav", "--json").stdout)
    assert forced["tokens"] == 6 and forced["seq_len"] == 50 + 3 + 6, forced
    (folder / "0.txt").write_text(" ".join(["w1"] * 100))
    long = kvant("eval", source, "--data", folder / "0.wav")
    assert long.returncode == 1 and "0.wav has 103 tokens" in long.stderr, long.stderr


def test_folders_of_sounds_calibrate_and_evaluate_wav2vec2(kvant, numbers, tmp_path):
    source, out, folder = speech_models.save("wav2vec2_ctc", tmp_path / "model"), tmp_path / "out", tmp_path / "sounds"
    samples = sounds(folder, 5)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(source)
    # The first models name no class.
    config = json.loads((source / "preprocessor_config.json").read_text())
    assert config.pop("feature_extractor_type") == "Wav2Vec2FeatureExtractor"
    (source / "preprocessor_config.json").write_text(json.dumps(config))
    done = kvant("quantize", source, "-s", "int8:channel+int8:tensor!static", "--calib", folder, "--num-samples", "3", "-o", out)
    assert done.returncode == 0, done.stderr
    done = kvant("eval", out, "--reference", source, "--data", folder, "--json")
    assert done.returncode == 0, done.stderr
    report, model = json.loads(done.stdout), speech_models.load(source)
    found = numbers(source, folder, tmp_path)
    for waves in samples:
        inputs = extractor(waves, sampling_rate=16000, return_tensors="np").input_values
        for part in speech_models.outputs(model, inputs)[0]:
            ours, found = found[: part.size].reshape(part.shape), found[part.size :]
            assert np.abs(ours - part).max() <= 1e-4 * np.abs(part).max()
    assert report["sequences"] == 5 and report["embedding_cosine_mean"] > 0.98, report
    named = kvant("eval", out, "--reference", source, "--data", folder)
    assert "the embedding of a sound is the mean" in named.stdout, named.stdout


def test_data_that_are_no_sounds_of_the_model_are_refused_by_name(kvant, tmp_path):
    source, out, folder = speech_models.save("whisper", tmp_path / "model"), tmp_path / "out", tmp_path / "sounds"
    folder.mkdir()
    speech_models.write_wav(folder / "slow.wav", speech_models.sound(4000), rate=8000)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    np.save(tmp_path / "small.npy", np.zeros((2, 16, 99), "<f4"))
    np.save(tmp_path / "nan.npy", np.full((2, 16, 100), np.nan, "<f4"))
    np.save(tmp_path / "good.npy", np.zeros((2, 16, 100), "<f4"))
    gptq = ("-s", "int4:g32", "-a", "gptq", "-f", "compressed-tensors", "-o", out)

    def refused(words, *arguments, model=source):
        done = kvant("quantize", model, *arguments)
        assert done.returncode in (1, 2) and words in done.stderr, (arguments, done.stderr)
        assert not out.exists()

    speech_models.whisper_extractor(feature_size=20).save_pretrained(source)
    refused("spectrograms of 20 filters", *gptq, "--calib", folder)
    speech_models.whisper_extractor().save_pretrained(source)
    refused("slow.wav has 8000 samples in a second, and the model reads 16000", *gptq, "--calib", folder)
    refused("ffmpeg", *gptq, "--calib", tmp_path / "a.flac")
    refused("[2, 16, 99]", *gptq, "--calib", tmp_path / "small.npy")
    refused("nan.npy", *gptq, "--calib", tmp_path / "nan.npy")
    refused("--seq-len", *gptq, "--calib", tmp_path / "good.npy", "--seq-len", "8")
    waves = speech_models.save("wav2vec2", tmp_path / "waves")
    np.save(tmp_path / "short.npy", np.zeros((2, 20), "<f4"))
    refused("too short", *gptq, "--calib", tmp_path / "short.npy", model=waves)
    for command in ("generate", "convert"):
        more = ("--prompt", "x") if command == "generate" else ("--to", "onnx", "-o", tmp_path / "graph.onnx")
        for model in (source, waves):
            done = kvant(command, model, *more)
            assert done.returncode in (1, 2) and "encoder" in done.stderr, done.stderr


# Models that are not computed, and what a refusal names.
REFUSED = {
    "adapter": ("Wav2Vec2Config", "Wav2Vec2Model", dict(speech_models.WAVES, add_adapter=True), "add_adapter"),
    "attention_adapter": ("Wav2Vec2Config", "Wav2Vec2ForCTC", dict(speech_models.STABLE, adapter_attn_dim=16), "adapter_layer"),
    "pretraining": ("Wav2Vec2Config", "Wav2Vec2ForPreTraining", speech_models.WAVES, "a tensor of unknown purpose"),
    "classes": ("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", speech_models.WAVES, "classifier.bias"),
    "batch_norm": ("HubertConfig", "HubertModel", dict(speech_models.WAVES, conv_pos_batch_norm=True), "conv_pos_batch_norm"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_not_computed_are_refused_by_name(name, kvant, tmp_path):
    kind, architecture, arguments, words = REFUSED[name]
    config = getattr(transformers, kind)(**arguments)
    getattr(transformers, architecture)(config).save_pretrained(tmp_path / "model")
    np.save(tmp_path / "samples.npy", np.zeros((2, 3000), "<f4"))
    options = ("-s", "int4:g32", "-a", "gptq", "-f", "fake", "-o", tmp_path / "out")
    done = kvant("quantize", tmp_path / "model", *options, "--calib", tmp_path / "samples.npy")
    assert done.returncode == 1 and words in done.stderr and not (tmp_path / "out").exists(), done.stderr
    done = kvant("quantize", tmp_path / "model", "-s", "int8:channel", "-f", "fake", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_packed_codes_of_a_layer_that_transformers_reads_as_a_float_are_refused(kvant, tmp_path):
    source = speech_models.save("wav2vec2", tmp_path / "model")
    options = ("-s", "int4:g32", "-f", "compressed-tensors", "--no-keep-defaults", "-o", tmp_path / "out")
    done = kvant("quantize", source, *options)
    assert done.returncode == 1 and "feature_projection.projection" in done.stderr, done.stderr
