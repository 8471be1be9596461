"""What compressed-tensors' own compressors write for small tensors, byte by byte, and how they decompress it.

Scales and zero points are computed here by the library's min-max formulas; the codes are listed too, so a packing
can be tested apart from the arithmetic that chose the codes.
"""

import zlib

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

from golden_input import make_input

DTYPE_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.uint8: "u8", torch.int8: "i8",
               torch.int32: "i32", torch.int64: "i64", torch.float8_e4m3fn: "f8_e4m3"}
PRESETS = ("W8A8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16", "MXFP6A16", "MXFP8A16")
# More than 16 rows: the library cannot unpack zero points that fill a single word.
INT_INPUTS = [(17, 64, "bf16", "flat"), (18, 32, "f16", "probe")]
FLOAT_INPUTS = [(5, 64, "bf16", "flat"), (3, 96, "f16", "probe"), (4, 64, "f32", "positive"), (2, 64, "bf16", "zeros")]


def int_scheme(bits, symmetric, strategy, group=None):
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=group)
    return f"int{bits}|{strategy}{group or ''}|{'sym' if symmetric else 'asym'}", QuantizationScheme(targets=["Linear"], weights=args)


def schemes():
    for bits in range(2, 9):
        for symmetric in (True, False):
            yield int_scheme(bits, symmetric, "group", 32)
            yield int_scheme(bits, symmetric, "channel")
    yield from ((name, preset_name_to_scheme(name, ["Linear"])) for name in PRESETS)


def blocks(w, shape):
    """[row blocks, column blocks, elements], zero padded."""
    rows, cols = -(-w.shape[0] // shape[0]), -(-w.shape[1] // shape[1])
    padded = torch.zeros(rows * shape[0], cols * shape[1], dtype=w.dtype)
    padded[: w.shape[0], : w.shape[1]] = w
    return padded.reshape(rows, shape[0], cols, shape[1]).transpose(1, 2).reshape(rows, cols, -1)


def ranges(w, args):
    """Minimum and maximum of each set of elements that shares a scale."""
    if args.strategy == "block":
        view = blocks(w, args.block_structure)
    elif args.group_size:
        view = w.reshape(w.shape[0], -1, args.group_size)
    else:
        view = w.reshape(w.shape[0], 1, -1)
    return view.amin(-1), view.amax(-1)


def parameters(w, args):
    """The state dict a calibrated module would hold."""
    state, shared = {"weight": w}, None
    if args.strategy == "tensor_group":
        shared = state["weight_global_scale"] = generate_gparam(w.amin(), w.amax())
    scale, zero_point = calculate_qparams(*ranges(w, args), args, global_scale=shared)
    return {**state, "weight_scale": scale, **({} if args.symmetric else {"weight_zero_point": zero_point})}


def raw_bytes(t):
    return t.detach().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()


def written(t):
    return {"dtype": DTYPE_NAMES[t.dtype], "shape": list(t.shape), "hex": raw_bytes(t).hex()}


def hashed(t):
    """f32 values with -0 as +0: CRC-32 of all bytes, hex of the last 8."""
    t = t.float()
    data = raw_bytes(torch.where(t == 0, torch.zeros_like(t), t))
    return {"dtype": "f32", "shape": list(t.shape), "crc32": f"{zlib.crc32(data):08x}", "tail": data[-32:].hex()}


def integer_codes(state, scheme):
    """Codes as signed integers, for the integer formats."""
    if scheme.weights.type != "int":
        return {}
    q = quantize(x=state["weight"], scale=state["weight_scale"], zero_point=state.get("weight_zero_point"), args=scheme.weights,
                 dtype=torch.int8)
    zero = state.get("weight_zero_point")
    return {"codes": written(q), **({} if zero is None else {"zero_points": written(zero)})}


def record(name, scheme, where):
    rows, cols, dtype, transform = where
    state = parameters(make_input(rows, cols, dtype, transform), scheme.weights)
    kind = infer_module_format(torch.nn.Linear, scheme).value
    compressor = BaseCompressor.get_value_from_registry(kind)
    tensors = {k: v.clone(memory_format=torch.contiguous_format) for k, v in compressor.compress(state, scheme).items()}
    weight = compressor.decompress(tensors, scheme)["weight"]
    return {"id": f"{name}|{dtype}:{rows}x{cols}:{transform}", "format": kind,
            "input": {"rows": rows, "cols": cols, "dtype": dtype, "transform": transform},
            "weights": {k: v for k, v in scheme.weights.model_dump(mode="json").items() if v not in (None, {})},
            **integer_codes(state, scheme), "tensors": {k: written(v) for k, v in sorted(tensors.items())},
            "dequantized": hashed(weight), "sound": bool(torch.isfinite(weight.float()).all())}


def inputs(scheme):
    """The inputs whose columns the group size divides."""
    choice = INT_INPUTS if scheme.weights.type == "int" else FLOAT_INPUTS
    return [i for i in choice if i[1] % (scheme.weights.group_size or 1) == 0]


def compressed_records():
    for name, scheme in schemes():
        yield from (record(name, scheme, where) for where in inputs(scheme))
