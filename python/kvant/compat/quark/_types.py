"""Quark's enumerations and observers. Members and names are those of amd-quark 0.13."""

from __future__ import annotations

from enum import Enum
from typing import Any

from kvant.compat._shared import unsupported


class Dtype(Enum):
    """Quark's dtypes."""

    int8 = "int8"
    uint8 = "uint8"
    uint16 = "uint16"
    int16 = "int16"
    int32 = "int32"
    int4 = "int4"
    uint4 = "uint4"
    int3 = "int3"
    int2 = "int2"
    uint2 = "uint2"
    bfloat16 = "bfloat16"
    float16 = "float16"
    fp8_e5m2 = "fp8_e5m2"
    fp8_e4m3 = "fp8_e4m3"
    fp8_e5m3 = "fp8_e5m3"
    fp6_e3m2 = "fp6_e3m2"
    fp6_e2m3 = "fp6_e2m3"
    fp4 = "fp4"
    mx = "mx"
    mx6 = "mx6"
    mx9 = "mx9"
    bfp16 = "bfp16"


class QSchemeType(Enum):
    """Which values share a scale."""

    per_tensor = "per_tensor"
    per_channel = "per_channel"
    per_group = "per_group"
    per_block = "per_block"


class ScaleType(Enum):
    """The types of scales."""

    float = "float"
    pof2 = "pof2"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float8_e5m3 = "float8_e5m3"
    float8_e8m0fnu = "float8_e8m0fnu"


class RoundType(Enum):
    """The ways of rounding. Codes are rounded half to even."""

    round = 2
    floor = 3
    half_even = 8


class ZeroPointType(Enum):
    """The types of zero points."""

    int32 = "int32"
    float32 = "float32"


class DeviceType(Enum):
    """The devices that a configuration may be meant for. They change nothing."""

    CPU = "cpu"
    IPU = "ipu"


class QuantizationMode(Enum):
    """The modes. Models are quantized in place, in eager mode."""

    eager_mode = 1
    fx_graph_mode = 2


class QuantFlow(Enum):
    """The flows. Models are quantized in memory, in the standard one."""

    standard = 1
    file2file = 2
    per_block = 3


class TQTThresholdInitMeth(Enum):
    """How trained thresholds begin. Not supported."""

    _3SD = "_3sd"
    _KL_J = "_kl_j"


class ObserverBase:
    """An observer, of which only the name counts.

    Attributes:
        spelling: What schemes call it; None for observers that Kvant does not have.
        has_power_of_two_scales: Whether scales are powers of two.
    """

    spelling: str | None = None
    has_power_of_two_scales = False

    def __init__(self, *_: Any, **__: Any) -> None:
        """Refuses.

        Raises:
            UnsupportedError: Always.
        """
        raise unsupported(
            f"{type(self).__name__} on its own: configurations name its class as `observer_cls`",
            "use kvant.Observer, which takes batches and gives scale and zero point",
        )


class PlaceholderObserver(ObserverBase):
    """Observes nothing."""

    spelling = ""


class PerTensorMinMaxObserver(ObserverBase):
    """The least and the greatest value."""

    spelling = ""


class PerChannelMinMaxObserver(ObserverBase):
    """The same for each channel."""

    spelling = ""


class PerGroupMinMaxObserver(ObserverBase):
    """The same for each group."""

    spelling = ""


class PerBlockMXObserver(ObserverBase):
    """The greatest magnitude of each block."""

    spelling = ""


class PerBlockMXBufferReuseObserver(ObserverBase):
    """The same in less memory."""

    spelling = ""


class PerBlockBFPObserver(ObserverBase):
    """The exponent of each block of BFP16."""

    spelling = ""


class PerTensorPercentileObserver(ObserverBase):
    """All but a few of the greatest values."""

    spelling = ":percentile99.99999999"


class PerTensorMSEObserver(ObserverBase):
    """The range with the least squared error."""

    spelling = ":mse"


class PerTensorPowOf2MinMaxObserver(ObserverBase):
    """The least power of two for all values."""

    spelling = ""
    has_power_of_two_scales = True


class PerChannelPowOf2MinMaxObserver(ObserverBase):
    """The same for each channel."""

    spelling = ""
    has_power_of_two_scales = True


class PerTensorPowOf2MinMSEObserver(ObserverBase):
    """The power of two with the least squared error."""

    spelling = ":mse"
    has_power_of_two_scales = True


class PerChannelPowOf2MinMSEObserver(ObserverBase):
    """Not supported: one search for all channels."""


class PerTensorHistogramObserver(ObserverBase):
    """Not supported: its range stays infinite in Quark."""


class PerTensorHistogramObserverPro(ObserverBase):
    """Not supported: the search of torch's histogram observer."""


class PerBlockMXDiffsObserver(ObserverBase):
    """Not supported: the better of two exponents for each block."""


class PerBlock2DMinMaxObserver(ObserverBase):
    """Not supported, nor computed by Quark: blocks of rows and columns."""


class UniformScalingObserver(ObserverBase):
    """Not supported: the base of others."""


class LSQObserver(ObserverBase):
    """Not supported: learned step sizes."""


class TQTObserver(ObserverBase):
    """Not supported: learned thresholds."""


_CLASSES: list[type[ObserverBase]] = [ObserverBase, *ObserverBase.__subclasses__()]
OBSERVERS = {kind.__name__: kind for kind in _CLASSES}
"""The observers by name."""
