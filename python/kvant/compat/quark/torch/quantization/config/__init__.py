"""quark.torch.quantization.config."""

from kvant.compat.quark._configuration import (
    Config,
    Dtype,
    GPTQConfig,
    QConfig,
    QLayerConfig,
    QSchemeType,
    QTensorConfig,
    QuantizationConfig,
    QuantizationMode,
    QuantizationSpec,
    RoundType,
    ScaleType,
    ZeroPointType,
)

__all__ = [
    "Config",
    "Dtype",
    "GPTQConfig",
    "QConfig",
    "QLayerConfig",
    "QSchemeType",
    "QTensorConfig",
    "QuantizationConfig",
    "QuantizationMode",
    "QuantizationSpec",
    "RoundType",
    "ScaleType",
    "ZeroPointType",
]
