"""quark.torch.quantization.config."""

from kvant.compat.quark._configuration import (
    AutoSmoothQuantConfig,
    AWQConfig,
    Config,
    Dtype,
    GPTAQConfig,
    GPTQConfig,
    QConfig,
    QLayerConfig,
    QronosConfig,
    QSchemeType,
    QTensorConfig,
    QuantizationConfig,
    QuantizationMode,
    QuantizationSpec,
    RoundType,
    ScaleType,
    SmoothQuantConfig,
    ZeroPointType,
)
from kvant.compat.quark._specs import *  # noqa: F403
from kvant.compat.quark._specs import __all__ as _specs
from kvant.compat.quark._specs import refuse_absent as __getattr__  # noqa: F401

__all__ = [
    "SmoothQuantConfig",
    "QronosConfig",
    "GPTAQConfig",
    "AutoSmoothQuantConfig",
    "AWQConfig",
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
__all__ += _specs
