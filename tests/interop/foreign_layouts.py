"""Quantized layers in the layouts of tools that are not installed, made from their descriptions.

Each function takes an f32 weight [out, in] and returns the tensors of the module, the weight that they stand for, and
the quantization_config."""

import torch

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def affine(weight, group_of, groups, bits, least_zero):
    """Codes, zero points [out, groups], f16 scales [out, groups] and the weight; groups are any sets of columns."""
    one_hot = torch.nn.functional.one_hot(group_of, groups).bool()
    low = torch.stack([weight[:, one_hot[:, g]].amin(1) for g in range(groups)], 1).clamp(max=0)
    high = torch.stack([weight[:, one_hot[:, g]].amax(1) for g in range(groups)], 1).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).clamp(min=1e-5).half()
    zeros = (-low / scales.float()).round().clamp(least_zero, 2**bits - 1)
    scale, zero = scales.float()[:, group_of], zeros[:, group_of]
    codes = (weight / scale + zero).round().clamp(0, 2**bits - 1)
    return codes.long(), zeros.long(), scales, (codes - zero) * scale


def words(codes, bits):
    """Codes [n, lines] as streams down the first axis: code i from bit i * bits on; int32 [n * bits / 32, lines]."""
    n, lines = codes.shape
    planes = (codes[:, None, :] >> torch.arange(bits)[None, :, None]) & 1
    planes = planes.reshape(n * bits // 32, 32, lines)
    packed = (planes << torch.arange(32)[None, :, None]).sum(1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def awq(weight, group):
    columns = weight.shape[1]
    codes, zeros, scales, values = affine(weight, torch.arange(columns) // group, columns // group, 4, 0)

    def pack(matrix):  # [lines, out] -> [lines, out / 8]
        eights = matrix.reshape(matrix.shape[0], -1, 8)[:, :, AWQ_ORDER]
        return words(eights.reshape(matrix.shape[0], -1).t(), 4).t()

    tensors = {"qweight": pack(codes.t()), "qzeros": pack(zeros.t()), "scales": scales.t()}
    return tensors, values, {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}


def gptq(weight, bits, group, version, order):
    columns = weight.shape[1]
    group_of = torch.arange(columns) // group
    if order:
        group_of = group_of[torch.randperm(columns, generator=torch.Generator().manual_seed(1))]
    # The first version stores zero points less 1, and so has none that is 0.
    codes, zeros, scales, values = affine(weight, group_of, columns // group, bits, 1 if version == 1 else 0)
    stored = zeros - 1 if version == 1 else zeros
    tensors = {"qweight": words(codes.t(), bits), "qzeros": words(stored, bits).t(), "scales": scales.t(), "g_idx": group_of.int()}
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": False,
              "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}  # fmt: skip
    return tensors, values, config


def codes_of(packed, bits):
    """The inverse of `words`: codes [n, lines] of streams down the first axis."""
    planes = (packed[:, None, :].long() >> torch.arange(32)[None, :, None]) & 1
    planes = planes.reshape(-1, bits, packed.shape[1])
    return (planes << torch.arange(bits)[None, :, None]).sum(1)


def decode_awq(state, config):
    """The weight [out, in] of AWQ's tensors."""

    def unpack(matrix):  # [lines, out / 8] -> [lines, out]
        eights = codes_of(matrix.t(), 4).t().reshape(matrix.shape[0], -1, 8)
        return eights[:, :, torch.tensor(AWQ_ORDER).argsort()].reshape(matrix.shape[0], -1)

    codes, zeros, scales = unpack(state["qweight"]), unpack(state["qzeros"]), state["scales"].float()
    group = config["group_size"] if config["group_size"] > 0 else codes.shape[0]
    group_of = torch.arange(codes.shape[0]) // group
    return ((codes - zeros[group_of]) * scales[group_of]).t()


def decode_gptq(state, config):
    """The weight [out, in] of GPTQ's tensors, zero points as GPTQModel reads those of the first version: 1 is added to words."""
    bits, zeros = config["bits"], state["qzeros"]
    if config["checkpoint_format"] == "gptq":
        ones = sum(1 << at for at in range(0, 32, bits))
        zeros = (zeros.long() + ones) & 0xFFFFFFFF
    codes, zeros, group_of = codes_of(state["qweight"], bits), codes_of(zeros.t(), bits).t(), state["g_idx"].long()
    return ((codes - zeros[group_of]) * state["scales"].float()[group_of]).t()


def fp8(weight, block):
    """`block` rows and columns share a scale, or all."""
    high, wide = block or weight.shape
    rows, columns = (-(-n // size) for n, size in zip(weight.shape, (high, wide)))
    padded = torch.nn.functional.pad(weight, (0, columns * wide - weight.shape[1], 0, rows * high - weight.shape[0]))
    scales = padded.reshape(rows, high, columns, wide).abs().amax((1, 3)) / 448
    spread = scales.repeat_interleave(high, 0).repeat_interleave(wide, 1)[: weight.shape[0], : weight.shape[1]]
    codes = (weight / spread).to(torch.float8_e4m3fn)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    if block == (128, 128):
        return {"weight": codes, "weight_scale_inv": scales}, codes.float() * spread, {**config, "weight_block_size": [128, 128]}
    return {"weight": codes, "weight_scale": scales if block else scales.reshape(())}, codes.float() * spread, config


def mxfp4(weight):
    """gpt-oss's blocks [experts, out, in / 32, 16], scales [experts, out, in / 32], and the weight [experts, out, in]."""
    experts, rows, columns = weight.shape
    view = weight.reshape(experts, rows, columns // 32, 32)
    exponent = view.abs().amax(-1).clamp(min=1e-20).log2().floor() - 2
    scaled = view / exponent.exp2()[..., None]
    magnitude = (scaled.abs()[..., None] - FP4).abs().argmin(-1)
    codes = (magnitude + 8 * (scaled < 0)).to(torch.uint8)
    values = FP4[magnitude] * torch.where(scaled < 0, -1.0, 1.0) * exponent.exp2()[..., None]
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks, (exponent + 127).to(torch.uint8), values.reshape(experts, rows, columns)
