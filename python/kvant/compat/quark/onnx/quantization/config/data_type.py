"""quark.onnx.quantization.config.data_type."""

from kvant.compat.quark._onnx_configuration import (
    BFP16,
    BFloat16,
    DataType,
    Float16,
    Int8,
    Int16,
    Int32,
    UInt8,
    UInt16,
    UInt32,
)

__all__ = [
    "BFP16",
    "BFloat16",
    "DataType",
    "Float16",
    "Int16",
    "Int32",
    "Int8",
    "UInt16",
    "UInt32",
    "UInt8",
]
