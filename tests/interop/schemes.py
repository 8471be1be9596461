"""The scheme names under test, by what can be expected of them."""

# Weights quantized from the weights alone; activations untouched or dynamic: exported whole.
DATA_FREE = (
    "int4_wo_32", "int4_wo_64", "int4_wo_128", "int4_wo_per_channel", "int4_wa_64",
    "uint4_wo_32", "uint4_wo_64", "uint4_wo_128", "uint4_wo_per_channel",
    "ptpc_fp8", "mxfp4", "mxfp4_weight_only", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_mxfp6_e2m3",
    "amdfp4", "amdfp4_g32", "int4_fp8",
)  # fmt: skip

# Static activation scales need calibration data; without it only their weight-only form can be made.
STATIC = ("int8", "fp8", "nvfp4", "fp4_block16_scale_e4m3", "mxfp4_fp8")

# The same, but the incumbent's own export of the weights is corrupt: nothing to compare with.
STATIC_BROKEN = ("amdfp4_global16", "amdfp4_global32")

# No layout on disk: exported as quantized-and-dequantized floats.
FAKE_ONLY = ("mx6", "mx9", "bfp16")

# A second scale (`weight_scale_2`), which transformers' own Quark loader does not map (it silently loads garbage).
TWO_STAGE = ("int4_fp8", "nvfp4", "fp4_block16_scale_e4m3")

# Enough for the generated models: one scheme of each layout.
REPRESENTATIVE = ("int4_wo_32", "uint4_wo_128", "int4_wo_per_channel", "ptpc_fp8", "mxfp4", "mxfp6_e2m3", "amdfp4", "int4_fp8")
REPRESENTATIVE_STATIC = ("int8", "fp8", "nvfp4")

# (scheme of kvant, Quark scheme): the compressed-tensors form of the first holds exactly the weights of the second.
SAME_NUMBERS = (
    ("int4_wo_32", "int4_wo_32"), ("int4_wo_per_channel", "int4_wo_per_channel"), ("ptpc_fp8", "ptpc_fp8"), ("mxfp4", "mxfp4"),
    ("mxfp6_e2m3", "mxfp6_e2m3"), ("W4A16", "int4_wo_128"), ("W4A16_ASYM", "uint4_wo_128"), ("FP8_DYNAMIC", "ptpc_fp8"),
    ("MXFP4A16", "mxfp4"), ("MXFP6A16", "mxfp6_e2m3"),
)  # fmt: skip

# llm-compressor names that mean something without data: (format, largest error in units of the block maximum).
# The bound is half the largest step of the format (a whole one where a rounded zero point shifts the range), plus the
# rounding of the scale and of the result.
COMPRESSED_TENSORS = {
    "W4A16": ("pack-quantized", 1 / 14),
    "W4A16_ASYM": ("pack-quantized", 1 / 7),
    "W8A16": ("pack-quantized", 1 / 100),
    "W8A8": ("int-quantized", 1 / 100),
    "FP8_DYNAMIC": ("float-quantized", 1 / 20),
    "FP8_BLOCK": ("float-quantized", 1 / 20),
    "NVFP4A16": ("nvfp4-pack-quantized", 1 / 5),
    "MXFP4A16": ("mxfp4-pack-quantized", 1 / 3),
    "MXFP4": ("mxfp4-pack-quantized", 1 / 3),
    "MXFP6A16": ("mxfp6-pack-quantized", 1 / 14),
    "MXFP8A16": ("mxfp8-quantized", 1 / 10),
    "MXFP8": ("mxfp8-quantized", 1 / 10),
}

# The rest of the names, tried on one model.
MORE_COMPRESSED_TENSORS = {
    "W2A16": ("pack-quantized", 1 / 2.7),
    "W3A16": ("pack-quantized", 1 / 6.5),
    "W5A16": ("pack-quantized", 1 / 25),
    "W6A16": ("pack-quantized", 1 / 45),
    "W7A16": ("pack-quantized", 1 / 70),
    "W4A8": ("int-quantized", 1 / 14),
    "W4AFP8": ("int-quantized", 1 / 14),
    "INT8": ("int-quantized", 1 / 100),
    "MXFP6A8": ("mxfp6-pack-quantized", 1 / 14),
}

# Spelled schemes without a name -> how to say the same to Quark: (dtype, granularity, group, symmetric).
SPELLED = {
    "int8:channel": ("int8", "channel", None, True),
    "int8:g32": ("int8", "group", 32, True),
    "int8:tensor:zp": ("int8", "tensor", None, False),
    "int8:channel:zp": ("int8", "channel", None, False),
    "uint8:g128:zp": ("uint8", "group", 128, False),
    "int4:tensor": ("int4", "tensor", None, True),
    "int4:g32:zp": ("int4", "group", 32, False),
    "int4:channel:zp": ("int4", "channel", None, False),
    "uint4:tensor:zp": ("uint4", "tensor", None, False),
    "int3:channel": ("int3", "channel", None, True),
    "int3:channel:zp": ("int3", "channel", None, False),
    "int2:g32": ("int2", "group", 32, True),
    "int2:channel:zp": ("int2", "channel", None, False),
    "uint2:g32:zp": ("uint2", "group", 32, False),
    "uint2:channel:zp": ("uint2", "channel", None, False),
    "e5m2:tensor": ("fp8_e5m2", "tensor", None, True),
    "e5m2:channel": ("fp8_e5m2", "channel", None, True),
}
