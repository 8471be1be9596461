#!/usr/bin/env python3
"""What each algorithm wins back on ONNX graphs, beside amd-quark with the same algorithm and data.

    PATH=... python benches/onnx_algorithms.py WORK [--kvant target/release/kvant] [--nets a,b] [--digits DIRECTORY] [--cache FILE]

runs in the environment of tests/interop/requirements.txt. WORK keeps trained networks and quantized models. Each cell is
top-1 in percent and SQNR in dB of the first output on pictures that were not calibrated on; MiniLM's is the mean cosine of
sentence embeddings to the float ones, and the share of sentences whose nearest other is the same. `--cache FILE` keeps
Quark's cells, so that later runs need not repeat hours of them; they are then of another run. `--digits` names a directory
with `digits_mobilenet.onnx` and `digits_resnet.onnx`, `calib.npz` and `test.npz`.
"""

import argparse
import json
import pathlib
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "interop"))

import numpy as np  # noqa: E402

import onnx_digits  # noqa: E402
import onnx_models  # noqa: E402
import onnx_oracle  # noqa: E402

# scheme -> options of kvant, preset of Quark (which has no weights of four bits)
SCHEMES = {
    "W8A8": ([], "A8W8"),
    "W8A8 per channel": (["--per-channel"], "channel:A8W8"),
    "W4A8": (["--weight", "int4"], None),
    "W4A8 per channel": (["--weight", "int4", "--per-channel"], None),
}
ALGORITHMS = ["", "cle", "bias-correction", "smoothquant", "gptq", "adaround", "adaquant", "cle,bias-correction", "cle,gptq,bias-correction"]
CLASSIFIERS, ENCODERS = ("digits_mobilenet", "digits_relu6", "digits_resnet", "digits_transformer"), ("minilm",)


def classes(model, path, test):
    """top-1 in percent, SQNR in dB"""
    found = onnx_oracle.sqnr(model, path, test)
    return f"{100 * onnx_oracle.accuracy(path, test, 'label'):.1f} % {next(iter(found.values())):.1f} dB"


def embeddings(path, test):
    """Means of the hidden states that the mask leaves, of length one."""
    feeds = onnx_oracle.samples(test)
    hidden = next(iter(onnx_oracle.outputs(path, feeds).values()))
    masks = np.stack([feed["attention_mask"] for feed in feeds])[..., None]
    means = (hidden * masks).sum(2) / masks.sum(2)
    means = means.reshape(len(means), -1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def nearest(vectors):
    return (vectors @ vectors.T - 2 * np.eye(len(vectors))).argmax(1)


def sentences(model, path, test):
    """mean cosine to the float embedding, share of sentences whose nearest other is the same"""
    reference, found = embeddings(model, test), embeddings(path, test)
    return f"{(reference * found).sum(1).mean():.4f}, {100 * (nearest(reference) == nearest(found)).mean():.0f} %"


def net(name, work, digits):
    """(model, calibration data, test data, what to measure)"""
    if name in onnx_digits.NETS:
        return *onnx_digits.make(name, work / "models"), classes
    if name in ENCODERS:
        model = onnx_models.make(name, work / "models")
        return model, model.with_suffix(".calib.npz"), model.with_suffix(".test.npz"), sentences
    return digits / f"{name}.onnx", digits / "calib.npz", digits / "test.npz", classes


def kvant(binary, model, calib, out, options, algorithms):
    command = [binary, "quantize", model, "--preset", "A8W8", "--data", calib, "-o", out, "--overwrite", *options]
    command += ["--algorithm", algorithms] if algorithms else []
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[0][:60]


def ours(a, name, scheme, algorithms):
    if not a.kvant.exists():
        return "–"
    model, calib, test, measure = net(name, a.work, a.digits)
    out = a.work / f"{name}-{scheme}-{algorithms or 'plain'}.onnx".replace(" ", "_").replace(",", "_")
    wrong = kvant(a.kvant, model, calib, out, SCHEMES[scheme][0], algorithms)
    return wrong or measure(model, out, test)


def quarks(a, name, scheme, algorithms, cache):
    preset = SCHEMES[scheme][1]
    key = f"{name} {scheme} {algorithms}"
    if preset is None or a.no_quark and key not in cache:
        return "–"
    if key not in cache:
        model, calib, test, measure = net(name, a.work, a.digits)
        try:
            made = onnx_oracle.quantize("quark", "+".join([preset, *filter(None, algorithms.split(","))]), model, calib, a.work / "oracle")
            cache[key] = measure(model, made, test)
        except Exception as error:  # also models that do not run
            cache[key] = "fails: " + str(error).splitlines()[0][:50].replace("|", "/")
        if a.cache:
            a.cache.write_text(json.dumps(cache, indent=1))
    return cache[key]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--kvant", type=pathlib.Path, default=REPO / "target" / "release" / "kvant")
    parser.add_argument("--nets", default=",".join(CLASSIFIERS))
    parser.add_argument("--schemes", default=";".join(SCHEMES), help="separated by ;")
    parser.add_argument("--algorithms", default=";".join(ALGORITHMS), help="lists separated by ;")
    parser.add_argument("--digits", type=pathlib.Path, default=REPO.parent / "shared" / "models" / "digits")
    parser.add_argument("--cache", type=pathlib.Path)
    parser.add_argument("--no-quark", action="store_true", help="only what lies in the cache")
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    cache = json.loads(a.cache.read_text()) if a.cache and a.cache.exists() else {}
    for name in a.nets.split(","):
        model, _, test, measure = net(name, a.work, a.digits)
        print(f"\n{name}, float: {measure(model, model, test)}\n", flush=True)
        schemes = a.schemes.split(";")
        heads = [title for s in schemes for title in ([s, "Quark"] if SCHEMES[s][1] else [s])]
        print("| | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|", flush=True)
        for algorithms in a.algorithms.split(";"):
            cells = []
            for scheme in schemes:
                cells.append(ours(a, name, scheme, algorithms))
                if SCHEMES[scheme][1]:
                    cells.append(quarks(a, name, scheme, algorithms, cache))
            print(f"| {algorithms or 'plain'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
