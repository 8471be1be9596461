"""Packed weights of the incumbent's export back to codes [rows, cols] in the orientation of the source weight.

Integer formats give signed or unsigned values; float formats give the bit pattern of each element. Group-wise
integer weights are stored transposed (int3 excepted), see README.md.
"""

import torch

REORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def sign_extend(codes, bits):
    half = 1 << (bits - 1)
    return torch.where(codes >= half, codes - 2 * half, codes)


def nibbles(packed, order=REORDER):
    """int32 words of 8 codes: nibble i holds element order[i]."""
    fields = torch.stack([(packed >> (4 * i)) & 15 for i in range(8)], -1)
    codes = torch.empty_like(fields)
    codes[..., list(order)] = fields
    return codes.reshape(*packed.shape[:-1], -1)


def bit_fields(packed, bits):
    """Triples of bytes as little-endian 24-bit words of 24 / bits fields, lowest first."""
    b = packed.reshape(*packed.shape[:-1], -1, 3).to(torch.int32)
    word = b[..., 0] | (b[..., 1] << 8) | (b[..., 2] << 16)
    fields = [(word >> (bits * i)) & ((1 << bits) - 1) for i in range(24 // bits)]
    return torch.stack(fields, -1).reshape(*packed.shape[:-1], -1)


def unpack_rows(fmt, packed):
    """Codes along the last axis of the stored tensor."""
    if fmt in ("int4", "uint4"):
        codes = nibbles(packed)
        return sign_extend(codes, 4) if fmt == "int4" else codes
    if fmt == "int3":
        return sign_extend(bit_fields(packed, 3), 3)
    if fmt == "uint2":
        return torch.stack([(packed.to(torch.int32) >> s) & 3 for s in (6, 4, 2, 0)], -1).reshape(*packed.shape[:-1], -1)
    if fmt == "fp4":
        return torch.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
    if fmt.startswith("fp6"):
        return bit_fields(packed, 6)
    if fmt.startswith("fp8"):
        return packed.view(torch.uint8)
    return packed


def unpack_codes(facts, packed, shape):
    """Codes [rows, cols] of a packed weight whose source had `shape`."""
    integer = facts["format"].startswith(("int", "uint"))
    codes = unpack_rows(facts["format"], packed)
    if integer and facts["granularity"] == "group" and facts["format"] != "int3":
        codes = codes[:, : shape[0]].t()
    return codes[: shape[0], : shape[1]].contiguous()
