"""onnxruntime.quantization.quant_utils."""

from kvant.compat.onnxruntime.quantization import QuantFormat, QuantType

__all__ = ["QuantFormat", "QuantType"]
