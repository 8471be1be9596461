"""onnxruntime.quantization.shape_inference."""

from kvant.compat.onnxruntime.quantization import quant_pre_process

__all__ = ["quant_pre_process"]
