"""quark.torch.quantization.config.config."""

from kvant.compat.quark._configuration import (
    Config,
    GPTQConfig,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    QuantizationConfig,
    QuantizationSpec,
)

__all__ = ["Config", "GPTQConfig", "QConfig", "QLayerConfig", "QTensorConfig", "QuantizationConfig", "QuantizationSpec"]
