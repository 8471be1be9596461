"""quark.onnx.quantization."""

from kvant.compat.quark._onnx_configuration import QConfig as QConfig
from kvant.compat.quark.onnx.quantization.config.algorithm import *  # noqa: F403
