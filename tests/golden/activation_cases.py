"""What amd-quark's fake quantizers make of activations: calibrated on two batches where they are static, then applied to a third.

A case is (spelling in Kvant, spec). Records hold the calibrated scales and zero points and a hash of the values.
"""

from golden_input import make_input
from quark.torch.quantization.config import config as C
from quark.torch.quantization.config.config import ScaleQuantSpec
from quark.torch.quantization.tensor_quantize import DynamicScaledFakeQuantize, FakeQuantizeBase, SequentialQuantize
from quark_cases import blocked, scaled, unscaled
from quark_eval import hashed, values, whole


def two_level(group, second):
    first = C.FP4PerGroupSpec(ch_axis=-1, group_size=group, is_dynamic=True, scale_type="float32")
    stage = {"e4m3": C.FP8E4M3PerTensorSpec, "e5m3": C.FP8E5M3PerTensorSpec}[second]
    return ScaleQuantSpec(first_stage=first, second_stage=stage(observer_method="min_max", is_dynamic=False, scale_type="float32")).to_quantization_spec()


def dynamic_blocks(fmt, group, scale, rule=None):
    spec = blocked(fmt, group, scale, rule)[1]
    spec.is_dynamic = True
    return spec


def cases():
    """(spelling, spec); axes are those of [tokens, features]."""
    static = [("int8:tensor", ("int8", "tensor"), {}), ("int8:tensor:zp", ("int8", "tensor"), dict(symmetric=False)),
              ("uint8:tensor:zp", ("uint8", "tensor"), dict(symmetric=False)),
              ("int8:channel@1", ("int8", "channel"), dict(axis=1)), ("uint8:channel@1:zp", ("uint8", "channel"), dict(axis=1, symmetric=False)),
              ("e4m3:tensor", ("fp8_e4m3", "tensor"), {}), ("e4m3:tensor:f32", ("fp8_e4m3", "tensor"), dict(scale="f32")),
              ("e5m2:tensor", ("fp8_e5m2", "tensor"), {}), ("e4m3:channel@1", ("fp8_e4m3", "channel"), dict(axis=1))]
    for text, kind, more in static:
        yield f"{text}!static", scaled(*kind, dynamic=False, **more)[1]
    dynamic = [("int8:tensor", ("int8", "tensor"), {}), ("int8:channel", ("int8", "channel"), dict(axis=0)),
               ("uint8:channel:zp", ("uint8", "channel"), dict(axis=0, symmetric=False)), ("int4:g32", ("int4", "group"), dict(axis=-1, group=32)),
               ("uint4:g32:zp", ("uint4", "group"), dict(axis=-1, group=32, symmetric=False)), ("e4m3:tensor", ("fp8_e4m3", "tensor"), {}),
               ("e4m3:tensor:f32", ("fp8_e4m3", "tensor"), dict(scale="f32")), ("e4m3:channel", ("fp8_e4m3", "channel"), dict(axis=0)),
               ("e5m2:channel", ("fp8_e5m2", "channel"), dict(axis=0))]
    for text, kind, more in dynamic:
        yield f"{text}!dynamic", scaled(*kind, dynamic=True, **more)[1]
    for fmt, name in (("fp4", "e2m1"), ("fp6_e2m3", "e2m3"), ("fp6_e3m2", "e3m2"), ("fp8_e4m3", "e4m3")):
        yield f"{name}:g32:e8m0!dynamic", dynamic_blocks(fmt, 32, "e8m0", "even")
    yield "e2m1:g16!dynamic", dynamic_blocks("fp4", 16, "f32")
    yield "e4m3:g32!dynamic", dynamic_blocks("fp8_e4m3", 32, "f32")
    for group in (16, 32):
        yield f"e2m1:g{group}:e5m3!dynamic", dynamic_blocks("fp4", group, "e5m3")
        yield f"e2m1:g{group}:e5m3:f32!local", two_level(group, "e5m3")
    yield "e2m1:g16:e4m3:f32!local", two_level(16, "e4m3")
    yield "mx6!dynamic", unscaled("mx6", 16)[1]
    yield "mx9!dynamic", unscaled("mx9", 16)[1]


# (rows, columns, transform of the two batches of calibration, transform of what is quantized)
SHAPES = [(5, 96, "flat", "flat"), (8, 128, "probe", "probe"), (8, 128, "flat", "probe"), (4, 96, "positive", "flat"),
          (4, 96, "flat", "zeros"), (4, 96, "pow-20", "flat"), (4, 96, "pow14", "pow14"), (3, 100, "flat", "flat")]


def calibrated(spec, batches):
    """A quantizer as calibration leaves it."""
    fq = FakeQuantizeBase.get_fake_quantize(spec)
    if isinstance(fq, DynamicScaledFakeQuantize) or not hasattr(fq, "observer") and not isinstance(fq, SequentialQuantize):
        return fq
    fq.disable_fake_quant()
    fq.enable_observer()
    for batch in batches:
        fq(batch.clone())
    for stage in fq if isinstance(fq, SequentialQuantize) else [fq]:
        stage.enable_observer(bool(stage.is_dynamic))
        stage.enable_fake_quant()
    return fq


def found(fq):
    """What calibration stores: of two stages the second."""
    stage = fq[1] if isinstance(fq, SequentialQuantize) else fq
    if stage.is_dynamic or getattr(stage, "scale", None) is None:
        return {}
    points = stage.zero_point.reshape(-1).tolist()
    return {"scale": whole(stage.scale), **({"zero_point": [int(p) for p in points]} if any(points) else {})}


def quantized(fq, x):
    # The fused kernel of MXFP4 is for GPUs; this is what it fuses.
    return fq.fake_quantize(x) if isinstance(fq, DynamicScaledFakeQuantize) else fq(x)


def records():
    for rows, cols, first, then in SHAPES:
        for dtype in ("f32", "bf16", "f16"):
            batches = [make_input(rows, cols, dtype, first, seed) for seed in (1, 2)]
            x = make_input(rows, cols, dtype, then, 3)
            for text, spec in cases():
                grouped = ":g32" in text and "int" in text
                if grouped and cols % 32:
                    continue
                fq = calibrated(spec, batches)
                stored = found(fq)
                y = quantized(fq, x.clone())
                described = [dict(rows=rows, cols=cols, dtype=dtype, transform=t, seed=s) for t, s in ((first, 1), (first, 2), (then, 3))]
                yield {"id": f"{text}|{dtype}:{rows}x{cols}:{first}:{then}", "scheme": text, "batches": described[:2], "input": described[2],
                       **stored, "values": hashed(values(y), 8), "sound": bool(y.isfinite().all())}
