"""quark.onnx.quantization.config.legacy."""

from kvant.compat.quark._onnx_configuration import (
    QuantizationConfig,
)

__all__ = [
    "QuantizationConfig",
]
