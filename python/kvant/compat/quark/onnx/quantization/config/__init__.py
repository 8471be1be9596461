"""quark.onnx.quantization.config."""

from kvant.compat.quark._onnx_configuration import (
    Config,
    QConfig,
    QuantizationConfig,
    get_default_config,
)

__all__ = [
    "Config",
    "QConfig",
    "QuantizationConfig",
    "get_default_config",
]
