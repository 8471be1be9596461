"""Networks that packages of the Python Package Index contain, and quantized graphs that onnxruntime's own quantizer makes.

The packages are optional: `pip install --no-deps rapidocr-onnxruntime nudenet magika`. Tests of a network whose package is missing are skipped.
"""

import dataclasses
import importlib.util
import pathlib

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from conftest import REPO

DATA = REPO / "crates/onnx/tests/data"


@dataclasses.dataclass(frozen=True)
class Network:
    """A float network and the shape of a sample without the batch."""

    package: str | None
    path: str
    shape: tuple[int, ...]

    def file(self):
        if self.package is None:
            return DATA / self.path
        spec = importlib.util.find_spec(self.package)
        if spec is None:
            pytest.skip(f"the package {self.package} is not installed")
        return pathlib.Path(spec.submodule_search_locations[0]) / self.path

    def samples(self, count, seed=0):
        """Samples by the name of the input, stacked."""
        if self.package is None:
            with np.load(DATA / self.path.replace(".float.onnx", ".calib.npz")) as arrays:
                return {name[:-2]: np.concatenate([arrays[f"{name[:-2]}_{at % len(arrays.files)}"] for at in range(count)]) for name in arrays.files[:1]}
        name = ort.InferenceSession(str(self.file()), providers=["CPUExecutionProvider"]).get_inputs()[0].name
        rng = np.random.default_rng(seed)
        if len(self.shape) == 1:
            return {name: rng.integers(32, 127, (count, *self.shape)).astype(np.int32)}
        rough = rng.normal(size=(count, self.shape[0], 8, 8)).astype(np.float32)
        scale = [-(-size // 8) for size in self.shape[1:]]
        smooth = rough.repeat(scale[0], 2).repeat(scale[1], 3)[:, :, : self.shape[1], : self.shape[2]]
        return {name: np.tanh(smooth + 0.1 * rng.normal(size=smooth.shape)).astype(np.float32)}


NETWORKS = {
    "tinycnn": Network(None, "tinycnn.float.onnx", ()),
    "tinytransformer": Network(None, "tinytransformer.float.onnx", ()),
    "pp-ocr-cls": Network("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", (3, 48, 192)),
    "pp-ocr-det": Network("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", (3, 160, 160)),
    "pp-ocr-rec": Network("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", (3, 48, 160)),
    "nudenet": Network("nudenet", "320n.onnx", (3, 320, 320)),
    "magika": Network("magika", "models/standard_v3_3/model.onnx", (2048,)),
}

TYPES = {"u8s8": (QuantType.QUInt8, QuantType.QInt8), "s8s8": (QuantType.QInt8, QuantType.QInt8)}


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        count = len(next(iter(samples.values())))
        self.feeds = iter([{name: values[at : at + 1] for name, values in samples.items()} for at in range(count)])

    def get_next(self):
        return next(self.feeds, None)


def by_onnxruntime(network, types, form, out, **options):
    """The graph that onnxruntime's quantizer makes in a directory."""
    activation, weight = TYPES[types]
    prepared = out.with_suffix(".prepared.onnx")
    if not prepared.exists():
        quant_pre_process(str(network.file()), str(prepared), skip_symbolic_shape=True)
    quantize_static(str(prepared), str(out), Reader(network.samples(3)), quant_format=form, activation_type=activation, weight_type=weight, **options)
    return out


QDQ, QOPERATOR = QuantFormat.QDQ, QuantFormat.QOperator
