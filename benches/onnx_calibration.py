#!/usr/bin/env python3
"""Times the whole quantization of a ResNet-50 by calibration method, beside amd-quark, in one run.

    python benches/onnx_calibration.py --quark PYTHON [--kvant target/release/kvant] [--images 32,128] [--threads 2]

PYTHON has the packages of tests/interop/requirements.txt; it makes the model and the pictures, and runs Quark. What counts
are the ratios: contestants take turns within a round, and of several rounds the best is taken. Times are of child processes
from start to end: for Quark also of its imports, which are shown on a line of their own.
`--cache FILE` keeps Quark's numbers, so that later runs need not repeat them; they are then of another run, and are marked.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

INTEROP = Path(__file__).resolve().parents[1] / "tests" / "interop"

# method -> options of kvant (the preset that Quark's configuration below amounts to)
METHODS = {
    "MinMax": ["--preset", "A8W8", "--calibration-method", "minmax"],
    "Percentile": ["--preset", "A8W8", "--calibration-method", "percentile"],
    "Entropy": ["--preset", "A8W8", "--calibration-method", "entropy"],
    "MinMSE": ["--preset", "XINT8", "--calibration-method", "minmse"],
}

PREPARE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy, onnx_data, onnx_models
onnx_models.make("resnet50_224", sys.argv[2])
for count in map(int, sys.argv[3].split(",")):
    numpy.savez(f"{sys.argv[2]}/pictures-{count}.npz", image=onnx_data.pictures(count, 224, seed=9))
"""

IMPORTS = "import quark.onnx"

QUARK = """
import sys
import numpy
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import CalibMethod, Int8Spec, ModelQuantizer, QConfig, QLayerConfig, XInt8Spec
model, data, out, method = sys.argv[1:]

class Reader(CalibrationDataReader):
    def __init__(self):
        self.rest = iter(numpy.load(data)["image"])
    def get_next(self):
        image = next(self.rest, None)
        return None if image is None else {"image": image[None]}

if method == "MinMSE":
    layer = QLayerConfig(input_tensors=XInt8Spec(), weight=XInt8Spec())
else:
    layer = QLayerConfig(input_tensors=Int8Spec(calibration_method=getattr(CalibMethod, method)), weight=Int8Spec())
ModelQuantizer(QConfig(layer)).quantize_model(model, out, Reader())
"""


class Peak(threading.Thread):
    """Follows the resident and the private memory of a process and its children, in bytes."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.resident, self.private = pid, 0, 0

    def family(self, pid):
        yield pid
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                for child in (task / "children").read_text().split():
                    yield from self.family(int(child))
        except OSError:
            return

    def sample(self):
        resident = private = 0
        for pid in self.family(self.pid):
            try:
                fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                resident += int(fields["VmRSS"].split()[0]) * 1024
                private += int(fields["RssAnon"].split()[0]) * 1024
            except (OSError, KeyError):
                continue
        self.resident, self.private = max(self.resident, resident), max(self.private, private)

    def run(self):
        while Path(f"/proc/{self.pid}").exists():
            self.sample()
            time.sleep(0.02)


def measure(command, environment, work):
    """{wall_s, processor_s, resident_mb, private_mb} of a command and all its children."""
    start = time.perf_counter()
    with open(Path(work) / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=work)
        peak = Peak(process.pid)
        peak.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    peak.join()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))[-300:]} failed:\n{(Path(work) / 'log').read_text()[-2000:]}")
    resident = max(peak.resident, usage.ru_maxrss * 1024)
    return dict(wall_s=wall, processor_s=usage.ru_utime + usage.ru_stime, resident_mb=resident / 1e6, private_mb=peak.private / 1e6)


def environment(a):
    """Both sides get the same number of threads; no optional downloads, no compilation of kernels."""
    path = f"{Path(a.quark).parent}{os.pathsep}{os.environ['PATH']}" if a.quark else os.environ["PATH"]
    library = ort_library(a)
    found = dict(os.environ, OMP_NUM_THREADS=str(a.threads), QUARK_DISABLE_COMPILE="1", HF_HUB_OFFLINE="1", PATH=path)
    found.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    return found | ({"ORT_DYLIB_PATH": library} if library else {})


def ort_library(a):
    found = sorted(Path(a.quark).parents[1].glob("lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so*")) if a.quark else []
    return os.environ.get("ORT_DYLIB_PATH") or (str(found[0]) if found else None)


def on_threads(a, command):
    """Quark's onnxruntime sessions take as many threads as there are processors it may run on."""
    return ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[: a.threads])), *map(str, command)]


def contestants(a, directory, work):
    """(images, method, who, command)"""
    model = directory / "resnet50_224.onnx"
    for images in a.images:
        data = directory / f"pictures-{images}.npz"
        for method in a.methods:
            for runtime in a.runtimes:
                out = Path(work) / "kvant.onnx"
                command = [a.kvant, "quantize", model, *METHODS[method], "--data", data, "--runtime", runtime, "--threads", a.threads, "-o", out, "--overwrite"]
                yield images, method, f"kvant {runtime}", on_threads(a, command)
            if a.quark:
                yield images, method, "quark", on_threads(a, [a.quark, "-c", QUARK, model, data, Path(work) / "quark.onnx", method])


def run(a, directory, work):
    """{(images, method, who): best of the rounds}, and the keys whose numbers come from the cache."""
    kept = json.loads(Path(a.cache).read_text()) if a.cache and Path(a.cache).exists() else {}
    best, cached = {}, set()
    for round_number in range(a.rounds):
        for images, method, who, command in contestants(a, directory, work):
            key, text = (images, method, who), f"{a.threads} threads, {images} images, {method}"
            if who == "quark" and round_number:
                continue
            if who == "quark" and text in kept:
                best[key] = kept[text]
                cached.add(key)
                continue
            found = measure(command, environment(a), work)
            print(f"{images} {method} {who}: {found}", file=sys.stderr, flush=True)
            best[key] = min((found, best.get(key, found)), key=lambda f: f["processor_s"])
            if who == "quark":
                keep(a.cache, text, found)
    return best, cached


def keep(cache, text, found):
    """Adds one of Quark's numbers to the cache at once: a run may be ended early."""
    if cache:
        path = Path(cache)
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | {text: found}, indent=1))


def show(best, cached):
    print(f"{'images':>6} {'method':12} {'':12} {'wall s':>8} {'proc. s':>8} {'RSS MB':>8} {'priv. MB':>8}   quark / this: wall, proc., RSS")
    for (images, method, who), f in best.items():
        line = f"{images:6} {method:12} {who:12} {f['wall_s']:8.1f} {f['processor_s']:8.1f} {f['resident_mb']:8.0f} {f['private_mb']:8.0f}"
        if (quark := best.get((images, method, "quark"))) and who != "quark":
            line += "   " + ", ".join(f"{quark[k] / f[k]:.2f}" for k in ("wall_s", "processor_s", "resident_mb"))
        print(line + (" (of another run)" if (images, method, who) in cached else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quark", help="a Python with amd-quark; makes the model too")
    parser.add_argument("--kvant", default="target/release/kvant", type=lambda p: Path(p).resolve())
    parser.add_argument("--images", default="32,128", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--methods", default=",".join(METHODS), type=lambda s: s.split(","))
    parser.add_argument("--runtimes", default="ort,rten", type=lambda s: [r for r in s.split(",") if r], help="of kvant; empty: none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="of kvant; Quark runs once")
    parser.add_argument("--cache", help="a JSON file that keeps Quark's numbers")
    parser.add_argument("--models", help="a directory that keeps the model and the pictures")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        directory = Path(a.models or work).resolve()
        counts = ",".join(map(str, a.images))
        subprocess.run([a.quark or sys.executable, "-c", PREPARE, INTEROP, directory, counts], check=True, env=environment(a))
        if a.quark:
            imports = measure([a.quark, "-c", IMPORTS], environment(a), work)  # the first import compiles, so before anything counts
            imports = measure([a.quark, "-c", IMPORTS], environment(a), work)
            print(f"quark's imports alone: {imports}", file=sys.stderr)
        best, cached = run(a, directory, work)
    if a.json:
        print(json.dumps([dict(images=i, method=m, who=w, cached=(i, m, w) in cached, **f) for (i, m, w), f in best.items()], indent=1))
    else:
        show(best, cached)


if __name__ == "__main__":
    main()
