"""quark.onnx.quantization."""

from kvant.compat.quark._absent import onnx_name as __getattr__  # noqa: F401
from kvant.compat.quark._onnx_configuration import QConfig as QConfig
from kvant.compat.quark.onnx.quantization.config.algorithm import *  # noqa: F403
