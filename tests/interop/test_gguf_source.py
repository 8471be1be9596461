"""GGUF files as sources: evaluated as llama.cpp does, converted to checkpoints that transformers loads, and made of codes."""

import functools
import json

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file

import forward_models
from conftest import REPO, quantize_anyway

gguf = pytest.importorskip("gguf")

from test_gguf import (  # noqa: E402, F401 (fixtures)
    OTHERWISE, TEXTS, TRAINED, UNLOADABLE, WITHOUT, dequantized, family, llama, llama_logits, perplexity, reference_logits, tensor_of, trained, write)  # fmt: skip

WINDOW = 256
MIXES = ("Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_NL", "TQ2_0", "MXFP4_MOE")
# Of these no files are made. That the bounds of YaRN's ramp are rounded no file says, and gpt-oss as it is published has them as they are.
UNREAD = WITHOUT | UNLOADABLE | {"gpt_oss_rounded", "jamba_twice", "llama4_interval", "llama4_published", "mistral4", "nemotron_h_experts", "nemotron_h_plain", "qwen3_vl_moe_whole"}
UNREAD |= {"cohere2_moe", "cohere2_moe_sigmoid", "dbrx", "deepseek_v32_published", "exaone_moe", "falcon_mamba_twice", "gemma3n_published", "gemma4", "gemma4_layer_inputs",
           "gemma4_moe", "gemma4_shared", "glm", "glm_moe_dsa_published", "gpt_bigcode", "gpt_bigcode_heads", "hy_v3", "laguna_elements_behind", "laguna_heads",
           "mamba_twice"}  # fmt: skip
UNREAD |= {"bailing_hybrid", "bailing_hybrid_dense", "deepseek_v4_published", "deepseek_v4_yarn_published", "kimi_linear_grouped", "kimi_linear_heads", "minimax_one_factor",
           "minimax_window"}  # fmt: skip
READ = [name for name in (*forward_models.MODELS, *forward_models.FOR_LLAMA_CPP) if name not in UNREAD]


@pytest.fixture(scope="module")
def text(module_path):
    path = module_path("text") / "text.txt"
    path.write_text((REPO / "README.md").read_text()[:1500])
    return path


@pytest.fixture(scope="module")
def evaluated(kvant, text):
    """evaluated(model, *options) -> the object that `kvant eval --json` prints."""

    def run(model, *options):
        length = () if "--seq-len" in options else ("--seq-len", WINDOW)
        done = kvant("eval", model, "--data", text, *length, "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def converted(kvant, module_path):
    """converted(model, target, *options) -> what `kvant convert` makes."""
    root = module_path("converted")

    def run(model, target, *options):
        out = root / f"{len(list(root.iterdir()))}-{target}{'.gguf' if target == 'gguf' else ''}"
        done = kvant("convert", model, "--to", target, "-o", out, *options)
        assert done.returncode == 0, done.stderr
        return out

    return run


@functools.cache
def windows(directory, text):
    tokens = transformers.AutoTokenizer.from_pretrained(directory)(text.read_text())["input_ids"]
    return [tokens[start : start + WINDOW] for start in range(0, len(tokens) - WINDOW + 1, WINDOW)]


def llama_perplexity(llama, path, windows):
    losses = [np.log(perplexity(llama_logits(llama, path, window), window)) for window in windows]
    return float(np.exp(np.mean(losses)))


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("mix", MIXES)
def test_perplexity_matches_llama_cpp(name, mix, llama, write, evaluated, text):  # noqa: F811
    directory = trained(name)
    path = write(directory, mix)
    found = evaluated(path)
    all_windows = windows(directory, text)
    assert found["windows"] == len(all_windows)
    assert found["perplexity"] == pytest.approx(llama_perplexity(llama, path, all_windows), rel=0.01)


def test_gguf_is_compared_with_its_source(write, evaluated):  # noqa: F811
    directory = trained("nano_llama")
    found = evaluated(write(directory, "Q8_0"), "--reference", directory)
    assert 0 < found["kl_mean"] < 1e-3 and found["top1_agreement"] > 0.95
    same = evaluated(write(directory, "BF16"), "--reference", directory)
    # Some processors sum products of stored and of decoded weights in another order.
    assert same["kl_mean"] < 1e-6 and abs(same["perplexity"] / same["reference_perplexity"] - 1) < 1e-5


def test_llama_cpp_reads_a_model_in_several_files(write, kvant, llama, text, tmp_path):  # noqa: F811
    """The same logits as of one file; gguf-py reads what each part says of itself."""
    directory = trained("nano_llama")
    whole = write(directory, "Q8_0")
    done = kvant("convert", whole, "--to", "gguf", "--max-shard-size", "200KB", "-o", tmp_path / "parts")
    assert done.returncode == 0, done.stderr
    parts = sorted((tmp_path / "parts").glob("*.gguf"))
    readers = [gguf.GGUFReader(part) for part in parts]
    stated = [[reader.fields[f"split.{key}"].contents() for key in ("no", "count", "tensors.count")] for reader in readers]
    tensors = sum(len(reader.tensors) for reader in readers)
    assert len(parts) > 2 and stated == [[number, len(parts), tensors] for number in range(len(parts))]
    window = windows(directory, text)[0]
    assert np.array_equal(llama_logits(llama, parts[0], window), llama_logits(llama, whole, window))


def test_another_tokenizer_can_be_given(write, evaluated, family, kvant, text):  # noqa: F811
    path = write(trained("nano_llama"), "Q8_0")
    assert evaluated(path, "--tokenizer", trained("nano_qwen3"))["tokens"] == evaluated(path)["tokens"]


@pytest.mark.parametrize("name", READ)
def test_float_conversion_restores_the_source_model(name, write, family, converted):  # noqa: F811
    """Logits are those of the source; windows that the file does not state leave a text of their length as it is."""
    directory = family(name)
    tokens = np.random.default_rng(4).integers(0, 500, 19 if name in OTHERWISE else 48)
    out = converted(write(directory, "F32"), "float")
    config, stated = (json.loads((d / "config.json").read_text()) for d in (out, directory))
    assert "quantization_config" not in config
    if name in ("gemma2", "gemma3"):
        # llama.cpp derives the scale of attention from the sizes.
        config["query_pre_attn_scalar"] = stated["query_pre_attn_scalar"]
        (out / "config.json").write_text(json.dumps(config))
    found, expected = reference_logits(out, tokens), reference_logits(directory, tokens)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", TRAINED)
def test_float_conversion_of_codes_matches_gguf_py(name, write, converted, evaluated):  # noqa: F811
    path = write(trained(name), "Q4_K_M")
    out = converted(path, "float")
    made = load_file(out / "model.safetensors")
    direct = {"v_proj": "attn_v", "o_proj": "attn_output"}
    for module, stem in direct.items():
        expected = tensor_of(path, f"blk.1.{stem}.weight")
        assert np.array_equal(made[f"model.layers.1.self_attn.{module}.weight"].numpy(), expected), module
    assert np.array_equal(made["model.embed_tokens.weight"].numpy(), tensor_of(path, "token_embd.weight"))
    logits = evaluated(path, "--reference", out)
    assert logits["kl_mean"] < 1e-6 and abs(logits["perplexity"] / logits["reference_perplexity"] - 1) < 1e-5
    half = load_file(converted(path, "float", "--dtype", "bf16") / "model.safetensors")
    assert half["model.embed_tokens.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(("mix", "target"), (("Q4_0", "gptq"), ("Q4_0", "compressed-tensors"), ("Q4_0", "quark"), ("Q8_0", "gptq_v2"),
                                             ("Q8_0", "compressed-tensors")))  # fmt: skip
def test_codes_are_copied(mix, target, write, converted, evaluated):  # noqa: F811
    path = write(trained("nano_llama"), mix)
    found = evaluated(converted(path, target), "--reference", path)
    assert found["kl_mean"] < 1e-6


def test_codes_with_inexact_scales_are_refused(write, kvant, tmp_path):  # noqa: F811
    for mix in ("Q4_1", "IQ4_NL"):
        refused = kvant("convert", write(trained("nano_llama"), mix), "--to", "awq", "-o", tmp_path / mix)
        assert refused.returncode == 1 and "--requantize" in refused.stderr and mix in refused.stderr, refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize(("scheme", "source", "options", "kind"), (
    ("int4:g32", "gptq", (), "Q4_0"), ("int4:g64", "compressed-tensors", (), "Q4_0"), ("int8:channel:f16", "quark", (), "Q8_0"),
    ("uint4:g32:zp", "awq", ("--requantize",), "Q4_1")))  # fmt: skip
def test_gguf_files_of_codes_load_in_llama_cpp(name, scheme, source, options, kind, llama, kvant, converted, evaluated, text, tmp_path):  # noqa: F811
    import gguf

    directory = trained(name)
    made = tmp_path / "quantized"
    done = kvant("quantize", directory, "--scheme", scheme, "--format", source, "-o", made)
    assert done.returncode == 0, done.stderr
    path = converted(made, "gguf", *options)
    kinds = {t.tensor_type.name for t in gguf.GGUFReader(path).tensors if t.name.startswith("blk.0.attn_")}
    assert kind in kinds
    expected = evaluated(made)["perplexity"]
    assert llama_perplexity(llama, path, windows(directory, text)) == pytest.approx(expected, rel=0.01)
    # Values are the same to the last bit, but where minima were rounded.
    found = evaluated(path, "--reference", made)
    assert found["kl_mean"] < 1e-6 if not options else found["kl_mean"] < 1e-5


@pytest.mark.parametrize("name", ("granitemoe", "gpt_oss", "mixtral", "deepseek_v2"))
def test_expert_codes_are_written_to_gguf_in_the_same_run(name, kvant, family, evaluated, tmp_path):  # noqa: F811
    """Experts that are one tensor in the source stand apart in the checkpoint, gate and up in one matrix, and are stacked in the file."""
    out = tmp_path / "out"
    quantize_anyway(kvant, family(name), out, "--scheme", "int8:g32", "--format", "quark", "--format", "gguf")
    found = evaluated(out / "gguf" / "model.gguf", "--reference", out / "quark", "--seq-len", "16")
    assert found["kl_mean"] < 1e-6
    assert kvant("verify", out / "gguf" / "model.gguf").returncode == 0


def sentence_pieces(size):
    """A tokenizer as Llama 2 has it: pieces that are merged by rank, bytes where there is none."""
    specials = ["<unk>", "<s>", "</s>"]
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=specials + alphabet, show_progress=False)
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    space = tokenizers.normalizers
    made.normalizer = space.Sequence([space.Prepend("\u2581"), space.Replace(" ", "\u2581")])
    made.train_from_iterator([(REPO / "README.md").read_text()], trainer)
    state = json.loads(made.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    state["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }  # fmt: skip
    state["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                         {"type": "ByteFallback"}, {"type": "Fuse"}]}  # fmt: skip
    return state


def test_sentencepiece_tokenizers_are_read(llama, write, family, converted, tmp_path):  # noqa: F811
    import shutil

    directory = tmp_path / "pieces"
    shutil.copytree(family("llama_bias"), directory)
    (directory / "tokenizer.json").write_text(json.dumps(sentence_pieces(500)))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
    path = write(directory, "F32")
    out = converted(path, "float")
    ours, source = (tokenizers.Tokenizer.from_file(str(d / "tokenizer.json")) for d in (out, directory))
    model = llama.Llama(str(path), n_ctx=64, verbose=False)
    for text in (*TEXTS[:-1], (REPO / "ARCHITECTURE.md").read_text()[:3000]):
        assert ours.encode(text).ids == model.tokenize(text.encode(), add_bos=True, special=True), text
        assert ours.encode(text).ids == source.encode(text).ids, text
    model.close()


@pytest.mark.parametrize("original", (64, 512))
def test_longrope_factors_match_llama_cpp(original, llama, kvant, converted, monkeypatch, tmp_path):  # noqa: F811
    """llama.cpp takes the factors for long texts where its context, of 256 tokens at least, is longer than the original one."""
    kind, arguments = forward_models.MODELS["phi3_longrope"]
    arguments = dict(arguments, original_max_position_embeddings=original, max_position_embeddings=1024)
    monkeypatch.setitem(forward_models.MODELS, "long", (kind, arguments))
    # Its loader looks for further tokens in vocabularies of models that are called Phi-3.
    directory, path = forward_models.save("long", tmp_path / "long"), tmp_path / "long.gguf"
    size = json.loads((directory / "config.json").read_text())["vocab_size"]
    (directory / "tokenizer.json").write_text(json.dumps(sentence_pieces(size)))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
    done = kvant("quantize", directory, "--scheme", "F32", "-o", path)
    assert done.returncode == 0, done.stderr
    tokens = np.random.default_rng(3).integers(0, 500, 100)
    expected = reference_logits(directory, tokens)
    for found in (llama_logits(llama, path, tokens), reference_logits(converted(path, "float"), tokens)):
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
