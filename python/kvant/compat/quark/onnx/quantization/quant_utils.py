"""quark.onnx.quantization.quant_utils: its types, and none of its helpers."""

from kvant.compat.quark._absent import helper_name as __getattr__  # noqa: F401
from kvant.compat.quark._onnx_configuration import ExtendedQuantFormat, ExtendedQuantType

__all__ = ["ExtendedQuantFormat", "ExtendedQuantType"]
