"""Schemes of Kvant and the configurations of AMD Quark that mean the same."""

from __future__ import annotations

from typing import Any


def quark_biases() -> dict[str, Any]:
    """Kvant's schemes of biases, with the configurations of AMD Quark."""
    from quark.torch.quantization.config.config import QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from quark.torch.quantization.observer import PerChannelMinMaxObserver, PerTensorMinMaxObserver

    def config(dtype: Any, observer: Any = PerTensorMinMaxObserver, **more: Any) -> Any:
        return QTensorConfig(
            dtype=dtype,
            observer_cls=observer,
            round_method=RoundType.half_even,
            scale_type=ScaleType.float,
            **{"symmetric": True, "is_dynamic": False, "qscheme": QSchemeType.per_tensor, **more},
        )

    channel = {"qscheme": QSchemeType.per_channel, "ch_axis": 0}
    return {
        "int8:tensor": config(Dtype.int8),
        "int8:tensor:zp": config(Dtype.int8, symmetric=False),
        "uint8:tensor:zp": config(Dtype.uint8, symmetric=False),
        "int8:channel": config(Dtype.int8, PerChannelMinMaxObserver, **channel),
        "int4:tensor": config(Dtype.int4),
        "int16:tensor": config(Dtype.int16),
        "int32:tensor": config(Dtype.int32),
        "e4m3:tensor": config(Dtype.fp8_e4m3),
        "e4m3:channel": config(Dtype.fp8_e4m3, PerChannelMinMaxObserver, **channel),
    }


def quark_schemes(axis: int, group_size: int) -> dict[str, tuple[str, Any, Any]]:
    """Kvant's scheme, and Quark's configurations of weight and input.

    Args:
        axis: The axis of the weight's output channels.
        group_size: Of int4; blocks of MXFP4 have 32 values.
    """
    from quark.torch.quantization.config.config import QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from quark.torch.quantization.observer import (
        PerBlockMXObserver,
        PerChannelMinMaxObserver,
        PerGroupMinMaxObserver,
        PerTensorMinMaxObserver,
    )

    def config(dtype: Any, granularity: str, is_dynamic: bool = False, **more: Any) -> Any:
        observer = {
            "per_tensor": PerTensorMinMaxObserver,
            "per_channel": PerChannelMinMaxObserver,
            "per_group": PerGroupMinMaxObserver,
        }[granularity]
        more = {"symmetric": True, "observer_cls": observer, **more}
        return QTensorConfig(
            dtype=dtype,
            is_dynamic=is_dynamic,
            qscheme=QSchemeType[granularity],
            round_method=RoundType.half_even,
            scale_type=ScaleType.float,
            **more,
        )

    def mxfp4(axis: int, is_dynamic: bool = False) -> Any:
        block = {"observer_cls": PerBlockMXObserver, "scale_format": "e8m0", "scale_calculation_mode": "even"}
        return config(Dtype.fp4, "per_group", is_dynamic, symmetric=None, ch_axis=axis, group_size=32, **block)

    int8, int8_dynamic = config(Dtype.int8, "per_tensor"), config(Dtype.int8, "per_tensor", True)
    int8_channel = config(Dtype.int8, "per_channel", ch_axis=axis)
    uint8 = config(Dtype.uint8, "per_tensor", symmetric=False)
    int4 = config(Dtype.int4, "per_group", ch_axis=1 - axis, group_size=group_size)
    uint4 = config(Dtype.uint4, "per_group", symmetric=False, ch_axis=1 - axis, group_size=group_size)
    fp8, fp8_dynamic = config(Dtype.fp8_e4m3, "per_tensor"), config(Dtype.fp8_e4m3, "per_tensor", True)
    fp8_channel = config(Dtype.fp8_e4m3, "per_channel", ch_axis=axis)
    fp8_token = config(Dtype.fp8_e4m3, "per_channel", True, ch_axis=1)
    of_int4, of_mxfp4 = f"int4:g{group_size}", "e2m1:g32:e8m0"
    return {
        "int8": ("int8:tensor", int8, None),
        "int8 channel": ("int8:channel", int8_channel, None),
        "int8 static": ("int8:tensor+int8:tensor!static", int8, int8),
        "int8 channel static": ("int8:channel+uint8:tensor:zp!static", int8_channel, uint8),
        "int8 dynamic": ("int8:tensor+int8:tensor!dynamic", int8, int8_dynamic),
        "fp8": ("e4m3:tensor", fp8, None),
        "fp8 static": ("e4m3:tensor+e4m3:tensor!static", fp8, fp8),
        "fp8 dynamic": ("e4m3:tensor+e4m3:tensor!dynamic", fp8, fp8_dynamic),
        "fp8 token": ("e4m3:channel+e4m3:channel!dynamic", fp8_channel, fp8_token),
        "int4": (of_int4, int4, None),
        "int4 channel": ("int4:channel", config(Dtype.int4, "per_channel", ch_axis=axis), None),
        "uint4": (f"u{of_int4}:zp", uint4, None),
        "int4 static": (f"{of_int4}+int8:tensor!static", int4, int8),
        "int4 dynamic": (f"{of_int4}+int8:tensor!dynamic", int4, int8_dynamic),
        "mxfp4": (of_mxfp4, mxfp4(1 - axis), None),
        "mxfp4 static": (f"{of_mxfp4}+e4m3:tensor!static", mxfp4(1 - axis), fp8),
        "mxfp4 dynamic": (f"{of_mxfp4}+{of_mxfp4}!dynamic", mxfp4(1 - axis), mxfp4(-1, True)),
    }
