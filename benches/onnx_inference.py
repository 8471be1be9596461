#!/usr/bin/env python3
"""How long a network takes in onnxruntime: as floats, quantized by Kvant, and quantized by onnxruntime's own quantizer.

    PATH=... python benches/onnx_inference.py WORK [--models minilm resnet50 mobilenet_v2 bert] [--kvant target/release/kvant] [--runs 60]

Runs in the environment of tests/interop/requirements.txt. The sessions take turns, one inference each, so that what disturbs the machine
disturbs all of them; the median of each is printed, and its ratio to the float network's.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "interop"))

import onnx_models  # noqa: E402

PRESETS = ("U8S8_AAWS", "A8W8", "INT8_TRANSFORMER_DEFAULT", "INT8_DYNAMIC_QUANT")


class Reader(CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def made(work, name, model, data, kvant):
    """(name, path) of each network, those that cannot be made left out with what was said."""
    yield "float", model
    for preset in PRESETS:
        path = work / f"{name}.{preset}.onnx"
        done = subprocess.run([kvant, "quantize", model, "--preset", preset, "--data", data, "--overwrite", "--no-verify", "-o", path],
                              capture_output=True, text=True)  # fmt: skip
        if done.returncode == 0:
            yield f"kvant {preset}", path
        else:
            print(f"kvant {preset}: {done.stderr.splitlines()[-2:]}", file=sys.stderr)
    prepared = work / f"{name}.prepared.onnx"
    quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
    arrays = np.load(data)
    feeds = [{key: arrays[key][i : i + 1] for key in arrays} for i in range(32)]
    types = dict(activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    quantize_static(str(prepared), str(work / f"{name}.static.onnx"), Reader(feeds), quant_format=QuantFormat.QDQ, **types)
    yield "onnxruntime static, U8S8", work / f"{name}.static.onnx"
    quantize_dynamic(str(prepared), str(work / f"{name}.dynamic.onnx"))
    yield "onnxruntime dynamic", work / f"{name}.dynamic.onnx"


def measure(networks, feed, runs):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    sessions = {name: ort.InferenceSession(str(path), options) for name, path in networks}
    times = {name: [] for name in sessions}
    for _ in range(runs + 5):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(None, feed)
            times[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(found[5:]) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", default=["minilm", "resnet50", "mobilenet_v2", "bert"])
    parser.add_argument("--kvant", type=pathlib.Path, default=REPO / "target" / "release" / "kvant")
    parser.add_argument("--runs", type=int, default=60)
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    for name in a.models:
        model, built = a.work / f"{name}.onnx", onnx_models.MODELS[name].build()
        onnx_models.export(onnx_models.MODELS[name], built, model)
        data = a.work / f"{name}.calib.npz"
        np.savez(data, **{key: np.asarray(value) for key, value in built.inputs(40, 0).items()})
        feed = {key: np.asarray(value)[:1] for key, value in built.inputs(1, 0).items()}
        found = measure(list(made(a.work, name, model, data, a.kvant)), feed, a.runs)
        for network, ms in found.items():
            print(f"{name}  {network:<32} {ms:8.2f} ms  {ms / found['float']:.2f} of float", flush=True)


main()
