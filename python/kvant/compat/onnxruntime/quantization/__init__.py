"""onnxruntime.quantization."""

from kvant.compat.onnxruntime._quantize import quant_pre_process
from kvant.compat.onnxruntime._types import (
    CalibrationDataReader,
    CalibrationMethod,
    DynamicQuantConfig,
    QuantFormat,
    QuantType,
    StaticQuantConfig,
)

# From the module of the same name as one of them, so that importing it later does not replace the function.
from kvant.compat.onnxruntime.quantization.quantize import quantize, quantize_dynamic, quantize_static

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
