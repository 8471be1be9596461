"""The operator `kvant::fake_quantize`: values rounded to those that have a code.

On the CPU it runs Kvant's kernels. On other devices integers and small floats are computed in torch itself, to the same
bits in float32; schemes with scales of several levels go through the CPU.
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
    is_scale_computed = scheme.observer == "minmax" and scheme.scale in ("model", "f32", "e8m0")
    is_known = scheme.has_stored_scale and scheme.granularity in ("tensor", "channel", "group")
    return is_known and (is_scale_known or is_scale_computed)


def in_torch(x: Tensor, scheme: TensorScheme, scale: Tensor | None, zero_point: Tensor | None) -> Tensor:
    """The operator in torch: to the same bits as the kernels in float32, on any device."""
    view = _grouped(x, scheme).float()
    if scale is None:
        scale, zero_point = _parameters(view, scheme)
    else:
        scale = _spread(scale.float(), scheme)
        zero_point = None if zero_point is None else _spread(zero_point.float(), scheme)
    if scheme.kind == "int":
        codes = torch.round(view * (1.0 / scale))
        zero = 0.0 if zero_point is None else zero_point
        codes = (codes + zero).clamp(scheme.min, scheme.max)
        values = (codes - zero) * scale
    else:
        values = _round_float(view / scale, scheme) * scale
    return values.reshape(x.shape).to(x.dtype)


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


def _parameters(view: Tensor, scheme: TensorScheme) -> tuple[Tensor, Tensor | None]:
    """Scales and zero points of the range of the values that share them."""
    axis = _shared_axis(scheme)
    low, high = view.amin(dim=axis, keepdim=True), view.amax(dim=axis, keepdim=True)
    if scheme.kind == "float":
        greatest = torch.maximum(-low, high)
        if scheme.scale == "e8m0":
            return _power_of_two(greatest, scheme), None
        scale = greatest / scheme.max
        return torch.where(scale == 0, torch.full_like(scale, _EPSILON), scale), None
    steps = scheme.max - scheme.min
    if scheme.zero_point == "float":
        scale = (high - low) / steps
        scale = torch.where(scale <= _EPSILON, torch.ones_like(scale), scale)
        return scale, scheme.min - low / scale
    low, high = low.clamp(max=0), high.clamp(min=0)
    if scheme.zero_point == "none":
        scale = (torch.maximum(-low, high) / (steps / 2)).clamp(min=_EPSILON)
        return scale, torch.full_like(scale, scheme.middle) if scheme.middle else None
    scale = ((high - low) / steps).clamp(min=_EPSILON)
    return scale, (scheme.min - torch.round(low / scale)).clamp(scheme.min, scheme.max)


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
    """Values rounded to the nearest small floats, half to even, saturated."""
    exponent, mantissa = _bits_of(scheme)
    least = 2 - 2 ** (exponent - 1)
    _, power = torch.frexp(values)
    step = torch.ldexp(torch.ones_like(values), (power - 1).clamp(min=least) - mantissa)
    return (torch.round(values / step) * step).clamp(-scheme.max, scheme.max)
