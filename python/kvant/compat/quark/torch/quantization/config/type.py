"""quark.torch.quantization.config.type."""

from kvant.compat.quark._configuration import Dtype, QSchemeType, QuantizationMode, RoundType, ScaleType, ZeroPointType

__all__ = ["Dtype", "QSchemeType", "QuantizationMode", "RoundType", "ScaleType", "ZeroPointType"]
