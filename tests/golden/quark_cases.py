"""The quantization specs whose results are pinned, as a table of cases: what to quantize, how, on which inputs.

A case is a dict of plain facts (they go into the golden file as they are) plus the amd-quark spec that computes
it. Inputs are (rows, cols, dtype, transform). Nothing is computed here.
"""

from quark.torch.quantization.config import config as C
from quark.torch.quantization.config.config import ProgressiveSpec, QTensorConfig, ScaleQuantSpec
from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType, ZeroPointType
from quark.torch.quantization.observer import observer as O

INTS = ("int8", "uint8", "int4", "uint4", "int3", "int2", "uint2")
WIDE_INTS = ("int16", "int32")
FP8 = ("fp8_e4m3", "fp8_e5m2")
ELEMENTS = ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "fp8_e5m2")
DTYPES = ("f32", "bf16", "f16")
PROBE = (8, 128, "f32", "probe")

SCHEMES = {"tensor": QSchemeType.per_tensor, "channel": QSchemeType.per_channel, "group": QSchemeType.per_group}
MINMAX = {"tensor": O.PerTensorMinMaxObserver, "channel": O.PerChannelMinMaxObserver, "group": O.PerGroupMinMaxObserver}
OBSERVERS = {
    "percentile": {"tensor": O.PerTensorPercentileObserver},
    "mse": {"tensor": O.PerTensorMSEObserver},
    "histogrampro": {"tensor": O.PerTensorHistogramObserverPro},
    "pof2minmax": {"tensor": O.PerTensorPowOf2MinMaxObserver, "channel": O.PerChannelPowOf2MinMaxObserver},
    "pof2minmse": {"tensor": O.PerTensorPowOf2MinMSEObserver, "channel": O.PerChannelPowOf2MinMSEObserver},
    "minmax": MINMAX,
}


def scaled(fmt, granularity, symmetric=True, axis=None, group=None, observer="minmax", scale="model", zero_point="int", dynamic=False):
    """One scale per tensor, channel of `axis`, or group of `group` along `axis`."""
    scale_type = {"model": ScaleType.float, "f32": ScaleType.float32, "f16": ScaleType.float16,
                  "bf16": ScaleType.bfloat16, "pof2": ScaleType.pof2}[scale]
    extra = {"zero_point_type": ZeroPointType.float32} if zero_point == "float" else {}
    spec = QTensorConfig(dtype=getattr(Dtype, fmt), qscheme=SCHEMES[granularity], observer_cls=OBSERVERS[observer][granularity],
                         symmetric=symmetric, ch_axis=axis, group_size=group, scale_type=scale_type,
                         round_method=RoundType.half_even, is_dynamic=dynamic, **extra)
    facts = dict(kind="scaled", format=fmt, granularity=granularity, axis=axis, group=group, symmetric=symmetric,
                 observer=observer, scale_type=scale, zero_point_type=zero_point)
    return facts, spec


def blocked(fmt, group, scale, rule=None):
    """Low-precision floats with one scale per block along the last axis: scale is e8m0 | f32 | e4m3 | e5m3."""
    scale_format = {"f32": "float32"}.get(scale, scale)
    if scale == "e5m3":
        spec = C.AmdFP4Spec(ch_axis=-1, group_size=group, is_dynamic=False).to_quantization_spec()
    elif rule == "diffs":
        spec = C.OCP_MXFP4DiffsSpec(ch_axis=-1).to_quantization_spec()
    else:
        kind = ScaleType.float32 if scale == "e4m3" else ScaleType.float
        spec = QTensorConfig(dtype=getattr(Dtype, fmt), qscheme=QSchemeType.per_group, observer_cls=O.PerBlockMXObserver,
                             symmetric=None, ch_axis=-1, group_size=group, scale_type=kind, round_method=RoundType.half_even,
                             is_dynamic=False, scale_format=scale_format, scale_calculation_mode=rule)
    return dict(kind="blocked", format=fmt, granularity="group", axis=-1, group=group, scale_type=scale, rule=rule), spec


def fp4_with_global(group, second):
    """NVFP4 (second e4m3) and its e5m3 relative: fp4 blocks whose scales are fp8 under one f32 tensor scale."""
    stage = {"e4m3": C.FP8E4M3PerTensorSpec, "e5m3": C.FP8E5M3PerTensorSpec}[second]
    spec = ScaleQuantSpec(first_stage=C.FP4PerGroupSpec(ch_axis=-1, group_size=group, is_dynamic=False, scale_type="float32"),
                          second_stage=stage(observer_method="min_max", is_dynamic=False, scale_type="float32")).to_quantization_spec()
    return dict(kind="two_level", format="fp4", granularity="group", axis=-1, group=group, scale_type=second), spec


def int4_fp8():
    """Progressive: fp8 e4m3 per tensor, then int4 per channel of the fp8 values."""
    spec = ProgressiveSpec(
        first_stage=C.FP8E4M3PerTensorSpec(observer_method="min_max", scale_type="float32", is_dynamic=False),
        second_stage=C.Int4PerChannelSpec(symmetric=True, scale_type="float32", round_method="half_even", ch_axis=0, is_dynamic=False),
    ).to_quantization_spec()
    return dict(kind="progressive", format="int4", granularity="channel", axis=0, group=None, scale_type="f32"), spec


def unscaled(fmt, group=None, element=None, rule=None):
    """Formats that keep no separate scale: mx6, mx9, bfp16, the old mx type, and casts to 16-bit floats."""
    if fmt in ("mx6", "mx9"):
        spec = {"mx6": C.MX6Spec, "mx9": C.MX9Spec}[fmt](ch_axis=-1, block_size=group).to_quantization_spec()
    elif fmt == "bfp16":
        spec = C.BFP16Spec(ch_axis=-1).to_quantization_spec()
    elif fmt == "mx":
        spec = QTensorConfig(dtype=Dtype.mx, mx_element_dtype=getattr(Dtype, element), ch_axis=-1, group_size=group,
                             scale_calculation_mode=rule)
    else:
        spec = {"float16": C.Float16Spec, "bfloat16": C.Bfloat16Spec}[fmt]().to_quantization_spec()
    return dict(kind="unscaled", format=fmt, granularity="group" if group else "none", axis=-1 if group else None, group=group,
                element=element, rule=rule), spec


def probe_table():
    """Every case of the original probe of amd-quark 0.13: f32, 8 x 128."""
    for fmt in INTS + WIDE_INTS:
        for symmetric in (True, False):
            yield scaled(fmt, "tensor", symmetric)
            yield scaled(fmt, "channel", symmetric, axis=0)
            if fmt in INTS:
                yield from (scaled(fmt, "group", symmetric, axis=-1, group=g) for g in (32, 64))
    yield scaled("uint4", "group", False, axis=-1, group=32, zero_point="float")
    yield scaled("uint4", "channel", False, axis=0, zero_point="float")
    for scale in ("f16", "bf16", "f32"):
        yield scaled("int8", "tensor", True, scale=scale)
        yield scaled("int4", "group", True, axis=-1, group=32, scale=scale)
    yield from observer_table()
    yield from float_table()


def observer_table():
    for fmt in ("int8", "uint8", "uint4", "int4"):
        for symmetric in (True, False):
            names = ("percentile", "mse") if fmt == "int4" else ("percentile", "mse", "histogrampro")
            yield from (scaled(fmt, "tensor", symmetric, observer=o) for o in names)
    for fmt in ("int8", "uint8"):
        for symmetric in (True, False):
            yield from (scaled(fmt, "tensor", symmetric, observer=o, scale="pof2") for o in ("pof2minmax", "pof2minmse"))
            yield from (scaled(fmt, "channel", symmetric, axis=0, observer=o, scale="pof2") for o in ("pof2minmax", "pof2minmse"))


def float_table():
    for fmt in FP8:
        yield scaled(fmt, "tensor")
        yield scaled(fmt, "channel", axis=0)
        yield scaled(fmt, "channel", axis=0, dynamic=True)
        yield scaled(fmt, "group", None, axis=-1, group=32)
        yield scaled(fmt, "tensor", observer="mse")
    for fmt in ELEMENTS:
        yield from (blocked(fmt, 32, "e8m0", rule) for rule in ("even", "floor", "ceil"))
        yield blocked(fmt, 32, "f32")
    yield blocked("fp4", 32, "e8m0", "diffs")
    yield blocked("fp4", 16, "e4m3")
    yield from (blocked("fp4", g, "e5m3") for g in (16, 32))
    yield from (fp4_with_global(g, second) for g, second in ((16, "e4m3"), (16, "e5m3")))
    yield int4_fp8()
    yield from (unscaled("mx6", 16), unscaled("mx9", 16), unscaled("bfp16", 8))
    for element in ("int8", "fp8_e4m3", "fp4", "fp6_e3m2"):
        yield from (unscaled("mx", 32, element, rule) for rule in ("even", "floor"))
    yield from (unscaled("float16"), unscaled("bfloat16"))


def wide_table():
    """Every weight format and granularity, for the model dtypes and the odd shapes."""
    for fmt in INTS:
        for symmetric in (True, False):
            yield scaled(fmt, "tensor", symmetric)
            yield from (scaled(fmt, "channel", symmetric, axis=a) for a in (0, 1))
            yield from (scaled(fmt, "group", symmetric, axis=-1, group=g) for g in (16, 128, -1))
    yield from float_table()


def edge_table():
    """The schemes that a checkpoint can use, for inputs at the edges of the number formats."""
    yield from (scaled(f, "group", f == "int4", axis=-1, group=32) for f in ("int4", "uint4"))
    yield from (scaled(f, "channel", f == "int4", axis=0) for f in ("int4", "uint4"))
    yield from (scaled("int8", "tensor", True), scaled("int8", "channel", True, axis=0), scaled("int8", "channel", False, axis=0))
    for fmt in FP8:
        yield from (scaled(fmt, "tensor"), scaled(fmt, "channel", axis=0))
    yield from (blocked(f, 32, "e8m0", rule) for f in ELEMENTS[:4] for rule in ("even", "floor", "ceil"))
    yield from (blocked("fp4", g, "e5m3") for g in (16, 32))
    yield from (fp4_with_global(16, "e4m3"), int4_fp8())
    yield from (unscaled("mx6", 16), unscaled("mx9", 16), unscaled("bfp16", 8))
    yield from (unscaled("mx", 32, "int8", rule) for rule in ("even", "floor"))


def edge_inputs():
    tiny = {"f32": "pow-130", "bf16": "pow-130", "f16": "pow-20"}
    huge = {"f32": "pow126", "bf16": "pow126", "f16": "pow14"}
    peaks = {"f32": "peaks127", "bf16": "peaks127", "f16": "peaks15"}
    for dtype in DTYPES:
        for transform in ("zeros", "constant", "positive", "negative", tiny[dtype], huge[dtype], peaks[dtype]):
            yield (4, 96, dtype, transform)


def tables():
    """(file stem, inputs, cases) for every golden file."""
    wide_inputs = [(8, 128, "bf16", "probe"), (8, 128, "f16", "probe"), (5, 96, "bf16", "flat")]
    return (
        ("quark_probe", [PROBE], probe_table),
        ("quark_wide", wide_inputs, wide_table),
        ("quark_edge", list(edge_inputs()), edge_table),
    )
