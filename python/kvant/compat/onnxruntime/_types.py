"""onnxruntime's types of the quantization interface, with the values of version 1.31."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

from kvant._errors import usage_error

E = TypeVar("E", bound=Enum)


class _Named(Enum):
    """Values that are spelled by their names."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls: type[E], text: str) -> E:
        """The value of this name.

        Raises:
            ValueError: There is none.
        """
        try:
            return cls[text]
        except KeyError:
            raise ValueError(text) from None


class QuantType(_Named):
    """The types of codes."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6


class QuantFormat(_Named):
    """Integer operators, or Q/DQ pairs around float operators."""

    QOperator = 0
    QDQ = 1


class CalibrationMethod(Enum):
    """How ranges of activations are found."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(abc.ABC):
    """Calibration data: a batch at a time."""

    @abc.abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """The next batch by inputs, or None at the end."""

    def __iter__(self) -> CalibrationDataReader:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = self.get_next()
        if batch is None:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        raise NotImplementedError

    def set_range(self, start_index: int, end_index: int) -> None:
        """Restricts the reader to a part of the data. Kvant reads all of it."""
        raise NotImplementedError


class QuantConfig:
    """What static and dynamic quantization have in common."""

    def __init__(
        self,
        activation_type: Any = QuantType.QUInt8,
        weight_type: Any = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
    ) -> None:
        self.activation_type = activation_type
        self.weight_type = weight_type
        self.op_types_to_quantize = op_types_to_quantize or []
        self.nodes_to_quantize = nodes_to_quantize or []
        self.nodes_to_exclude = nodes_to_exclude or []
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.use_external_data_format = use_external_data_format


class StaticQuantConfig(QuantConfig):
    """The arguments of `quantize_static`."""

    def __init__(
        self,
        calibration_data_reader: Any,
        calibrate_method: Any = CalibrationMethod.MinMax,
        quant_format: Any = QuantFormat.QDQ,
        activation_type: Any = QuantType.QInt8,
        weight_type: Any = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        calibration_providers: Sequence[Any] | None = None,
        extra_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            activation_type,
            weight_type,
            op_types_to_quantize,
            nodes_to_quantize,
            nodes_to_exclude,
            per_channel,
            reduce_range,
            use_external_data_format,
        )
        self.calibration_data_reader = calibration_data_reader
        self.calibrate_method = calibrate_method
        self.quant_format = quant_format
        self.calibration_providers = calibration_providers
        self.extra_options = extra_options or {}


class DynamicQuantConfig(QuantConfig):
    """The arguments of `quantize_dynamic`."""

    def __init__(
        self,
        weight_type: Any = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        extra_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            QuantType.QUInt8,
            weight_type,
            op_types_to_quantize,
            nodes_to_quantize,
            nodes_to_exclude,
            per_channel,
            reduce_range,
            use_external_data_format,
        )
        self.extra_options = extra_options or {}


def named(made: type[E], value: Any, argument: str) -> E:
    """A value of an enumeration; onnxruntime's own members count by their names.

    Raises:
        UsageError: It has no such member.
    """
    if isinstance(value, made):
        return value
    name = getattr(value, "name", None)
    if isinstance(value, Enum) and name in made.__members__:
        return made[str(name)]
    raise usage_error(f"{argument} cannot be {value!r}", f"give one of {', '.join(made.__members__)}")
