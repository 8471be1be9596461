#!/usr/bin/env python3
"""What each algorithm wins back on ONNX graphs, beside amd-quark with the same algorithm and data.

    PATH=... python benches/onnx_algorithms.py WORK [--kvant target/release/kvant] [--nets a,b] [--digits DIRECTORY] [--cache FILE]

runs in the environment of tests/interop/requirements.txt. WORK keeps trained networks and quantized models. Each cell is
top-1 in percent and SQNR in dB of the first output on pictures that were not calibrated on. AdaRound and AdaQuant run as many
iterations on both sides (`--iterations`), without early stop. `--cache FILE` keeps cells, Kvant's by the bytes of its binary,
so that later runs need not repeat hours of them; they are then of another run. `--digits` names a directory with
`digits_mobilenet.onnx` and `digits_resnet.onnx`, `calib.npz` and `test.npz`. `onnx_embeddings.py` does the same for MiniLM.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import pathlib
import subprocess
import sys
import typing

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "interop"))

import onnx_digits  # noqa: E402
import onnx_oracle  # noqa: E402

# scheme -> options of kvant, style and preset of Quark (which has no weights of four bits)
SCHEMES = {
    "W8A8": ([], "A8W8"),
    "W8A8 per channel": (["--per-channel"], "channel:A8W8"),
    "W4A8": (["--weight", "int4"], None),
    "W4A8 per channel": (["--weight", "int4", "--per-channel"], None),
}
ALGORITHMS = ["", "cle", "bias-correction", "adaround", "adaquant", "smoothquant", "gptq", "gptaq", "qronos", "weights-only,gptq", "cle,bias-correction", "cle,gptq,bias-correction", "smoothquant,gptq"]
# What Quark has: its GPTQ leaves activations in float.
QUARK = ["", "cle", "bias-correction", "adaround", "adaquant", "smoothquant", "weights-only,gptq"]
TRAINED = ("adaround", "adaquant")
WEIGHTS_ONLY = "weights-only"  # stands in lists of algorithms, but is an option
CLASSIFIERS = ("digits_mobilenet", "digits_relu6", "digits_resnet", "digits_transformer")
NOT_RUN = "–"


@dataclasses.dataclass(frozen=True)
class Net:
    """A float model with its data, and `measure(path of a quantized model)`, which gives the text of a cell."""

    name: str
    model: pathlib.Path
    calib: pathlib.Path
    measure: typing.Callable[[pathlib.Path], str]
    style: str = ""  # before presets of Quark
    options: tuple = ()  # of kvant


def classifier(name, work, digits):
    if name in onnx_digits.NETS:
        model, calib, test = onnx_digits.make(name, work / "models")
    else:
        model, calib, test = digits / f"{name}.onnx", digits / "calib.npz", digits / "test.npz"

    def classes(path):
        found = onnx_oracle.sqnr(model, path, test)
        return f"{100 * onnx_oracle.accuracy(path, test, 'label'):.1f} % {next(iter(found.values())):.1f} dB"

    return Net(name, model, calib, classes)


class Cache:
    """Cells by what they are of, in a JSON file that is written after each."""

    def __init__(self, path):
        self.path = path
        self.cells = json.loads(path.read_text()) if path and path.exists() else {}

    def cell(self, key, make):
        if key in self.cells:
            return self.cells[key]
        made = make()
        if made != NOT_RUN:
            self.cells[key] = made
            if self.path:
                self.path.write_text(json.dumps(self.cells, indent=1, ensure_ascii=False))
        return made


def said(error):
    return "fails: " + str(error).strip().splitlines()[0][:60].replace("|", "/")


@functools.lru_cache
def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def training(algorithms, iterations):
    """(of kvant, of the oracle): algorithms with the iterations of those that are trained"""
    names = [name for name in algorithms.split(",") if name not in ("", WEIGHTS_ONLY)]
    ours = [f"{name}:num_iterations={iterations}:early_stop=off" if name in TRAINED else name for name in names]
    theirs = [f"{name}={iterations}" if name in TRAINED else name for name in names]
    return ours, theirs


def kvant(a, net, scheme, algorithms):
    out = a.work / f"{net.name}-{scheme}-{algorithms or 'plain'}.onnx".replace(" ", "_").replace(",", "_")
    asked, _ = training(algorithms, a.iterations)
    command = [a.kvant, "quantize", net.model, "--preset", "A8W8", "--data", net.calib, "--threads", a.threads, "-o", out, "--overwrite", *SCHEMES[scheme][0], *net.options]
    command += ["--algorithm", ",".join(asked)] if asked else []
    command += ["--weights-only"] if WEIGHTS_ONLY in algorithms else []
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    return net.measure(out) if done.returncode == 0 else said(done.stderr)


def quark(a, net, scheme, algorithms):
    _, asked = training(algorithms, a.iterations)
    preset = "+".join([net.style + SCHEMES[scheme][1], *asked])
    try:
        return net.measure(onnx_oracle.quantize("quark", preset, net.model, net.calib, a.work / "oracle", timeout=a.timeout))
    except subprocess.TimeoutExpired:
        return NOT_RUN
    except Exception as error:  # also models that do not run
        return said(error)


def cells(a, cache, net, scheme, algorithms):
    """Kvant's and, where there is such a thing, Quark's."""
    key = f"{net.name} {scheme} {algorithms}" + (f" {a.iterations}" if set(algorithms.split(",")) & set(TRAINED) else "")
    yield cache.cell(f"kvant {digest(a.kvant)} {key}", lambda: kvant(a, net, scheme, algorithms)) if a.kvant.exists() else NOT_RUN
    if SCHEMES[scheme][1]:
        missing = algorithms not in a.quark or f"quark {key}" not in cache.cells and a.no_quark
        yield NOT_RUN if missing else cache.cell(f"quark {key}", lambda: quark(a, net, scheme, algorithms))


def table(a, cache, net):
    heads = [title for s in a.schemes for title in ([s, "Quark"] if SCHEMES[s][1] else [s])]
    print(f"\n{net.name}, float: {net.measure(net.model)}\n\n| | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|", flush=True)
    for algorithms in a.algorithms:
        row = [cell for scheme in a.schemes for cell in cells(a, cache, net, scheme, algorithms)]
        print(f"| {algorithms or 'plain'} | " + " | ".join(row) + " |", flush=True)


def arguments(description, algorithms, quark, iterations):
    """A parser of what all benchmarks of this kind are asked."""
    lists = dict(type=lambda text: text.split(";"), help="separated by ;")
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--kvant", type=lambda path: pathlib.Path(path).resolve(), default=REPO / "target" / "release" / "kvant")
    parser.add_argument("--schemes", default=";".join(SCHEMES), **lists)
    parser.add_argument("--algorithms", default=";".join(algorithms), **lists)
    parser.add_argument("--quark", default=";".join(quark), type=lists["type"], help="algorithms to compare, separated by ;")
    parser.add_argument("--iterations", type=int, default=iterations, help="of AdaRound and AdaQuant")
    parser.add_argument("--threads", type=int, default=1, help="of kvant; OMP_NUM_THREADS is Quark's")
    parser.add_argument("--timeout", type=float, help="seconds that a cell of Quark may take")
    parser.add_argument("--cache", type=pathlib.Path)
    parser.add_argument("--no-quark", action="store_true", help="only what lies in the cache")
    return parser


def main():
    parser = arguments(__doc__, ALGORITHMS, QUARK, 500)
    parser.add_argument("--nets", default=",".join(CLASSIFIERS))
    parser.add_argument("--digits", type=pathlib.Path, default=REPO.parent / "shared" / "models" / "digits")
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    cache = Cache(a.cache)
    for name in a.nets.split(","):
        table(a, cache, classifier(name, a.work, a.digits))


if __name__ == "__main__":
    main()
