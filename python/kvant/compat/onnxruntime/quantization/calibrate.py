"""onnxruntime.quantization.calibrate."""

from kvant.compat.onnxruntime.quantization import CalibrationDataReader, CalibrationMethod

__all__ = ["CalibrationDataReader", "CalibrationMethod"]
