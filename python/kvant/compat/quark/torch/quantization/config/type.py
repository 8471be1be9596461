"""quark.torch.quantization.config.type."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark._types import (
    DeviceType,
    Dtype,
    QSchemeType,
    QuantFlow,
    QuantizationMode,
    RoundType,
    ScaleType,
    TQTThresholdInitMeth,
    ZeroPointType,
)

__all__ = [
    "DeviceType",
    "Dtype",
    "QSchemeType",
    "QuantFlow",
    "QuantizationMode",
    "RoundType",
    "ScaleType",
    "TQTThresholdInitMeth",
    "ZeroPointType",
]
