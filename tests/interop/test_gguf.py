"""GGUF files: read by gguf-py, whose dequantizer gives what ours gives; loaded by llama.cpp, whose logits are transformers'."""

import functools
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file

import forward_models
import models
from conftest import REPO, example

gguf = pytest.importorskip("gguf")

MIXES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S",
         "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4_MOE")  # fmt: skip
TRAINED = ("nano_llama", "nano_qwen3", "nano_mixtral", "nano_gemma2")
# What llama.cpp has no graph for, or computes in another way than transformers: SparseMixer, softmax before a choice by groups,
# frequencies that depend on the length, norms of whole heads, an architecture that it lacks. Kvant has no layout for the last line.
WITHOUT = {"opt", "opt_post_norm", "gptj", "gptj_tied", "hunyuan", "llama_dynamic", "phi_norms"}
WITHOUT |= {"cwm", "flex_olmo", "glm4_moe_routed", "qwen2_moe_routed", "helium", "opt_plain_norms"}
# The graph of BitNet computes SiLU, and its models squared ReLU.
WITHOUT |= {"bitnet", "qwen3_omni_moe"}
WITHOUT |= {"axk1", "ministral", "ministral_mixed", "mllama", "mllama_text", "nanochat", "nanochat_capped",
            "persimmon", "persimmon_plain", "xglm", "xglm_unscaled"}  # fmt: skip
WITHOUT |= {"kolibri1", "kolibri1_weighed", "lfm3", "lfm3_plain"}
WITHOUT |= {"longcat", "longcat_yarn"}
# Each head of an index of MiniMax M3 chooses blocks for a group of heads there, and for all heads in transformers.
WITHOUT |= {"minimax_m3", "minimax_m3_local", "minimax_m3_vl"}
WITHOUT |= {name for name in forward_models.HYBRIDS if name.startswith("olmo")}
OTHERWISE = {"phimoe_biases", "phi3", "phi3_longrope", "deepseek_v2"}
# The bound of the activations of Gemma 3n is that of other deviations, which differ where networks are as narrow as these.
OTHERWISE |= {"gemma3n_published"}
# No sliding windows in its graph (a notice says so), or a scale of attention that it derives from sizes instead of reading it.
OTHERWISE |= {"mistral", "minimax_window", "qwen2", "mixtral", "starcoder2", "gemma2", "gemma3"}
# Small models of a form that no published one has, which its loader does not load and Kvant refuses: a Phi-MoE without biases, blocks without experts among those
# with, fewer heads of keys in OLMoE, a lite DeepSeek of other than 26 or 27 blocks, norms of queries and keys in a Command R of fewer
# than 64 blocks. Beside each stands one of the published form.
# Other forms than its graphs have, which FOR_LLAMA_CPP has beside them, are refused likewise.
UNLOADABLE = {"phimoe", "qwen3_moe", "olmoe", "deepseek_v2_lite", "cohere_norms"}
UNLOADABLE |= {"cohere2_moe_rms", "dbrx_norm", "dbrx_sums", "gemma3n", "gemma3n_lanes", "deepseek_v32", "deepseek_v4", "deepseek_v4_yarn", "glm_moe_dsa", "laguna", "laguna_elements"}
UNLOADABLE |= {"dots1", "ernie4_5_bias", "ernie4_5_moe", "exaone4", "falcon_alibi", "falcon_groups", "llama4", "llama4_dense", "mimo_v2_flash", "mpt", "qwen3_vl_moe"}
UNLOADABLE |= {name for name in forward_models.HYBRIDS - WITHOUT if name not in ("bailing_hybrid", "falcon_h1_gated", "minimax_window", "lfm2", "lfm2_indices", "lfm2_vl")}
# gpt-oss's configuration says `truncate: false`, and llama.cpp rounds the bounds of YaRN's ramp all the same.
ROUNDED = {"gpt_oss"}
# llama.cpp takes GELU from a table of 16-bit floats. Files of these hold what its own converter writes.
ROUNDED |= {"gemma4_layer_inputs", "gemma4_moe", "gemma4_shared"}
FAMILIES = [name for name in (*forward_models.MODELS, *forward_models.FOR_LLAMA_CPP) if name not in WITHOUT]
TEXTS = ("Returns the number of bytes.", "  let x = 'it''s';\n\n\tfn main() {}\r\n", "Ünïcödé 数字 १२३ 🚀", "a  b   c    1234567 3.14", "")


@pytest.fixture(scope="module")
def write(kvant, module_path):
    """write(directory, mix, *options) -> path of the file, made once."""
    root = module_path("gguf")

    @functools.cache
    def run(directory, mix, *options):
        out = root / f"{pathlib.Path(directory).name}-{mix}-{len(list(root.iterdir()))}.gguf"
        done = kvant("quantize", directory, "--format", "gguf", "--scheme", mix, "-o", out, *options)
        assert done.returncode == 0, done.stderr
        return out

    return run


def byte_tokenizer(size):
    """A byte-level tokenizer with as many tokens, all bytes among them, and an end of text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, **{letter: i + 1 for i, letter in enumerate(alphabet)}}
    pairs = [(a, b) for a in "etaoinsr" for b in "etaoinsrhldcu"]
    merges = []
    for a, b in pairs[: size - len(vocabulary) - 3]:
        vocabulary[a + b] = len(vocabulary)
        merges.append((a, b))
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    made.add_special_tokens(["<|endoftext|>"])
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def family(module_path):
    """family(name) -> directory of a generated model with a tokenizer, made once."""
    root = module_path("families")

    @functools.cache
    def make(name):
        # In models of that name llama.cpp looks for tokens that these tokenizers lack, and `kvant verify` refuses them.
        directory = forward_models.save(name, root / name.replace("phi3", "phi_3"))
        config = json.loads((directory / "config.json").read_text())
        size = config.get("text_config", config)["vocab_size"]
        byte_tokenizer(size).save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
        return directory

    return make


@pytest.fixture(scope="module")
def wide(module_path):
    """A model whose columns are multiples of 256, with experts of the same kind, and a bf16 checkpoint."""
    return mixture(module_path("wide") / "wide", intermediate_size=512, num_hidden_layers=8, num_local_experts=4)


@pytest.fixture(scope="module")
def small(module_path):
    """The same with a sixth of the weights, for algorithms that take long, and layers of two kinds in each mix of types."""
    return mixture(module_path("small") / "small", intermediate_size=256, num_hidden_layers=4, num_local_experts=2)


def mixture(out, **sizes):
    arguments = dict(models.BASE, hidden_size=256, num_experts_per_tok=2, **sizes)
    models.save("wide", transformers.MixtralConfig(**arguments), "bfloat16", out)
    byte_tokenizer(arguments["vocab_size"]).save(str(out / "tokenizer.json"))
    return out


@pytest.fixture(scope="module")
def our_values(module_path):
    """our_values(path) -> {name: array} of kvant's own dequantizer."""
    binary = example("gguf_values")

    def run(path):
        out = module_path("values")
        done = subprocess.run([str(binary), str(path), str(out)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        values = load_file(out / "model.safetensors")
        (out / "model.safetensors").unlink()
        return values

    return run


def trained(name):
    found = models.find_shared(name, REPO, os.environ.get("KVANT_MODELS"))
    return found or pytest.skip(f"{name} is not at hand")


def dequantized(tensor):
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return values.astype(np.float32).reshape(tensor.shape[::-1].tolist())


def assert_same_values(path, ours):
    reader = gguf.GGUFReader(path)
    assert {t.name for t in reader.tensors} == set(ours)
    for tensor in reader.tensors:
        expected, found = dequantized(tensor), ours[tensor.name].reshape(tensor.shape[::-1].tolist())
        assert np.array_equal(expected.view(np.uint32), found.view(np.uint32)), (tensor.name, tensor.tensor_type)
    return reader


@pytest.mark.parametrize("mix", MIXES)
def test_every_ftype_reads_back_in_gguf_py(mix, write, wide, our_values):
    path = write(wide, mix)
    reader = assert_same_values(path, our_values(path))
    base = {"MXFP4_MOE": "MXFP4"}.get(mix, mix.removesuffix("_S").removesuffix("_M").removesuffix("_L"))
    assert base in {t.tensor_type.name for t in reader.tensors}
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType[
        {"F32": "ALL_F32", "MXFP4_MOE": "MOSTLY_MXFP4_MOE"}.get(mix, f"MOSTLY_{mix}")].value  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("mix", ("Q4_K_M", "Q6_K", "Q8_0"))
def test_trained_models_read_back_in_gguf_py(name, mix, write, our_values):
    path = write(trained(name), mix)
    assert_same_values(path, our_values(path))


@pytest.mark.parametrize("name", TRAINED)
def test_metadata_matches_the_model(name, write):
    directory = trained(name)
    config = json.loads((directory / "config.json").read_text())
    reader = gguf.GGUFReader(write(directory, "BF16"))
    architecture = {"nano_mixtral": "llama"}.get(name, config["model_type"])
    found = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer")}
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    expected = {
        "general.architecture": architecture,
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.layer_norm_rms_epsilon": np.float32(config["rms_norm_eps"]),
        f"{architecture}.rope.freq_base": config["rope_parameters"]["rope_theta"],
        f"{architecture}.rope.dimension_count": head,
    }
    if name == "nano_mixtral":
        expected |= {"llama.expert_count": config["num_local_experts"], "llama.expert_used_count": config["num_experts_per_tok"]}
    if name == "nano_gemma2":
        expected |= {"gemma2.attn_logit_softcapping": 50.0, "gemma2.final_logit_softcapping": 30.0,
                     "gemma2.attention.sliding_window": 256}  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert tokens == tokenizer.convert_ids_to_tokens(range(config["vocab_size"]))


def test_norm_offsets_and_rope_permutation(write):
    llama, gemma = trained("nano_llama"), trained("nano_gemma2")
    source = models_tensor(llama, "model.layers.1.self_attn.k_proj.weight")
    found = tensor_of(write(llama, "F32"), "blk.1.attn_k.weight")
    heads, half = 2, 16
    expected = source.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(source.shape)
    assert np.array_equal(found, expected)
    norm = models_tensor(gemma, "model.layers.0.input_layernorm.weight")
    assert np.array_equal(tensor_of(write(gemma, "F32"), "blk.0.attn_norm.weight"), norm + 1)


def models_tensor(directory, name):
    from safetensors.torch import load_file as load

    return load(directory / "model.safetensors")[name].float().numpy()


def tensor_of(path, name):
    found = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    return dequantized(found)


def test_bytes_do_not_depend_on_threads_and_a_killed_run_resumes(kvant, wide, tmp_path, write):
    expected = write(wide, "Q4_K_M").read_bytes()
    for threads in (1, 2, 5):
        out = tmp_path / f"{threads}.gguf"
        done = kvant("quantize", wide, "--scheme", "Q4_K_M", "-o", out, "--threads", threads)
        assert done.returncode == 0, done.stderr
        # The name of the file is no part of it.
        assert out.read_bytes() == expected


def test_overrides_and_exclusions(write, wide):
    path = write(wide, "Q4_0", "--override", "*.v_proj=Q8_0", "--override", "blk.2.ffn_down_exps=F16", "--exclude", "*.1.*.k_proj")
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert kinds["blk.0.attn_v.weight"] == "Q8_0"
    assert kinds["blk.2.ffn_down_exps.weight"] == "F16"
    assert kinds["blk.1.attn_k.weight"] == "BF16"
    assert kinds["blk.0.attn_q.weight"] == "Q4_0"


def test_unsupported_gguf_requests_are_refused(kvant, wide, tmp_path, family):
    without = tmp_path / "without"
    shutil.copytree(wide, without)
    (without / "tokenizer.json").unlink()
    refused = kvant("quantize", without, "--scheme", "Q8_0", "-o", tmp_path / "a.gguf")
    assert refused.returncode == 1 and "tokenizer" in refused.stderr
    for name in ("opt", "llama_dynamic", "phi_norms"):
        refused = kvant("quantize", family(name), "--scheme", "Q8_0", "-o", tmp_path / "b.gguf")
        assert refused.returncode == 1 and "error" in refused.stderr, name
    refused = kvant("quantize", wide, "--scheme", "Q4_K_M", "--kv-cache", "fp8", "-o", tmp_path / "c.gguf")
    assert refused.returncode == 2 and "--kv-cache" in refused.stderr
    assert not list(tmp_path.glob("*.gguf*"))


def test_importance_is_measured_saved_and_lowers_the_error(kvant, tmp_path, write):
    """Measured, written and read again, the same file is made; weighed errors are smaller than unweighed ones."""
    directory, text = trained("nano_llama"), tmp_path / "text.txt"
    text.write_text("The iterator yields every element of the slice, in order. " * 400)
    saved = tmp_path / "imatrix.gguf"
    calib = ("--algorithm", "imatrix", "--calib", text, "--num-samples", "8", "--seq-len", "64", "--save-imatrix", saved)
    measured, read = tmp_path / "measured.gguf", tmp_path / "read.gguf"
    for out, options in ((measured, calib), (read, ("--imatrix", saved))):
        done = kvant("quantize", directory, "--scheme", "Q4_0", "-o", out, *options)
        assert done.returncode == 0, done.stderr
    a, b = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in (measured, read))
    assert all(np.array_equal(a[name].data, b[name].data) for name in a)
    sums = {t.name: t for t in gguf.GGUFReader(saved).tensors}
    name = "blk.0.ffn_down.weight"
    importance = np.array(sums[f"{name}.in_sum2"].data, dtype=np.float64).reshape(-1)
    assert float(sums[f"{name}.counts"].data.reshape(-1)[0]) == 8 * 64
    source = models_tensor(directory, "model.layers.0.mlp.down_proj.weight").astype(np.float64)
    error = lambda path: (((tensor_of(path, name) - source) ** 2) * importance).sum()  # noqa: E731
    assert error(measured) < error(write(directory, "Q4_0"))


# Together they have layers of all types that Q4_K_M and Q5_K_M have: those of Q3_K_M are in Q3_K, Q4_K and Q5_K.
@pytest.mark.parametrize("mix", ("Q2_K", "Q3_K_M", "Q6_K", "IQ4_XS", "Q5_1"))
def test_codes_chosen_with_error_feedback_read_back_in_gguf_py(mix, small, write, our_values, tmp_path):
    """The types are those of weighed rounding, the values those that gguf-py finds, and other ones: experts too."""
    text = tmp_path / "text.txt"
    text.write_text("The iterator yields every element of the slice, in order. " * 400)
    data = ("--calib", str(text), "--num-samples", "8", "--seq-len", "64")
    weighed = gguf.GGUFReader(write(small, mix, "--algorithm", "imatrix", *data))
    chosen = write(small, mix, "--algorithm", "gptq:rounds=1", *data)
    reader = assert_same_values(chosen, our_values(chosen))
    pairs = list(zip(weighed.tensors, reader.tensors, strict=True))
    assert all((a.name, a.tensor_type) == (b.name, b.tensor_type) for a, b in pairs)
    layers = [(a, b) for a, b in pairs if a.name.startswith("blk.") and gguf.GGML_QUANT_SIZES[a.tensor_type][0] > 1]
    assert layers and all(not np.array_equal(a.data, b.data) for a, b in layers)


# llama.cpp itself


@pytest.fixture(scope="module")
def llama():
    return pytest.importorskip("llama_cpp")


def llama_logits(llama, path, tokens):
    """Logits of all positions of some tokens, computed in floats."""
    model = llama.Llama(str(path), n_ctx=len(tokens), n_batch=len(tokens), n_ubatch=len(tokens), logits_all=True, verbose=False,
                        type_k=0, type_v=0, flash_attn=False, n_threads=1, swa_full=True)  # fmt: skip
    model.eval(list(map(int, tokens)))
    logits = np.array(model.scores[: len(tokens)], dtype=np.float32)
    model.close()
    return logits


def reference_logits(directory, tokens):
    # The automatic class for causal models does not know language models beside a part for images.
    kind = forward_models.model_class(transformers.AutoConfig.from_pretrained(directory))
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([list(map(int, tokens))])).logits[0].numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_llama_cpp_logits_match_transformers(name, kvant, llama, family, write, tmp_path):
    if name in UNLOADABLE:
        done = kvant("quantize", family(name), "--scheme", "F32", "-o", tmp_path / "out.gguf")
        assert done.returncode == 1 and ("cannot be written as GGUF" in done.stderr or "has no place in a file" in done.stderr), done.stderr
        return
    directory = family(name)
    tokens = np.random.default_rng(3).integers(0, 500, 48)
    path = write(directory, "F32")
    found, expected = llama_logits(llama, path, tokens), reference_logits(directory, tokens)
    if name in OTHERWISE:
        assert np.isfinite(found).all()
        return
    assert np.abs(found - expected).max() <= (2e-2 if name in ROUNDED else 2e-3) * np.abs(expected).max()


def perplexity(logits, tokens):
    logits = torch.tensor(logits[:-1], dtype=torch.float64)
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(np.asarray(tokens[1:], dtype=np.int64))).exp())


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("mix", ("BF16", "Q8_0", "Q4_K_M"))
def test_llama_cpp_perplexity_matches_kvant(name, mix, llama, write, kvant, tmp_path):
    """The perplexity of what the file stands for: of its values put back into transformers."""
    directory = trained(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text = (REPO / "README.md").read_text()
    tokens = tokenizer(text)["input_ids"][:256]
    found = perplexity(llama_logits(llama, write(directory, mix), tokens), tokens)
    expected = perplexity(reference_logits(directory, tokens), tokens)
    assert found == pytest.approx(expected, rel={"BF16": 0.01, "Q8_0": 0.01, "Q4_K_M": 0.1}[mix])


@pytest.mark.parametrize("name", TRAINED)
def test_llama_cpp_tokenizes_identically(name, llama, write):
    directory = trained(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = llama.Llama(str(write(directory, "Q8_0")), n_ctx=64, verbose=False)
    for text in (*TEXTS, (REPO / "ARCHITECTURE.md").read_text()):
        assert model.tokenize(text.encode(), add_bos=True, special=True) == tokenizer(text)["input_ids"], text
    model.close()
