"""onnxruntime.quantization.quantize."""

from kvant.compat.onnxruntime._quantize import quantize, quantize_dynamic, quantize_static
from kvant.compat.onnxruntime._types import DynamicQuantConfig, StaticQuantConfig

__all__ = ["DynamicQuantConfig", "StaticQuantConfig", "quantize", "quantize_dynamic", "quantize_static"]
