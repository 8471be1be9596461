"""`kvant eval` of decoders as ONNX graphs on text: beside the checkpoint, and beside the logits of onnxruntime and transformers."""

import functools
import json
import math
import pathlib
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from onnx import TensorProto

import onnx_decoders

WINDOW = 96
TEXT = ("A graph is evaluated on the text that its checkpoint would be evaluated on, in the same windows, and what is measured has to "
        "be the same to the digits that the order of sums leaves. Whoever exports a model wants to see just that. ") * 8  # fmt: skip
RUNTIMES = ("ort", "rten")
SHAPES = ("perplexity", "tokens", "windows", "seq_len")
DISTANCES = ("reference_perplexity", "perplexity_ratio", "top1_agreement")
# Presets that quantize what caches hold.
CACHED = ("A8W8", "A16W8", "XINT8", "S8S8_AAWS", "U8S8_AAWS", "U16S8_AAWS", "INT8_CNN_DEFAULT", "INT16_CNN_DEFAULT")
KINDS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@pytest.fixture(scope="module")
def place(module_path):
    directory = module_path("decoders")
    (directory / "text.txt").write_text(TEXT)
    return directory


@pytest.fixture(scope="module")
def evaluated(kvant, kvant_onnx, place):  # which finds the library of onnxruntime
    """evaluated(model, *options) -> the object that `kvant eval --json` prints."""

    def run(model, *options):
        done = kvant("eval", model, "--data", place / "text.txt", "--seq-len", WINDOW, "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def graph(kvant, model_dir, place):
    """graph(checkpoint) -> its graph, beside its tokenizer, which every graph of the directory takes."""

    def run(directory, name):
        target = place / name / "model.onnx"
        if not target.exists():
            target.parent.mkdir()
            shutil.copy(pathlib.Path(directory) / "tokenizer.json", target.parent)
            done = kvant("convert", directory, "--to", "onnx", "-o", target)
            assert done.returncode == 0, done.stderr
        return target

    return run


def assert_close(found, expected, names, limit):
    for name in names:
        assert math.isclose(found[name], expected[name], rel_tol=limit), (name, found[name], expected[name])


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", ("nano_llama", "nano_qwen3", "nano_opt", "nano_gemma2", "nano_mixtral"))
def test_float_graph_has_the_perplexity_of_its_checkpoint(name, runtime, model_dir, graph, evaluated):
    exported = graph(model_dir(name), name)
    assert_close(evaluated(exported, "--runtime", runtime), evaluated(model_dir(name)), SHAPES, 1e-5)
    strided = ("--stride", 40)
    assert_close(evaluated(exported, "--runtime", runtime, *strided), evaluated(model_dir(name), *strided), SHAPES, 1e-5)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("scheme", ("int4_wo_32", "int8:channel", "mxfp4_weight_only"))
def test_quantized_graph_has_the_distance_of_its_checkpoint(scheme, runtime, model_dir, quantized, graph, evaluated):
    original, changed = model_dir("nano_llama"), quantized("nano_llama", scheme, "--format", "compressed-tensors")
    reference, exported = graph(original, "nano_llama"), graph(changed, scheme.replace(":", "_"))
    found = evaluated(exported, "--reference", reference, "--runtime", runtime)
    expected = evaluated(changed, "--reference", original)
    assert_close(found, expected, SHAPES + DISTANCES, 1e-4)
    # Differences in the last digits of logits are a larger share of a small divergence.
    assert_close(found, expected, ("kl_mean", "kl_mean_error", "kl_p99"), 1e-2)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_export_of_another_tool_has_the_perplexity_of_transformers(runtime, model_dir, place, evaluated):
    directory = model_dir("nano_llama")
    target = place / "optimum" / "onnx" / "model.onnx"
    if not target.exists():
        target.parent.mkdir(parents=True)
        # The tokenizer lies in the directory above, as exporters for browsers place it.
        shutil.copy(directory / "tokenizer.json", target.parents[1])
        onnx_decoders.export(directory, target)
    ids = torch.tensor(transformers.AutoTokenizer.from_pretrained(directory)(TEXT).input_ids)
    rows = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(rows).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    found = evaluated(target, "--runtime", runtime)
    assert math.isclose(found["perplexity"], math.exp(loss), rel_tol=1e-5)


def test_graph_of_onnxruntime_genai_has_the_perplexity_of_its_logits(model_dir, place, evaluated):
    directory = model_dir("nano_llama")
    target = onnx_decoders.genai(place / "genai.onnx", 2048)
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    ids = np.array(transformers.AutoTokenizer.from_pretrained(directory)(TEXT).input_ids)
    losses = []
    for row in ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW):
        empty = np.zeros((1, 2, 0, 16), np.float16)
        feed = {"input_ids": row[None], "attention_mask": np.ones((1, WINDOW), np.int64)}
        feed |= {f"past_key_values.0.{part}": empty for part in ("key", "value")}
        logits = torch.tensor(session.run(["logits"], feed)[0][0, :-1].astype(np.float32))
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:])).item())
    found = evaluated(target, "--tokenizer", directory, "--runtime", "ort")
    assert math.isclose(found["perplexity"], math.exp(np.mean(losses)), rel_tol=1e-5)


@functools.cache
def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def likelihoods(path, row, ends):
    """The logarithms of probabilities of each next token, of tokens that are run up to each end behind the cache of those before."""
    graph, cache, found = session(path), {}, []
    inputs, outputs = graph.get_inputs(), [each.name for each in graph.get_outputs()]
    for each in inputs[1:]:
        if each.name.startswith("past"):
            shape = [size if isinstance(size, int) else int(size.startswith("batch")) for size in each.shape]
            cache[each.name] = np.zeros(shape, KINDS[each.type])
    for start, end in zip((0, *ends), ends):
        known = {
            "input_ids": row[None, start:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(start, end)[None],
        }
        made = dict(zip(outputs, graph.run(outputs, {each.name: (known | cache)[each.name] for each in inputs})))
        cache = {name: made[name.replace("past_key_values", "present")] for name in cache}
        found.append(torch.tensor(made["logits"][0].astype(np.float32)))
    return torch.cat(found).log_softmax(-1)


def divergence(reference, path, rows, ends):
    """The mean Kullback-Leibler divergence of a graph from its float graph, whose tokens are run at once."""
    kl = lambda p, q: (p.exp() * (p - q)).sum(-1)
    return torch.cat([kl(likelihoods(reference, row, (WINDOW,)), likelihoods(path, row, ends)) for row in rows]).mean().item()


def assert_cache_costs_nothing(kvant, directory, source, preset, evaluated):
    """A graph is as near to its float graph with a filled cache as without one, and `kvant eval` measures that."""
    made = source.with_name(f"{source.stem}-{preset}.onnx")
    data = ("--data", source.parents[1] / "text.txt", "--seq-len", WINDOW, "--num-samples", 3)
    done = kvant("quantize", source, "--preset", preset, *data, "-o", made)
    assert done.returncode == 0, done.stderr
    ids = np.array(transformers.AutoTokenizer.from_pretrained(directory)(TEXT).input_ids)
    rows = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    whole = divergence(source, made, rows, (WINDOW,))
    half = divergence(source, made, rows, (WINDOW // 2, WINDOW))
    # What was cached is cached again with each token.
    steps = divergence(source, made, rows, (WINDOW // 2, *range(WINDOW // 2 + 1, WINDOW + 1)))
    assert max(half, steps) <= 1.1 * whole + 1e-4, (whole, half, steps)
    assert math.isclose(evaluated(made, "--reference", source)["kl_mean"], half, rel_tol=0.05, abs_tol=1e-4)


@pytest.mark.parametrize("preset", CACHED)
def test_filled_cache_costs_nothing(preset, kvant, model_dir, graph, evaluated):
    directory = model_dir("nano_llama")
    assert_cache_costs_nothing(kvant, directory, graph(directory, "nano_llama"), preset, evaluated)


@pytest.mark.parametrize("preset", ("A8W8", "A16W8", "U8S8_AAWS"))
def test_filled_cache_of_half_precision_costs_nothing(preset, kvant, model_dir, place, evaluated):
    directory = model_dir("nano_llama")
    target = place / "half" / "model.onnx"
    if not target.exists():
        target.parent.mkdir()
        shutil.copy(directory / "tokenizer.json", target.parent)
        onnx_decoders.export(directory, target, torch.float16)
    assert_cache_costs_nothing(kvant, directory, target, preset, evaluated)


@pytest.mark.parametrize("kind", (TensorProto.FLOAT, TensorProto.FLOAT16))
@pytest.mark.parametrize("operator", ("GroupQueryAttention", "MultiHeadAttention", "Attention"))
def test_filled_cache_of_fused_attention_costs_nothing(operator, kind, kvant, model_dir, place, evaluated):
    directory = model_dir("nano_llama")
    target = place / f"{operator}-{kind}" / "model.onnx"
    target.parent.mkdir()
    shutil.copy(directory / "tokenizer.json", target.parent)
    onnx_decoders.genai(target, 2048, kind, operator=operator)
    assert_cache_costs_nothing(kvant, directory, target, "A8W8", evaluated)
