"""quark.torch.quantization.config.config."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark._configuration import (
    AlgoConfig,
    AutoSmoothQuantConfig,
    AWQConfig,
    Config,
    GPTAQConfig,
    GPTQConfig,
    PreQuantOptConfig,
    QConfig,
    QLayerConfig,
    QronosConfig,
    QTensorConfig,
    QuantizationConfig,
    QuantizationSpec,
    SmoothQuantConfig,
    load_pre_optimization_config_from_file,
    load_quant_algo_config_from_file,
)
from kvant.compat.quark._specs import *  # noqa: F403
from kvant.compat.quark._specs import __all__ as _specs

__all__ = [
    "AWQConfig",
    "AlgoConfig",
    "AutoSmoothQuantConfig",
    "Config",
    "GPTAQConfig",
    "GPTQConfig",
    "PreQuantOptConfig",
    "QConfig",
    "QLayerConfig",
    "QTensorConfig",
    "QronosConfig",
    "QuantizationConfig",
    "QuantizationSpec",
    "SmoothQuantConfig",
    "load_pre_optimization_config_from_file",
    "load_quant_algo_config_from_file",
]
__all__ += _specs
