"""quark.onnx.quantization.config.algorithm."""

from kvant.compat.quark._absent import onnx_name as __getattr__  # noqa: F401
from kvant.compat.quark._onnx_configuration import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    QuarotConfig,
    SmoothQuantConfig,
)
from kvant.compat.quark._onnx_configuration import algorithm_of as from_dict

__all__ = [
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "BiasCorrectionConfig",
    "CLEConfig",
    "GPTQConfig",
    "QuarotConfig",
    "SmoothQuantConfig",
    "from_dict",
]
