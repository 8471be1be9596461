"""quark.onnx.quantization.config."""

from kvant.compat.quark._onnx_configuration import (
    Config,
    DefaultConfigMapping,
    QConfig,
    QuantizationConfig,
    get_default_config,
    get_default_config_mapping,
)

__all__ = [
    "Config",
    "DefaultConfigMapping",
    "QConfig",
    "QuantizationConfig",
    "get_default_config",
    "get_default_config_mapping",
]
