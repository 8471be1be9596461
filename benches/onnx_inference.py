#!/usr/bin/env python3
"""How long a network takes in onnxruntime, and how near its outputs stay: as floats, quantized by Kvant, and quantized by onnxruntime's own quantizer.

    PATH=... python benches/onnx_inference.py WORK [--models minilm pp-ocr-rec] [--kvant target/release/kvant] [--runs 60] [--threads 2]

Runs in the environment of tests/interop/requirements.txt. Networks of packages are read from them (`pip install --no-deps
rapidocr-onnxruntime nudenet magika`). The sessions take turns, one inference each, so that what disturbs the machine
disturbs all of them; the median of each is printed, and its ratio to the float network's. SQNR is that of each output, in dB, on
samples that calibrated nothing, in sessions without optimizations.
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
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "interop"))

import onnx_data  # noqa: E402
import onnx_models  # noqa: E402
import onnx_nets  # noqa: E402
import onnx_oracle  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Packaged:
    """A network that a package of the Python Package Index contains, and the shape of a sample."""

    package: str
    path: str
    shape: tuple[int, ...]

    def file(self):
        return pathlib.Path(importlib.util.find_spec(self.package).submodule_search_locations[0]) / self.path

    def inputs(self, count, half):
        """Pictures of words, or bytes of source code, by the name of the input. Those of both halves differ."""
        name = ort.InferenceSession(str(self.file())).get_inputs()[0].name
        if len(self.shape) == 1:
            code = np.frombuffer(pathlib.Path(onnx_nets.__file__).read_bytes(), np.uint8)
            starts = np.linspace(0, len(code) // 2 - self.shape[0], count).astype(int) + half * (len(code) // 2)
            return {name: np.stack([code[start : start + self.shape[0]] for start in starts]).astype(np.int32)}
        return {name: np.stack([words(1000 * half + index, self.shape) for index in range(count)])}


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
    text = onnx_data.PROSE.read_text().split()
    for top in range(0, height - 40, 44):
        line = " ".join(random.choice(text, 12))
        ImageDraw.Draw(picture).text((random.integers(0, 8), top + random.integers(0, 8)), line, int(random.integers(0, 90)), ImageFont.load_default(30))
    return np.repeat(np.asarray(picture, np.float32)[None] / 127.5 - 1, channels, axis=0)


CALIBRATION, TEST = 32, 48  # samples
U8, S8, S16 = QuantType.QUInt8, QuantType.QInt8, QuantType.QInt16
PERCENTILE = {"calibrate_method": CalibrationMethod.Percentile}
SYMMETRIC = {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}}
# Presets of Kvant and its options, and the options of onnxruntime's quantizer that ask for the same: types, ranges and symmetry.
PAIRS = {
    "U8S8_AAWS": {"activation_type": U8},
    "U8S8_AAWS --per-channel": {"activation_type": U8, "per_channel": True},
    "A8W8": {"activation_type": S8, **PERCENTILE, **SYMMETRIC},
    "A8W8 --per-channel": {"activation_type": S8, "per_channel": True, **PERCENTILE, **SYMMETRIC},
    "A16W8": {"activation_type": S16, **SYMMETRIC},
}
ALONE = ("INT8_TRANSFORMER_DEFAULT", "INT8_DYNAMIC_QUANT")


class Reader(CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def made(work, name, model, data, kvant):
    """(name, path) of each network; those that cannot be made are left out, with what was said."""
    yield "float", model
    for asked in (*PAIRS, *ALONE):
        path = work / f"{name}.{asked.replace(' --', '.')}.onnx"
        preset, *options = asked.split()
        done = subprocess.run([kvant, "quantize", model, "--preset", preset, *options, "--data", data, "--overwrite", "--no-verify", "-o", path],
                              capture_output=True, text=True)  # fmt: skip
        if done.returncode == 0:
            yield f"kvant {asked}", path
        else:
            print(f"kvant {asked}: {done.stderr.splitlines()[-2:]}", file=sys.stderr)
    # onnxruntime's quantizer writes scales per channel that opsets before 13 do not have.
    newer, prepared = work / f"{name}.newer.onnx", work / f"{name}.prepared.onnx"
    opset = max(17, *(used.version for used in onnx.load(str(model), load_external_data=False).opset_import if not used.domain))
    subprocess.run([kvant, "graph", "convert-opset", model, "--opset", str(opset), "-o", newer, "--overwrite"], capture_output=True)
    quant_pre_process(str(newer if newer.exists() else model), str(prepared), skip_symbolic_shape=True)
    for asked, options in PAIRS.items():
        path = work / f"{name}.onnxruntime.{asked.replace(' --', '.')}.onnx"
        try:
            quantize_static(str(prepared), str(path), Reader(onnx_oracle.samples(data)), quant_format=QuantFormat.QDQ, weight_type=S8, **options)
        except (ValueError, RuntimeError) as error:
            print(f"onnxruntime as {asked}: {error}", file=sys.stderr)
        else:
            yield f"onnxruntime as {asked}", path
    quantize_dynamic(str(prepared), str(work / f"{name}.dynamic.onnx"))
    yield "onnxruntime dynamic", work / f"{name}.dynamic.onnx"


def measure(networks, feed, runs, threads):
    """Milliseconds by the name of the network."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
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
    parser.add_argument("--runs", type=int, default=60, help="0 measures SQNR alone")
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    for name in a.models:
        if name in PACKAGED:
            model, inputs = PACKAGED[name].file(), PACKAGED[name].inputs
        else:
            model, built = a.work / f"{name}.onnx", onnx_models.MODELS[name].build()
            onnx_models.export(onnx_models.MODELS[name], built, model)
            inputs = built.inputs
        data, held_out = (a.work / f"{name}.{part}.npz" for part in ("calib", "test"))
        np.savez(data, **inputs(CALIBRATION, 0))
        np.savez(held_out, **inputs(TEST, 1))
        networks = list(made(a.work, name, model, data, a.kvant))
        times = measure(networks, onnx_oracle.samples(held_out, count=1)[0], a.runs, a.threads) if a.runs else {}
        for network, path in networks:
            found = " ".join(f"{decibels:7.2f}" for decibels in onnx_oracle.sqnr(model, path, held_out).values())
            ms = times.get(network)
            print(f"{name}  {network:<40} {found} dB" + (f" {ms:8.2f} ms  {ms / times['float']:.2f} of float" if ms else ""), flush=True)


main()
