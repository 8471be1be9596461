"""Decoders as ONNX graphs: onnx.checker takes them, onnxruntime gives the logits of kvant's own forward, with and without a cache."""

import functools

import numpy as np
import onnx
import onnxruntime
import pytest

import forward_models
from test_forward import TRAINED, logits, trained  # noqa: F401 (a fixture)

SCHEMES = {
    "int4_wo_128": ("MatMulNBits",),
    "uint4_wo_128": ("MatMulNBits",),
    "int4:channel": ("MatMulNBits",),
    "int8:channel": ("MatMulNBits",),
    "int3:g64": ("MatMulNBits",),
    "int5:g32:zp": ("MatMulNBits",),
    "e4m3:channel": ("DequantizeLinear",),
    "mxfp4_weight_only": (),
}
# What the export has no nodes for, and the models that need it.
REFUSED = {
    "angles depend on the length of the text": ("llama_dynamic", "phi3_longrope", "hunyuan_moe", "hunyuan_alpha"),
    "linear attention (gated delta nets)": ("qwen3_next", "qwen3_next_one_head", "qwen3_next_interval", "qwen3_5", "qwen3_5_bias", "qwen3_5_heads", "olmo_hybrid", "olmo_hybrid_rotary",
                                            "qwen3_5_moe", "kimi_linear", "kimi_linear_groups", "bailing_hybrid", "bailing_hybrid_plain"),
    "linear attention (lightning attention)": ("minimax",),
    "residuals of norms": ("minimax_window",),
    "keys that are values, beside entries of tokens": ("deepseek_v4", "deepseek_v4_yarn"),
    "short convolutions": ("lfm2", "lfm2_bias", "lfm2_indices", "lfm2_moe", "lfm2_moe_plain", "lfm2_vl", "lfm3", "lfm3_plain"),
    "routing by the sigmoid of the experts with the largest corrected scores": ("kolibri1", "kolibri1_weighed"),
    "selective state-space layers": ("falcon_mamba", "jamba", "jamba_dense", "mamba", "mamba_bias"),
    "attention to keys that an indexer chooses": ("deepseek_v32", "glm_moe_dsa", "minimax_m3", "minimax_m3_local", "minimax_m3_vl"),
    "state-space layers": ("bamba", "bamba_bias", "falcon_h1", "falcon_h1_gated", "falcon_h1_plain", "granitemoehybrid", "granitemoehybrid_dense",
                           "mamba2", "mamba2_bias", "nemotron_h", "nemotron_h_dense"),
    "experts that join the stream behind a later block": ("longcat", "longcat_yarn"),
    "SparseMixer": ("phimoe", "phimoe_biases"),
    "groups of experts": ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "exaone_moe", "kimi_k25"),
    "gates on the outputs of heads": ("afmoe", "laguna", "laguna_elements"),
    "activation functions with learned parameters": ("apertus",),
    "norms before the output projection": ("bitnet",),
    "linear biases on the scores of attention": ("bloom", "bloom_heads", "falcon_alibi", "mpt", "mpt_heads"),
    "averages of routed and shared experts": ("cohere2_moe",),
    "routing by the sigmoid of the chosen experts": ("cohere2_moe_rms",),
    "routing by the corrected softmax of all experts": ("ernie4_5_moe",),
    "queries grouped with their keys in one matrix": ("falcon", "falcon_groups", "falcon_one_norm", "gpt_bigcode", "gpt_bigcode_heads"),
    "norms of values": ("gemma3n", "gemma3n_lanes", "gemma4", "gemma4_layer_inputs", "gemma4_moe", "gemma4_shared"),
    "attention in chunks": ("llama4", "llama4_dense"),
    "scaled values": ("mimo_v2_flash",),
    "queries that grow with their position": ("ministral3", "mistral4"),
    "clipped queries, keys and values": ("dbrx", "dbrx_norm", "dbrx_sums", "olmo_clipped"),
    "norms of queries and keys without weights": ("nanochat", "nanochat_capped"),
    "positions of sines and cosines": ("xglm", "xglm_unscaled"),
    "blocks without a token mixer": ("mllama", "mllama_text"),
}  # fmt: skip
REASONS = {name: reason for reason, names in REFUSED.items() for name in names}


@functools.cache
def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path, tokens, past=None):
    """Logits of tokens [sequences, length] behind a cache, and the cache."""
    graph = session(path)
    count, length = tokens.shape
    before = next(iter(past.values())).shape[2] if past else 0
    feed = {
        "input_ids": tokens.astype(np.int64),
        "attention_mask": np.ones((count, before + length), np.int64),
        "position_ids": np.tile(np.arange(before, before + length, dtype=np.int64), (count, 1)),
    }
    for each in graph.get_inputs():
        if each.name.startswith("past_key_values"):
            shape = (count, each.shape[1], 0, each.shape[3])
            feed[each.name] = past[each.name] if past else np.zeros(shape, np.float32)
    names = [each.name for each in graph.get_outputs()]
    found = dict(zip(names, graph.run(names, feed)))
    cache = {name.replace("present", "past_key_values"): value for name, value in found.items() if name != "logits"}
    return found["logits"], cache


def export(kvant, source, target):
    done = kvant("convert", source, "--to", "onnx", "-o", target)
    assert done.returncode == 0, done.stderr
    onnx.checker.check_model(str(target), full_check=True)
    return target


def assert_same(logits, directory, graph, tokens, tmp):
    expected = logits(directory, tokens, tmp)
    whole, _ = run(graph, tokens)
    limit = 2e-4 * np.abs(expected).max()
    assert np.abs(whole - expected).max() <= limit
    first, cache = run(graph, tokens[:, :17])
    second, cache = run(graph, tokens[:, 17:18], cache)
    rest, _ = run(graph, tokens[:, 18:], cache)
    assert np.abs(np.concatenate([first, second, rest], axis=1) - expected).max() <= limit


def tokens_for(graph, length, seed=1):
    vocabulary = next(each.shape[2] for each in session(graph).get_outputs() if each.name == "logits")
    return np.random.default_rng(seed).integers(0, vocabulary, (2, length))


# Deep ones have the same blocks as others, many times: onnxruntime takes half a minute to open one.
@pytest.mark.parametrize("name", [name for name in forward_models.MODELS if not name.endswith("_deep")])
def test_generated_float_graphs_match(name, kvant, logits, tmp_path):  # noqa: F811
    directory = forward_models.save(name, tmp_path / name)
    if reason := REASONS.get(name):
        done = kvant("convert", directory, "--to", "onnx", "-o", tmp_path / "model.onnx")
        assert done.returncode == 1 and "Kvant cannot write an ONNX graph" in done.stderr and reason in done.stderr, done.stderr
        return
    graph = export(kvant, directory, tmp_path / "model.onnx")
    assert_same(logits, directory, graph, tokens_for(graph, 96), tmp_path)


@pytest.mark.parametrize("name", TRAINED)
def test_trained_float_graphs_match(name, kvant, logits, tmp_path):  # noqa: F811
    graph = export(kvant, trained(name), tmp_path / "model.onnx")
    assert_same(logits, trained(name), graph, tokens_for(graph, 200), tmp_path)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ("nano_llama", "nano_qwen3", "nano_mixtral", "nano_opt", "nano_gemma2"))
def test_quantized_weight_graphs_match(name, scheme, kvant, logits, tmp_path):  # noqa: F811
    quantized = tmp_path / "quantized"
    done = kvant("quantize", trained(name), "--scheme", scheme, "--format", "compressed-tensors", "-o", quantized)
    if done.returncode == 1:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    graph = export(kvant, quantized, tmp_path / "model.onnx")
    operators = {node.op_type for node in onnx.load(graph, load_external_data=False).graph.node}
    assert set(SCHEMES[scheme]) <= operators
    assert_same(logits, quantized, graph, tokens_for(graph, 96), tmp_path)


# Inputs of layers, and nodes that quantize them in a block of Llama: q, k and v read the same, and gate and up.
ACTIVATIONS = {
    "int8": ("QuantizeLinear", 4),
    "int8:channel+uint8:tensor:zp!static": ("QuantizeLinear", 4),
    "int8:channel+uint8:channel@1:zp!static": ("QuantizeLinear", 4),
    "int8:tensor+int8:tensor!static+int8:tensor!static": ("QuantizeLinear", 4 + 7),
    "int4:g32+int8:tensor!static": ("QuantizeLinear", 4),
    "int4:g32+int16:tensor!static": ("QuantizeLinear", 4),
    "fp8": ("QuantizeLinear", 4),
    "int4:g32+e4m3:tensor!static": ("QuantizeLinear", 4),
    "int8:channel+uint8:tensor:zp!dynamic": ("DynamicQuantizeLinear", 4),
    "e4m3:channel+int8:tensor:zp!dynamic": ("DynamicQuantizeLinear", 4),
}


@pytest.mark.parametrize("scheme", ACTIVATIONS)
@pytest.mark.parametrize("name", ("nano_llama", "nano_opt", "nano_mixtral"))
def test_quantized_activation_graphs_match(name, scheme, kvant, logits, tmp_path):  # noqa: F811
    quantized, text = tmp_path / "quantized", tmp_path / "text.txt"
    text.write_text("The tower stood where the river turns, and nobody asked who had built it. " * 60)
    data = ("--calib", text, "--num-samples", "8", "--seq-len", "64")
    # int16 has no codes in a checkpoint: the graph is made of a fake-quantized one.
    done = kvant("quantize", trained(name), "--scheme", scheme, *data, "-o", quantized)
    assert done.returncode == 0, done.stderr
    graph = export(kvant, quantized, tmp_path / "model.onnx")
    made = onnx.load(graph, load_external_data=False).graph
    operator, count = ACTIVATIONS[scheme]
    found = sum(node.op_type == operator for node in made.node)
    assert found == 4 * count if name == "nano_llama" else found > 0
    tokens = tokens_for(graph, 64)[:1]
    expected, plain = logits(quantized, tokens, tmp_path), logits(trained(name), tokens, tmp_path)
    ours, _ = run(graph, tokens)
    # Mostly equal to the last digits; a value near the middle of two codes may go to either, which is still far from no quantization.
    error = lambda a, b: float(np.square(a - b).sum() / np.square(b).sum())
    assert error(ours, expected) < 0.2 * error(plain, expected)


def test_left_padding_changes_nothing(kvant, tmp_path):
    graph = export(kvant, trained("nano_llama"), tmp_path / "model.onnx")
    tokens = tokens_for(graph, 12)
    expected, _ = run(graph, tokens)
    padded = np.concatenate([np.zeros((2, 5), np.int64), tokens], axis=1)
    feed = {
        "input_ids": padded,
        "attention_mask": np.concatenate([np.zeros((2, 5), np.int64), np.ones((2, 12), np.int64)], axis=1),
        "position_ids": np.tile(np.maximum(np.arange(17) - 5, 0), (2, 1)),
    }
    for each in session(graph).get_inputs():
        if each.name.startswith("past_key_values"):
            feed[each.name] = np.zeros((2, each.shape[1], 0, each.shape[3]), np.float32)
    found = session(graph).run(["logits"], feed)[0][:, 5:]
    assert np.abs(found - expected).max() <= 2e-4 * np.abs(expected).max()
