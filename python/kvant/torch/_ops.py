"""The operator `kvant::fake_quantize`: values rounded to those that have a code.

On the CPU it runs Kvant's kernels. On other devices integers and small floats are computed in torch itself, to the same
bits; blocks over rows, and formats that are no numbers with a scale, go through the CPU.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import kvant
from kvant.torch._schemes import TensorScheme, tensor_scheme

_EPSILON = torch.finfo(torch.float32).eps


def fake_quantize(x: Tensor, scheme: str, scale: Tensor | None = None, zero_point: Tensor | None = None) -> Tensor:
    """The values of a tensor after quantization, with gradients that pass through where it does not saturate.

    Args:
        x: A weight, [outputs, ...], or activations, [..., features].
        scheme: As for `kvant.fake_quantize`: `int4:g128`, `int8:tensor!static`, `e4m3:channel!dynamic`.
        scale: The scales, if they are known, on the device of `x`.
        zero_point: The zero points that belong to them.

    Raises:
        UsageError: An unknown scheme, or scales of a wrong number.
    """
    return torch.ops.kvant.fake_quantize(x, scale, zero_point, scheme)  # type: ignore[no-any-return]


@torch.library.custom_op("kvant::fake_quantize", mutates_args=())
def _fake_quantize(x: Tensor, scale: Tensor | None, zero_point: Tensor | None, scheme: str) -> Tensor:
    if x.numel() == 0:
        return x.clone()
    if x.device.type == "cpu":
        return with_strides_of(x, kvant.fake_quantize(x, scheme, scale, zero_point))
    parsed = tensor_scheme(scheme)
    if _is_computed_in_torch(parsed, scale is not None):
        return with_strides_of(x, in_torch(x, parsed, scale, zero_point))
    known = [None if given is None else given.cpu() for given in (scale, zero_point)]
    return with_strides_of(x, kvant.fake_quantize(x.cpu(), scheme, *known).to(x.device))


@_fake_quantize.register_fake
def _(x: Tensor, scale: Tensor | None, zero_point: Tensor | None, scheme: str) -> Tensor:
    return torch.empty_like(x)


def with_strides_of(x: Tensor, values: Tensor) -> Tensor:
    """Values in the memory format of `x`, such as channels_last: convolutions choose their kernels by it."""
    return values if values.stride() == x.stride() else torch.empty_like(x).copy_(values)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor | None, str], output: Tensor) -> None:
    x, scale, zero_point, scheme = inputs
    ctx.save_for_backward(x, scale, zero_point)
    ctx.scheme = scheme


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    x, scale, zero_point = ctx.saved_tensors
    scheme = tensor_scheme(ctx.scheme)
    if scale is None or scheme.kind not in ("int", "float"):
        # Scales that follow from the values cover all of them.
        return grad, None, None, None
    view = _grouped(x, scheme)
    inside = _inside(view, scheme, _spread(scale, scheme), zero_point)
    return grad * inside.reshape(x.shape), None, None, None


_fake_quantize.register_autograd(_backward, setup_context=_setup)


def learned_fake_quantize(x: Tensor, scheme: str, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """As `fake_quantize`, with gradients for the scale too: learned step sizes (LSQ, arXiv 1902.08153).

    With `q` the values after quantization and `s` the scale, `dq/ds` is `(q - x) / s` where codes do not saturate and
    `q / s` where they do. Its sum is multiplied by `1 / sqrt(n m)`, for `n` values that share the scale and `m` the
    greatest code.
    """
    made: Tensor = _LearnedStep.apply(x, scale, zero_point, scheme)  # type: ignore[no-untyped-call]
    return made


class _LearnedStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor | None, scheme: str) -> Tensor:
        made = fake_quantize(x.detach(), scheme, scale.detach(), zero_point)
        ctx.save_for_backward(x, scale, zero_point, made)
        ctx.scheme = scheme
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, scale, zero_point, made = ctx.saved_tensors
        scheme = tensor_scheme(ctx.scheme)
        view, of_made, of_grad = (_grouped(tensor.float(), scheme) for tensor in (x, made, grad))
        spread = _spread(scale, scheme)
        inside = _inside(view, scheme, spread, zero_point)
        slope = of_grad * torch.where(inside, of_made - view, of_made) / spread
        shared = view.numel() // scale.numel()
        total = slope.sum(dim=_shared_axis(scheme)).reshape(scale.shape)
        learned = total / math.sqrt(shared * max(scheme.max, 1.0))
        return grad * inside.reshape(x.shape), learned.to(scale.dtype), None, None


def _inside(view: Tensor, scheme: TensorScheme, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """Where codes do not saturate, for values and scales that are spread over them."""
    if scheme.kind == "int":
        zero = 0 if zero_point is None else _spread(zero_point, scheme)
        low, high = (scheme.min - zero) * scale, (scheme.max - zero) * scale
    else:
        low, high = -scheme.max * scale, scheme.max * scale
    return (view >= low) & (view <= high)


def _is_computed_in_torch(scheme: TensorScheme, is_scale_known: bool) -> bool:
    if scheme.granularity not in ("tensor", "channel", "group"):
        return False
    if is_scale_known:
        return scheme.has_stored_scale
    return scheme.observer == "minmax" and scheme.scale in ("model", "f32", "f16", "bf16", "e8m0", "e4m3:f32")


def in_torch(x: Tensor, scheme: TensorScheme, scale: Tensor | None, zero_point: Tensor | None) -> Tensor:
    """The operator in torch, to the same bits as the kernels on any device.

    Scales that have the model's type are computed in it, and numbers are rounded to it where the kernels do.
    """
    view = _grouped(x, scheme).float()
    if scale is None:
        scale, zero_point = _parameters(view, scheme, x.dtype)
    else:
        scale = _spread(scale.float(), scheme)
        zero_point = None if zero_point is None else _spread(zero_point.float(), scheme)
    if scheme.kind == "int":
        quotients, zero = view * (1.0 / scale), 0.0 if zero_point is None else zero_point
        codes = torch.round(quotients + zero) if scheme.zero_point == "float" else torch.round(quotients) + zero
        values = (codes.clamp(scheme.min, scheme.max) - zero) * scale
    else:
        quotient = torch.float32
        if scheme.granularity != "group" and (scheme.timing is not None or scheme.scale == "model"):
            quotient = x.dtype
        if scheme.granularity == "channel" and scheme.timing is not None:
            # A vector of scales is cast to the type of its dividend.
            scale = _rounded(scale, x.dtype)
        divisor = torch.where(scale == 0, torch.full_like(scale, _EPSILON), scale)
        values = _round_float(_rounded(view / divisor, quotient), scheme) * scale
    return values.reshape(x.shape).to(x.dtype)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in float32, rounded to a type."""
    return values.to(dtype).float()


def _divided(values: Tensor, number: float) -> Tensor:
    """The quotient: by a number of Python, GPUs would multiply by its inverse."""
    return values / torch.full((), number, dtype=values.dtype, device=values.device)


def _grouped(x: Tensor, scheme: TensorScheme) -> Tensor:
    """A view of two axes, one of which numbers the scales: [scales, values], or with a scale for each column [values,
    scales]."""
    of_activations = scheme.timing is not None
    matrix = x.reshape(-1, x.shape[-1]) if of_activations or x.dim() < 2 else x.reshape(x.shape[0], -1)
    if scheme.granularity == "tensor":
        return matrix.reshape(1, -1)
    if scheme.granularity == "channel":
        return matrix
    size = scheme.size or matrix.shape[-1]
    if matrix.shape[-1] % size:
        raise kvant.InvalidError(
            f"{matrix.shape[-1]} input channels are not a multiple of the group size {size}", kind="invalid"
        )
    return matrix.reshape(-1, size)


def _spread(given: Tensor, scheme: TensorScheme) -> Tensor:
    """Parameters with the axes of a view."""
    return given.reshape(-1, 1) if _shared_axis(scheme) == 1 else given.reshape(1, -1)


def _shared_axis(scheme: TensorScheme) -> int:
    """The axis of a view along which values share a scale."""
    return 0 if scheme.granularity == "channel" and scheme.axis == 1 else 1


def _parameters(view: Tensor, scheme: TensorScheme, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Scales and zero points of the range of the values that share them, of a model of this type."""
    axis = _shared_axis(scheme)
    low, high = view.amin(dim=axis, keepdim=True), view.amax(dim=axis, keepdim=True)
    arithmetic = dtype if scheme.scale == "model" else torch.float32
    if scheme.kind == "float":
        greatest = torch.maximum(-low, high)
        if scheme.scale == "e8m0":
            return _power_of_two(greatest, scheme), None
        if scheme.scale == "e4m3:f32":
            return _scales_of_blocks(greatest, scheme), None
        scale = _rounded(_divided(greatest, scheme.max), arithmetic)
        return _stored(torch.where(scale == 0, torch.full_like(scale, _EPSILON), scale), scheme), None
    steps = scheme.max - scheme.min
    if scheme.zero_point == "float":
        scale = _step(low, high, steps, arithmetic)
        scale = torch.where(scale <= _EPSILON, torch.ones_like(scale), scale)
        return _stored(scale, scheme), scheme.min + _rounded(-low / scale, arithmetic)
    low, high = low.clamp(max=0), high.clamp(min=0)
    if scheme.zero_point == "none":
        scale = _rounded(_divided(torch.maximum(-low, high), steps / 2), arithmetic).clamp(min=_EPSILON)
        return _stored(scale, scheme), torch.full_like(scale, scheme.middle) if scheme.middle else None
    scale = _step(low, high, steps, arithmetic).clamp(min=_EPSILON)
    # torch keeps a scalar scale in float32.
    below = _rounded(low / scale, torch.float32 if scheme.granularity == "tensor" else arithmetic)
    return _stored(scale, scheme), (scheme.min - torch.round(below)).clamp(scheme.min, scheme.max)


def _step(low: Tensor, high: Tensor, steps: float, arithmetic: torch.dtype) -> Tensor:
    """The width of a range by the number of its steps; a width that overflows the type is taken in float64."""
    width = _rounded(high - low, arithmetic)
    exact = _divided(high.double() - low.double(), steps).float()
    return _rounded(torch.where(width.isfinite(), _divided(width, steps), exact), arithmetic)


def _stored(scale: Tensor, scheme: TensorScheme) -> Tensor:
    """Scales as they are stored: of float16 at least its smallest number, and those beyond its largest as they are."""
    if scheme.scale == "bf16":
        return _rounded(scale, torch.bfloat16)
    if scheme.scale == "f16":
        rounded = _rounded(scale, torch.float16).clamp(min=2.0**-24)
        return torch.where(rounded.isfinite(), rounded, scale)
    return scale


_E4M3_MAX = 448.0


def _scales_of_blocks(greatest: Tensor, scheme: TensorScheme) -> Tensor:
    """The scales of blocks in e4m3, times that of the whole tensor in float32."""
    whole = _divided(greatest.max(), _E4M3_MAX * scheme.max)
    whole = torch.where(whole == 0, torch.full_like(whole, _EPSILON), whole)
    if scheme.timing is None:
        scale = _to_e4m3(greatest / (whole * scheme.max))
        return torch.where(scale == 0, torch.ones_like(scale), scale) * whole
    scale = _divided(greatest, scheme.max)
    scale = torch.where(scale == 0, torch.full_like(scale, _EPSILON), scale)
    return _to_e4m3(scale / whole) * whole


def _to_e4m3(values: Tensor) -> Tensor:
    return _round_to(values, 4, 3, _E4M3_MAX)


def _bits_of(scheme: TensorScheme) -> tuple[int, int]:
    exponent, mantissa = scheme.dtype.removeprefix("e").split("m")[:2]
    return int(exponent), int(mantissa.removesuffix("fn").removesuffix("fnuz"))


def _power_of_two(greatest: Tensor, scheme: TensorScheme) -> Tensor:
    """The shared scale of OCP MX blocks, their greatest magnitude rounded to even."""
    exponent, mantissa = _bits_of(scheme)
    bits = greatest.contiguous().view(torch.int32) + (1 << (23 - mantissa - 1))
    power = ((bits >> 23) & 0xFF) - 127
    power = torch.where(greatest == 0, torch.full_like(power, -126), power)
    largest = math.floor(math.log2(scheme.max))
    return torch.ldexp(torch.ones_like(greatest), (power - largest).clamp(-127, 127))


def _round_float(values: Tensor, scheme: TensorScheme) -> Tensor:
    """Values rounded to the elements of a scheme."""
    return _round_to(values, *_bits_of(scheme), scheme.max)


def _round_to(values: Tensor, exponent: int, mantissa: int, largest: float) -> Tensor:
    """Values rounded to the nearest small floats, half to even, saturated."""
    least = 2 - 2 ** (exponent - 1)
    _, power = torch.frexp(values)
    step = torch.ldexp(torch.ones_like(values), (power - 1).clamp(min=least) - mantissa)
    return (torch.round(values / step) * step).clamp(-largest, largest)
