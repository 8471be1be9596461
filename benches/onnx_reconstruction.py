#!/usr/bin/env python3
"""Times AdaRound and AdaQuant of a ResNet-50 beside amd-quark on torch: same data, iterations, batches and threads, in one run.

    python benches/onnx_reconstruction.py --quark PYTHON [--kvant target/release/kvant] [--images 32] [--iterations 50] [--threads 2]

PYTHON has the packages of tests/interop/requirements.txt; it makes the model and the pictures, and runs Quark. What counts are
the ratios of the whole commands. The rows `plain` are the same without an algorithm: what is above them is the algorithm's own
share. The last column is the SQNR of the quantized model's outputs on pictures that were not calibrated with.
`--cache FILE` keeps Quark's numbers, so that later runs need not repeat them; they are then of another run, and are marked.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from onnx_calibration import IMPORTS, INTEROP, environment, keep, measure, on_threads

PREPARE = """
import sys
sys.path.insert(0, sys.argv[1])
import pathlib, numpy, onnx_data, onnx_models
here = pathlib.Path(sys.argv[2])
if not (here / "resnet50_224.onnx").exists():
    onnx_models.make("resnet50_224", here)
pictures = onnx_data.pictures(int(sys.argv[3]) + 8, 224, seed=9)
numpy.savez(here / f"pictures-{sys.argv[3]}.npz", image=pictures[:-8])
numpy.savez(here / f"held-out-{sys.argv[3]}.npz", image=pictures[-8:])
"""

QUARK = """
import sys
import numpy
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import AdaQuantConfig, AdaRoundConfig, CalibMethod, Int8Spec, ModelQuantizer, QConfig, QLayerConfig
model, data, out, algorithm, iterations = sys.argv[1:]

class Reader(CalibrationDataReader):
    def __init__(self):
        self.images = numpy.load(data)["image"]
        self.rest = iter(self.images)
    def get_next(self):
        image = next(self.rest, None)
        return None if image is None else {"image": image[None]}
    def rewind(self):
        self.rest = iter(self.images)
    def __len__(self):
        return len(self.images)

kinds = {"adaround": AdaRoundConfig, "adaquant": AdaQuantConfig}
algorithms = [kinds[algorithm](num_iterations=int(iterations), early_stop=False)] if algorithm in kinds else None
layer = QLayerConfig(input_tensors=Int8Spec(calibration_method=CalibMethod.MinMax), weight=Int8Spec())
ModelQuantizer(QConfig(layer, algo_config=algorithms)).quantize_model(model, out, Reader())
"""

SQNR = """
import sys
sys.path.insert(0, sys.argv[1])
import onnx_oracle
print(min(onnx_oracle.sqnr(*sys.argv[2:]).values()))
"""

ALGORITHMS = ("plain", "adaround", "adaquant")


def contestants(a, directory, work):
    """(algorithm, who, command, output)"""
    model, data = directory / "resnet50_224.onnx", directory / f"pictures-{a.images}.npz"
    for algorithm in a.algorithms:
        asked = [] if algorithm == "plain" else ["--algorithm", f"{algorithm}:num_iterations={a.iterations}:early_stop=off"]
        for runtime in a.runtimes:
            out = Path(work) / f"kvant-{runtime}-{algorithm}.onnx"
            command = [a.kvant, "quantize", model, "--preset", "A8W8", "--calibration-method", "minmax", *asked, "--data", data, "--runtime", runtime, "--threads", a.threads, "-o", out, "--overwrite"]
            yield algorithm, f"kvant {runtime}", on_threads(a, command), out
        if a.quark:
            out = Path(work) / f"quark-{algorithm}.onnx"
            yield algorithm, "quark", on_threads(a, [a.quark, "-c", QUARK, model, data, out, algorithm, a.iterations]), out


def run(a, directory, work):
    """{(algorithm, who): numbers}"""
    kept = json.loads(Path(a.cache).read_text()) if a.cache and Path(a.cache).exists() else {}
    found = {}
    for algorithm, who, command, out in contestants(a, directory, work):
        text = f"{a.threads} threads, {a.images} images, {algorithm}, {a.iterations} iterations"
        if who == "quark" and text in kept:
            found[algorithm, who] = kept[text] | {"cached": True}
            continue
        numbers = measure(command, environment(a), work)
        numbers["sqnr"] = sqnr(a, directory, out)
        print(f"{algorithm} {who}: {numbers}", file=sys.stderr, flush=True)
        found[algorithm, who] = numbers
        if who == "quark":
            keep(a.cache, text, numbers)
    return found


def sqnr(a, directory, out):
    """dB on pictures that were held out."""
    if not a.quark:
        return float("nan")
    command = [a.quark, "-c", SQNR, INTEROP, directory / "resnet50_224.onnx", out, directory / f"held-out-{a.images}.npz"]
    done = subprocess.run([str(c) for c in command], env=environment(a), capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def show(found):
    print(f"{'':10} {'':12} {'wall s':>8} {'proc. s':>8} {'RSS MB':>8} {'SQNR':>7}   quark / this: wall, proc., RSS; algorithm alone: wall, proc.")
    for (algorithm, who), f in found.items():
        line = f"{algorithm:10} {who:12} {f['wall_s']:8.1f} {f['processor_s']:8.1f} {f['resident_mb']:8.0f} {f['sqnr']:7.2f}"
        if (quark := found.get((algorithm, "quark"))) and who != "quark":
            line += "   " + ", ".join(f"{quark[k] / f[k]:.2f}" for k in ("wall_s", "processor_s", "resident_mb"))
            line += alone(found, algorithm, who)
        print(line + (" (of another run)" if f.get("cached") else ""))


def alone(found, algorithm, who):
    """The ratios of what the algorithm adds to a plain run."""
    plain, of_quark = found.get(("plain", who)), found.get(("plain", "quark"))
    if algorithm == "plain" or not plain or not of_quark:
        return ""
    share = lambda name, base, k: found[algorithm, name][k] - base[k]  # noqa: E731
    ratios = (share("quark", of_quark, k) / max(share(who, plain, k), 1e-3) for k in ("wall_s", "processor_s"))
    return "; " + ", ".join(f"{ratio:.2f}" for ratio in ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quark", help="a Python with amd-quark; makes the model too")
    parser.add_argument("--kvant", default="target/release/kvant", type=lambda p: Path(p).resolve())
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), type=lambda s: s.split(","))
    parser.add_argument("--runtimes", default="ort,rten", type=lambda s: [r for r in s.split(",") if r], help="of kvant; empty: none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", help="a JSON file that keeps Quark's numbers")
    parser.add_argument("--models", help="a directory that keeps the model and the pictures")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        directory = Path(a.models or work).resolve()
        prepare = [a.quark or sys.executable, "-c", PREPARE, INTEROP, directory, a.images]
        subprocess.run([str(c) for c in prepare], check=True, env=environment(a))
        if a.quark:
            measure([a.quark, "-c", IMPORTS], environment(a), work)  # the first import compiles, so before anything counts
        found = run(a, directory, work)
    if a.json:
        print(json.dumps([dict(algorithm=g, who=w, **f) for (g, w), f in found.items()], indent=1))
    else:
        show(found)


if __name__ == "__main__":
    main()
