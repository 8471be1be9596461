"""Runs one spec of amd-quark on one tensor and returns what the golden file records: scales, zero points, codes,
dequantized values and the packed bytes of the export, plus whether those agree with each other ("sound")."""

import copy
import zlib

import torch
from quark.torch.export.nn.modules.realquantizer import get_real_quantizer
from quark.torch.quantization.post_calibration import realign_single_sequential_quantizer
from quark.torch.quantization.tensor_quantize import FakeQuantizeBase, SequentialQuantize

from unpack import unpack_codes

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.uint8: "u8", torch.int8: "i8",
         torch.int32: "i32", torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2"}
UNPUBLISHED = "the incumbent cannot export this layout"


def raw_bytes(t):
    """Little-endian bytes of a tensor, row by row."""
    return t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def crc(t):
    return f"{zlib.crc32(raw_bytes(t)):08x}"


def whole(t):
    """A small tensor written out: dtype, shape, all bytes in hex."""
    return {"dtype": NAMES[t.dtype], "shape": list(t.shape), "hex": raw_bytes(t).hex()}


def hashed(t, count):
    """A large tensor: dtype, shape, CRC-32 of all bytes, hex of the last `count` elements."""
    flat = t.detach().contiguous().reshape(-1)
    return {"dtype": NAMES[t.dtype], "shape": list(t.shape), "crc32": crc(t), "tail": raw_bytes(flat[-count:]).hex()}


def listed(codes):
    """Codes: shape, CRC-32 of all of them as little-endian i32, the last 16 as numbers."""
    codes = codes.to(torch.int32).contiguous()
    return {"shape": list(codes.shape), "crc32": crc(codes), "tail": codes.reshape(-1)[-16:].tolist()}


def values(y):
    """Dequantized values as f32 with -0 written as +0 (the incumbent's sign of zero is an accident)."""
    y = y.detach().float()
    return torch.where(y == 0, torch.zeros_like(y), y)


def observe(spec, x):
    """A quantizer that has seen x, and its fake-quantized output."""
    fq = FakeQuantizeBase.get_fake_quantize(spec)
    fq.enable_observer()
    if not isinstance(fq, SequentialQuantize):
        fq.enable_fake_quant()
    y = fq(x.clone())
    if isinstance(fq, SequentialQuantize) and fq[-1].is_scale_quant:
        realign_single_sequential_quantizer(fq)
    return fq, y


def export(spec, fq, x, reorder):
    """The tensors the incumbent's safetensors export would write for weight x: (packed weight, real quantizer)."""
    fq = copy.deepcopy(fq)  # packing the zero point changes it in place
    rq = get_real_quantizer(qspec=spec, quantizer=fq, reorder=reorder, real_quantized=True, float_dtype=torch.float32,
                            device=torch.device("cpu"))
    packed = rq.to_real_quantize_params(x.clone())
    rq.maybe_convert_and_transpose_scale()
    rq.pack_zero_point()
    return packed, rq


def stages(quantizer):
    return list(quantizer) if isinstance(quantizer, torch.nn.Sequential) else [quantizer]


def parameters(fq, x):
    """[(scale, zero point)] per stage, as computed (not as stored)."""
    found = []
    for stage in stages(fq):
        if getattr(stage, "scale", None) is not None:
            found.append((stage.scale, stage.zero_point))
        elif stage.is_dynamic and getattr(stage, "observer", None) is not None:
            found.append(stage.observe(x))
    return found


def weight_flow(facts, spec, x):
    """The whole path of a static weight: observe, export, load. Returns (record, quantizer, fake-quantized, loaded).

    The incumbent exports the frozen (fake-quantized, rounded) weight, which can move a code to its neighbour; the
    record holds the codes of x itself unless only the other ones decode to the fake-quantized weight."""
    fq, y = observe(spec, x)
    two_stage = isinstance(fq, SequentialQuantize)
    direct, loaded = exported_record(facts, spec, fq, x, x)
    if two_stage:
        return direct, fq, loaded, loaded
    again, reloaded = exported_record(facts, spec, fq, y, x)
    if not same(loaded, y) and same(reloaded, y):
        return again, fq, y, reloaded
    if again["codes"] != direct["codes"]:
        direct["codes_after_requantization"] = again["codes"]["crc32"]
    return direct, fq, y, loaded


def exported_record(facts, spec, fq, weight, x):
    """What the export writes for `weight`, and the weight a loader gets back."""
    packed, rq = export(spec, fq, weight, reorder=True)
    record = {"stored_scale": [hashed(s.scale, 8) for s in stages(rq)], "packed": hashed(packed, 8)}
    zero_points = [s.zero_point for s in stages(rq) if getattr(s, "zero_point", None) is not None and s.zero_point.numel()]
    if facts["format"].startswith(("int", "uint")):
        record["stored_zero_point"] = hashed(zero_points[-1], 8)
    if facts["format"] in ("int4", "uint4"):
        record["packed_in_order"] = crc(export(spec, fq, weight, reorder=False)[0])
    record["codes"] = listed(unpack_codes(facts, packed, x.shape))
    return record, rq(packed).to(x.dtype)


def same(a, b):
    return torch.equal(values(a), values(b))


def judge(facts, spec, x, y, loaded, found):
    """Why a record is not to be reproduced, or None."""
    unsigned = facts["format"].startswith("uint")
    if facts["kind"] == "scaled" and unsigned and facts["symmetric"] and (x < 0).any():
        return "symmetric with an unsigned format clips every negative value"
    observer = facts.get("observer")
    if observer in ("percentile", "mse") and facts["symmetric"] is False:
        return f"the {observer} observer drops part of an asymmetric range"
    if observer == "mse":
        return "the mse observer tries only the last 3 of 2048 candidates"
    if observer == "histogrampro":
        return "torch.ao histogram search, not offered"
    if facts.get("zero_point_type") == "float":
        return "codes are not integers when the zero point is real"
    if facts["format"] == "int32" and not facts["symmetric"]:
        return "f32 cannot hold the zero points of a 32-bit format"
    if facts["kind"] == "two_level" and facts["scale_type"] == "e5m3":
        return "block scales are stored modulo 256 instead of as e5m3 codes"
    if not all(torch.isfinite(s.float()).all() for s, _ in found) or torch.isnan(y.float()).any():
        return "arithmetic in the model dtype overflows"
    if loaded is not None and not same(loaded, y):
        return "the exported codes or scales do not decode to the calibrated weight"
    return exact_exponent_complaint(facts, spec, x, y, found)


def exact_exponent_complaint(facts, spec, x, y, found):
    """The block exponents of bfp16 and of the floor and ceil rules come from a log2 rounded to the model dtype."""
    if x.dtype == torch.float32 or not (facts["format"] == "bfp16" or facts.get("rule") in ("floor", "ceil", "diffs")):
        return None
    fq, wide = observe(spec, x.float())
    exact = same(wide.to(x.dtype), y) and all(same(a, b) for (a, _), (b, _) in zip(found, parameters(fq, x.float())))
    return None if exact else "log2 of the block maximum is rounded to the model dtype"


def evaluate(facts, spec, x):
    """The golden record of one case on one input (without the input's description)."""
    record, loaded = {}, None
    dynamic = getattr(spec, "is_dynamic", False)
    try:
        if dynamic or facts["kind"] == "unscaled":
            raise NotImplementedError(UNPUBLISHED)
        record, fq, y, loaded = weight_flow(facts, spec, x)
    except Exception as error:  # whatever the incumbent raises: the fake-quantized values remain
        record = {"export_error": f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"}
        fq, y = observe(spec, x)
    found = parameters(fq, x)
    record = {"scale": [whole(s) for s, _ in found], "zero_point": [zero_point_record(z) for _, z in found], **record}
    record["dequantized"] = hashed(values(y), 8)
    reason = judge(facts, spec, x, y, loaded, found)
    return {**record, "sound": reason is None, **({"reason": reason} if reason else {})}


def zero_point_record(z):
    """Integers as a list; all-zero ones as 0; real zero points as bits."""
    if not (z == torch.round(z.float())).all():
        return whole(z)
    flat = [int(v) for v in z.reshape(-1)]
    return flat if any(flat) else 0
