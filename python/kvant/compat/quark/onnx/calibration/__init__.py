"""quark.onnx.calibration."""

from kvant.compat.quark._absent import onnx_name as __getattr__  # noqa: F401
from kvant.compat.quark.onnx.calibration.data_readers import *  # noqa: F403
from kvant.compat.quark.onnx.calibration.methods import *  # noqa: F403
