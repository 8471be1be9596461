"""quark.onnx.quantization."""

from kvant.compat.quark._onnx_configuration import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    QConfig,
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
    "QConfig",
    "QuarotConfig",
    "SmoothQuantConfig",
]
