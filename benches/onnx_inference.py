#!/usr/bin/env python3
"""How long a network takes in onnxruntime: as floats, quantized by Kvant, and quantized by onnxruntime's own quantizer.

    PATH=... python benches/onnx_inference.py WORK [--models minilm pp-ocr-rec] [--kvant target/release/kvant] [--runs 60]

Runs in the environment of tests/interop/requirements.txt. Networks of packages are read from them (`pip install --no-deps
rapidocr-onnxruntime nudenet magika`). The sessions take turns, one inference each, so that what disturbs the machine
disturbs all of them; the median of each is printed, and its ratio to the float network's.
"""

import argparse
import dataclasses
import importlib.util
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


@dataclasses.dataclass(frozen=True)
class Packaged:
    """A network that a package of the Python Package Index contains, and the shape of a sample."""

    package: str
    path: str
    shape: tuple[int, ...]

    def file(self):
        return pathlib.Path(importlib.util.find_spec(self.package).submodule_search_locations[0]) / self.path

    def samples(self, count):
        """Pictures of words, or bytes of source code."""
        name = ort.InferenceSession(str(self.file())).get_inputs()[0].name
        if len(self.shape) == 1:
            code = np.frombuffer(pathlib.Path(__file__).read_bytes(), np.uint8)
            starts = np.linspace(0, len(code) - self.shape[0], count).astype(int)
            return {name: np.stack([code[start : start + self.shape[0]] for start in starts]).astype(np.int32)}
        return {name: np.stack([words(index, self.shape) for index in range(count)])}


PACKAGED = {
    "pp-ocr-rec": Packaged("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", (3, 48, 320)),
    "pp-ocr-det": Packaged("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", (3, 320, 320)),
    "pp-ocr-cls": Packaged("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", (3, 48, 192)),
    "nudenet": Packaged("nudenet", "320n.onnx", (3, 320, 320)),
    "magika": Packaged("magika", "models/standard_v3_3/model.onnx", (2048,)),
}


def words(seed, shape):
    """A picture of words in black on grey, from -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    channels, height, width = shape
    random = np.random.default_rng(seed)
    picture = Image.new("L", (width, height), int(random.integers(160, 256)))
    text = pathlib.Path(__file__).read_text().split()
    for top in range(0, height - 40, 44):
        line = " ".join(random.choice(text, 12))
        ImageDraw.Draw(picture).text((random.integers(0, 8), top + random.integers(0, 8)), line, int(random.integers(0, 90)), ImageFont.load_default(30))
    return np.repeat(np.asarray(picture, np.float32)[None] / 127.5 - 1, channels, axis=0)


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
    parser.add_argument("--models", nargs="+", default=["minilm", "resnet50", "mobilenet_v2", "bert", *PACKAGED])
    parser.add_argument("--kvant", type=pathlib.Path, default=REPO / "target" / "release" / "kvant")
    parser.add_argument("--runs", type=int, default=60)
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    for name in a.models:
        if name in PACKAGED:
            model, samples = PACKAGED[name].file(), PACKAGED[name].samples(40)
        else:
            model, built = a.work / f"{name}.onnx", onnx_models.MODELS[name].build()
            onnx_models.export(onnx_models.MODELS[name], built, model)
            samples = {key: np.asarray(value) for key, value in built.inputs(40, 0).items()}
        data = a.work / f"{name}.calib.npz"
        np.savez(data, **samples)
        feed = {key: value[:1] for key, value in samples.items()}
        found = measure(list(made(a.work, name, model, data, a.kvant)), feed, a.runs)
        for network, ms in found.items():
            print(f"{name}  {network:<32} {ms:8.2f} ms  {ms / found['float']:.2f} of float", flush=True)


main()
