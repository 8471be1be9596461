"""onnxruntime's quantization: the names of `onnxruntime.quantization` over `kvant.quantize`."""

from kvant.compat.onnxruntime.quantization import *  # noqa: F403
