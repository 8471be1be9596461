"""quark.torch.quantization."""

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
from kvant.compat.quark._torch import ModelQuantizer

__all__ = [
    "Config",
    "Dtype",
    "GPTQConfig",
    "ModelQuantizer",
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
