"""Quark's short forms of tensor configurations: `Int4PerGroupSpec(ch_axis=-1, group_size=128).to_quantization_spec()`.

Fields, defaults and what they stand for are those of amd-quark 0.13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any

from kvant._errors import usage_error
from kvant.compat.quark import _types as c
from kvant.compat.quark._configuration import QTensorConfig
from kvant.compat.quark._types import Dtype, QSchemeType

_OBSERVERS = {
    None: None,
    "min_max": c.PerTensorMinMaxObserver,
    "histogram": c.PerTensorHistogramObserver,
    "histogrampro": c.PerTensorHistogramObserverPro,
    "MSE": c.PerTensorMSEObserver,
    "percentile": c.PerTensorPercentileObserver,
}
_SCALE_TYPES = {"power_of_2": c.ScaleType.pof2} | {kind.value: kind for kind in c.ScaleType if kind.value != "pof2"}


def _chosen(what: str, given: str | None, known: Any) -> Any:
    if given is None or given in known:
        return None if given is None else known[given]
    raise usage_error(f"{what} {given!r} is unknown", f"use one of {', '.join(map(repr, filter(None, known)))}")


def get_per_tensor_observer(observer_method: str | None = None) -> type[c.ObserverBase] | None:
    """The observer of a name: `min_max`, `histogram`, `histogrampro`, `MSE` or `percentile`."""
    found: type[c.ObserverBase] | None = _chosen("observer_method", observer_method, _OBSERVERS)
    return found


def get_scale_type(scale_type: str | None = None) -> c.ScaleType | None:
    """The type of scales of a name."""
    found: c.ScaleType | None = _chosen("scale_type", scale_type, _SCALE_TYPES)
    return found


def get_round_method(round_method: str | None = None) -> c.RoundType | None:
    """The rounding of a name."""
    found: c.RoundType | None = _chosen("round_method", round_method, c.RoundType.__members__)
    return found


def get_zero_point_type(zero_point_type: str | None = None) -> c.ZeroPointType | None:
    """The type of zero points of a name."""
    found: c.ZeroPointType | None = _chosen("zero_point_type", zero_point_type, c.ZeroPointType.__members__)
    return found


class DataTypeSpec:
    """A tensor configuration in short."""

    # What a class always stands for.
    _fixed: dict[str, Any]

    def to_quantization_spec(self) -> QTensorConfig:
        """The configuration.

        Raises:
            UsageError: An unknown observer, rounding, or type of scales or zero points.
        """
        given = dict(vars(self))
        if "observer_method" in given:
            given["observer_cls"] = get_per_tensor_observer(given.pop("observer_method"))
        if "block_size" in given:
            given["group_size"] = given.pop("block_size")
        for name, find in (
            ("scale_type", get_scale_type),
            ("round_method", get_round_method),
            ("zero_point_type", get_zero_point_type),
        ):
            if name in given:
                given[name] = find(given[name])
        if self._fixed["dtype"] in (Dtype.mx, Dtype.mx6, Dtype.mx9, Dtype.bfp16):
            # Their blocks have no other timing.
            given.pop("is_dynamic", None)
        return QTensorConfig(**(self._fixed | given))


class OCP_MXSpec(DataTypeSpec):  # noqa: N801
    """A tensor in OCP MX blocks."""


_REQUIRED = object()


def _spec(name: str, what: str, fields: dict[str, Any], base: Any = DataTypeSpec, **fixed: Any) -> Any:
    """A class of such configurations; fields without a default come first."""
    required = [(key, Any) for key, default in fields.items() if default is _REQUIRED]
    others = [(key, Any, field(default=value)) for key, value in fields.items() if value is not _REQUIRED]
    made = make_dataclass(name, [*required, *others], bases=(base,))
    made.__doc__, made.__module__ = f"{what}.", __name__
    made._fixed = fixed  # type: ignore[attr-defined]
    return made


_SCALED = {"scale_type": "float", "round_method": "half_even", "is_dynamic": False}
_AXIS, _GROUP = {"ch_axis": _REQUIRED}, {"ch_axis": _REQUIRED, "group_size": _REQUIRED}


def _scaled(dtype: Dtype, shared: str, fields: dict[str, Any], **fixed: Any) -> Any:
    kind = QSchemeType[f"per_{shared}"]
    what = f"{dtype.value} with a scale for each {shared}"
    return _spec(f"{_title(dtype)}Per{shared.capitalize()}Spec", what, fields, dtype=dtype, qscheme=kind, **fixed)


def _per_tensor(dtype: Dtype, symmetric: bool) -> Any:
    return _scaled(dtype, "tensor", {"observer_method": "min_max", "symmetric": symmetric, **_SCALED})


def _per_channel(dtype: Dtype, symmetric: bool, **more: Any) -> Any:
    fields = {**_AXIS, "symmetric": symmetric, **_SCALED, **more}
    return _scaled(dtype, "channel", fields, observer_cls=c.PerChannelMinMaxObserver)


def _per_group(dtype: Dtype, symmetric: bool) -> Any:
    fields = {**_GROUP, "symmetric": symmetric, **_SCALED}
    if dtype in (Dtype.int4, Dtype.uint4):
        # The order of their arguments is another one.
        fields = {**_GROUP, "symmetric": symmetric, "is_dynamic": False, **_SCALED}
    return _scaled(dtype, "group", fields, observer_cls=c.PerGroupMinMaxObserver)


_MX = {"round_method": c.RoundType.half_even, "qscheme": QSchemeType.per_group, "observer_cls": c.PerBlockMXObserver}


def _float_per_group(dtype: Dtype, **more: Any) -> Any:
    fields = {**_GROUP, "scale_format": "float32", "scale_calculation_mode": None, "is_dynamic": True, **more}
    fixed = {**_MX, "scale_type": c.ScaleType.float}
    return _spec(
        f"{_title(dtype)}PerGroupSpec", f"{dtype.value} with a scale for each group", fields, dtype=dtype, **fixed
    )


def _mx(name: str, dtype: Dtype) -> Any:
    fields = {**_AXIS, "is_dynamic": True, "scale_calculation_mode": "even"}
    fixed = {**_MX, "scale_type": c.ScaleType.float, "scale_format": "e8m0", "group_size": 32}
    return _spec(name, f"MX blocks of 32 {dtype.value} numbers", fields, OCP_MXSpec, dtype=dtype, **fixed)


def _blocks(name: str, dtype: Dtype, fields: dict[str, Any], base: type = DataTypeSpec, **fixed: Any) -> Any:
    fields = {**_AXIS, **fields, "scale_calculation_mode": "even"}
    return _spec(name, f"Blocks of {dtype.value}", fields, base, dtype=dtype, **fixed)


def _fp8_per_tensor(dtype: Dtype) -> Any:
    fields = {"observer_method": "min_max", "scale_type": None, "is_dynamic": False}
    return _scaled(dtype, "tensor", fields, symmetric=True, round_method=c.RoundType.half_even)


def _title(dtype: Dtype) -> str:
    """As classes are named: `Uint4`, `FP8E4M3`."""
    name = dtype.value
    return name.upper().replace("_", "") if name.startswith("fp") else name.capitalize()


Uint4PerTensorSpec = _per_tensor(Dtype.uint4, False)
Uint4PerChannelSpec = _per_channel(Dtype.uint4, False, is_dynamic=None, zero_point_type="int32")
Uint4PerGroupSpec = _per_group(Dtype.uint4, False)
Int3PerGroupSpec = _per_group(Dtype.int3, True)
Int3PerChannelSpec = _per_channel(Dtype.int3, False)
Int2PerGroupSpec = _per_group(Dtype.int2, True)
Int4PerTensorSpec = _per_tensor(Dtype.int4, True)
Int4PerChannelSpec = _per_channel(Dtype.int4, True)
Int4PerGroupSpec = _per_group(Dtype.int4, True)
Uint8PerTensorSpec = _per_tensor(Dtype.uint8, False)
Uint8PerChannelSpec = _per_channel(Dtype.uint8, True)
Uint8PerGroupSpec = _per_group(Dtype.uint8, False)
Int8PerTensorSpec = _per_tensor(Dtype.int8, True)
Int8PerChannelSpec = _per_channel(Dtype.int8, False)
Int8PerGroupSpec = _per_group(Dtype.int8, True)
FP8E4M3PerTensorSpec = _fp8_per_tensor(Dtype.fp8_e4m3)
FP8E5M3PerTensorSpec = _fp8_per_tensor(Dtype.fp8_e5m3)
FP8E4M3PerChannelSpec = _per_channel(Dtype.fp8_e4m3, True)
FP8E4M3PerGroupSpec = _float_per_group(Dtype.fp8_e4m3)
FP8E5M2PerTensorSpec = _per_tensor(Dtype.fp8_e5m2, True)
FP8E5M2PerChannelSpec = _per_channel(Dtype.fp8_e5m2, True)
FP8E5M2PerGroupSpec = _float_per_group(Dtype.fp8_e5m2)
FP4PerGroupSpec = _float_per_group(Dtype.fp4, scale_type="float")
FP6E2M3PerGroupSpec = _float_per_group(Dtype.fp6_e2m3)
FP6E3M2PerGroupSpec = _float_per_group(Dtype.fp6_e3m2)
Float16Spec = _spec("Float16Spec", "float16", {}, dtype=Dtype.float16, observer_cls=c.PlaceholderObserver)
Bfloat16Spec = _spec("Bfloat16Spec", "bfloat16", {}, dtype=Dtype.bfloat16, observer_cls=c.PlaceholderObserver)
OCP_MXFP8E4M3Spec = _mx("OCP_MXFP8E4M3Spec", Dtype.fp8_e4m3)
OCP_MXFP8E5M2Spec = _mx("OCP_MXFP8E5M2Spec", Dtype.fp8_e5m2)
OCP_MXFP6E3M2Spec = _mx("OCP_MXFP6E3M2Spec", Dtype.fp6_e3m2)
OCP_MXFP6E2M3Spec = _mx("OCP_MXFP6E2M3Spec", Dtype.fp6_e2m3)
OCP_MXFP4Spec = _mx("OCP_MXFP4Spec", Dtype.fp4)
OCP_MXINT8Spec = _blocks(
    "OCP_MXINT8Spec", Dtype.mx, {"is_dynamic": True}, OCP_MXSpec, group_size=32, mx_element_dtype=Dtype.int8
)
OCP_MXFP4DiffsSpec = _spec(
    "OCP_MXFP4DiffsSpec",
    "MX blocks of 32 fp4 numbers with the better of two exponents; not supported",
    {**_AXIS, "is_dynamic": False, "scale_calculation_mode": "even"},
    dtype=Dtype.fp4,
    **{**_MX, "observer_cls": c.PerBlockMXDiffsObserver},
    scale_type=c.ScaleType.float,
    scale_format="e8m0",
    group_size=32,
)
AmdFP4Spec = _spec(
    "AmdFP4Spec",
    "fp4 in groups with scales in e5m3",
    {**_GROUP, "is_dynamic": True},
    dtype=Dtype.fp4,
    **_MX,
    scale_type=c.ScaleType.float8_e5m3,
    scale_format="e5m3",
)
MX6Spec = _blocks("MX6Spec", Dtype.mx6, {"block_size": _REQUIRED})
MX9Spec = _blocks("MX9Spec", Dtype.mx9, {"block_size": _REQUIRED})
BFP16Spec = _blocks("BFP16Spec", Dtype.bfp16, {}, group_size=8)


@dataclass
class TwoStageSpec:
    """A tensor in two stages."""

    first_stage: DataTypeSpec | QTensorConfig
    second_stage: DataTypeSpec | QTensorConfig

    def to_quantization_spec(self) -> list[QTensorConfig]:
        """The configurations of both stages."""
        return [
            stage.to_quantization_spec() if isinstance(stage, DataTypeSpec) else stage
            for stage in (self.first_stage, self.second_stage)
        ]


class ProgressiveSpec(TwoStageSpec):
    """A tensor in two stages: the codes of the first are quantized again."""


class ScaleQuantSpec(TwoStageSpec):
    """A tensor in two stages: the scales of the first are quantized."""

    def to_quantization_spec(self) -> list[QTensorConfig]:
        """The configurations of both stages."""
        first, second = super().to_quantization_spec()
        second.is_scale_quant = True
        return [first, second]


__all__ = ["get_per_tensor_observer", "get_round_method", "get_scale_type", "get_zero_point_type"]
__all__ += [name for name, value in dict(globals()).items() if isinstance(value, type) and name.endswith("Spec")]
