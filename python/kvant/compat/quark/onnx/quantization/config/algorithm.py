"""quark.onnx.quantization.config.algorithm."""

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
]
