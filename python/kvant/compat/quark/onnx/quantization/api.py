"""quark.onnx.quantization.api."""

from kvant.compat.quark._onnx import (
    ModelQuantizer,
)

__all__ = [
    "ModelQuantizer",
]
