"""quark.onnx.quantization.quantize."""

from kvant.compat.quark._onnx_functions import quantize_dynamic, quantize_static

__all__ = ["quantize_dynamic", "quantize_static"]
