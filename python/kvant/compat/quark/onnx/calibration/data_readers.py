"""quark.onnx.calibration.data_readers."""

from kvant.compat.quark._absent import onnx_name as __getattr__  # noqa: F401
from kvant.compat.quark._onnx import CachedDataReader, PathDataReader, RandomDataReader

__all__ = ["CachedDataReader", "PathDataReader", "RandomDataReader"]
