"""onnxruntime's quantization: the names of `onnxruntime.quantization` over `kvant.quantize`."""

from kvant.compat.onnxruntime._quantize import quant_pre_process, quantize, quantize_dynamic, quantize_static
from kvant.compat.onnxruntime._types import (
    CalibrationDataReader,
    CalibrationMethod,
    DynamicQuantConfig,
    QuantFormat,
    QuantType,
    StaticQuantConfig,
)

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "QuantFormat",
    "QuantType",
    "StaticQuantConfig",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]
