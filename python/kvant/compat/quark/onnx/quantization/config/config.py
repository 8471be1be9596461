"""quark.onnx.quantization.config.config."""

from kvant.compat.quark._onnx_configuration import (
    Config,
    QConfig,
    QuantizationConfig,
)

__all__ = [
    "Config",
    "QConfig",
    "QuantizationConfig",
]
