"""Quantized layers. Each is the layer that it was, with quantizers for its weight, inputs and outputs."""

from __future__ import annotations

import copyreg
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvant.torch._layouts import Layout, bias_matrix, is_conv1d, layout_of
from kvant.torch._offload import values_of
from kvant.torch._ops import fake_quantize, learned_fake_quantize, with_strides_of
from kvant.torch._schemes import TensorScheme

# Types of stored scales by their spelling in schemes; others have that of the model.
_SCALE_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class TensorQuantizer(nn.Module):
    """The quantizer of a weight, of inputs or of outputs.

    Args:
        scheme: The scheme.
        dtype: The type of the layer's weight.

    Attributes:
        scheme: The scheme.
        dtype: The type of the layer's weight.
        scale, zero_point: The parameters, if they are stored.
        log_change: The natural logarithm of what a learned scale is multiplied by.
        enabled: Whether it does anything.
        observer: What sees activations during calibration, instead of quantizing them.
        exported: The scale and zero point as numbers, with which torch's own operator, which exporters know, computes
            integers of eight bits; None unless a graph is exported.
    """

    scale: Tensor | None
    zero_point: Tensor | None
    log_change: nn.Parameter | None

    def __init__(self, scheme: TensorScheme, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.scheme = scheme
        self.dtype = dtype
        self.enabled = True
        self.observer: Any = None
        self.exported: tuple[float, int] | None = None
        self.register_buffer("scale", None)
        self.register_buffer("zero_point", None)
        self.register_parameter("log_change", None)

    def set_parameters(self, scale: Tensor | None, zero_point: Tensor | None, device: torch.device) -> None:
        """Stores parameters."""
        self.scale = None if scale is None else torch.as_tensor(scale, dtype=torch.float32).to(device)
        self.zero_point = None if zero_point is None else torch.as_tensor(zero_point).to(device)

    def forward(self, x: Tensor) -> Tensor:
        """The values after quantization; as they are while disabled or observed, and where they are no floats."""
        if not self.enabled or not x.is_floating_point():
            return x
        if self.observer is not None:
            self.observer.update(x.detach())
            return x
        if self.exported is not None:
            return torch.fake_quantize_per_tensor_affine(x, *self.exported, self.scheme.min, int(self.scheme.max))
        if self.log_change is not None and self.scale is not None:
            scale = self.scale * self.log_change.exp()
            # Gradients pass straight through the rounding of scales.
            scale = scale + (self.current_scale - scale.detach())
            return learned_fake_quantize(x, self.scheme.timed, scale, self.zero_point)
        return fake_quantize(x, self.scheme.timed, self.scale, self.zero_point)

    @property
    def current_scale(self) -> Any:
        """The scale that is stored, or what has been learned rounded to the type that checkpoints store it in; None
        where it is computed from the values."""
        if self.scale is None or self.log_change is None:
            return self.scale
        learned = self.scale * self.log_change.detach().exp()
        return learned.to(_SCALE_DTYPES.get(self.scheme.scale, self.dtype)).float()

    def learn_scale(self) -> None:
        """Makes the change of a stored scale a parameter of the model; others stay as they are.

        Its logarithm is learned, so that scales stay above zero and move in proportion to themselves.
        """
        if self.scale is not None and self.scheme.has_learnable_scale:
            self.log_change = nn.Parameter(torch.zeros_like(self.scale))

    def fix_scale(self) -> None:
        """Makes a learned scale a stored one."""
        if self.log_change is not None:
            self.scale = self.current_scale
            self.log_change = None

    @property
    def is_exportable(self) -> bool:
        """Whether ONNX has operators for it: integers of eight bits with one stored scale."""
        scheme = self.scheme
        return scheme.kind == "int" and scheme.bits == 8 and scheme.granularity == "tensor" and self.scale is not None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TensorQuantizer:
        """Parameters move with the model, and keep their type where it takes another."""
        tensors = {name: getattr(self, name) for name in ("scale", "zero_point", "log_change")}
        # Conversions change parameters in place.
        kept = {name: tensor.data for name, tensor in tensors.items() if tensor is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in kept.items():
            after = getattr(self, name)
            if after.dtype != before.dtype:
                after.data = before.to(after.device)
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device="cpu")).dtype
        return self

    def extra_repr(self) -> str:
        """The scheme."""
        return self.scheme.timed + ("" if self.enabled else ", disabled")


class QuantizedModule:
    """What all quantized layers have.

    Attributes:
        weight_quantizer: Quantizes the weight; disabled once it is frozen.
        bias_quantizer: Quantizes the bias; disabled once it is frozen, None where it stays a float.
        input_quantizer, output_quantizer: Those of activations; None where these stay as they are.
        chosen: The codes of the weight that an algorithm chose: a `kvant.QuantTensor` of a matrix [outputs, inputs].
        scheme_text: The spelling of its scheme.
        float_class: The type that it was.
    """

    weight_quantizer: TensorQuantizer
    bias_quantizer: TensorQuantizer | None
    input_quantizer: TensorQuantizer | None
    output_quantizer: TensorQuantizer | None
    chosen: Any
    scheme_text: str
    float_class: type[nn.Module]
    weight: Tensor

    def is_as_chosen(self) -> bool:
        """Whether the weight still has the values of the codes that were chosen."""
        weight = values_of(self, "weight")  # type: ignore[arg-type]
        values = self.layout.to_weight(self.chosen.dequantize(), tuple(weight.shape))
        return torch.equal(values.to(weight.dtype), weight.cpu())

    @property
    def quantizers(self) -> list[TensorQuantizer]:
        """Those of its weight, bias, inputs and outputs, where it has them."""
        found = (self.weight_quantizer, self.bias_quantizer, self.input_quantizer, self.output_quantizer)
        return [quantizer for quantizer in found if quantizer is not None]

    @property
    def bias_text(self) -> str | None:
        """The spelling of the scheme of its bias; None where that stays a float."""
        return None if self.bias_quantizer is None else self.bias_quantizer.scheme.spelling

    @property
    def layout(self) -> Layout:
        """How the weight is a matrix."""
        return layout_of(self, self.weight_quantizer.scheme)  # type: ignore[arg-type]

    def quantized_weight(self) -> Tensor:
        """The weight after quantization."""
        if not self.weight_quantizer.enabled:
            return self.weight
        layout = self.layout
        values = layout.to_weight(self.weight_quantizer(layout.to_matrix(self.weight)), tuple(self.weight.shape))
        return with_strides_of(self.weight, values)

    def quantized_bias(self) -> Tensor | None:
        """The bias after quantization; None where there is none."""
        bias: Tensor | None = self.bias  # type: ignore[attr-defined]
        quantizer = self.bias_quantizer
        if bias is None or quantizer is None or not quantizer.enabled:
            return bias
        values: Tensor = quantizer(bias_matrix(bias, quantizer.scheme))
        return values.reshape(bias.shape)

    def quantized_input(self, x: Tensor) -> Tensor:
        """Inputs after quantization."""
        return x if self.input_quantizer is None else self.input_quantizer(x)

    def quantized_output(self, y: Tensor) -> Tensor:
        """Outputs after quantization."""
        return y if self.output_quantizer is None else self.output_quantizer(y)


class QuantizedLinear(QuantizedModule, nn.Linear):
    """A quantized nn.Linear."""

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Linear."""
        x, weight = self.quantized_input(input), self.quantized_weight()
        return self.quantized_output(F.linear(x, weight, self.quantized_bias()))


class QuantizedConv1d(QuantizedModule, nn.Conv1d):
    """A quantized nn.Conv1d."""

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Conv1d."""
        x, weight = self.quantized_input(input), self.quantized_weight()
        return self.quantized_output(self._conv_forward(x, weight, self.quantized_bias()))


class QuantizedConv2d(QuantizedModule, nn.Conv2d):
    """A quantized nn.Conv2d."""

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Conv2d."""
        x, weight = self.quantized_input(input), self.quantized_weight()
        return self.quantized_output(self._conv_forward(x, weight, self.quantized_bias()))


class QuantizedConv3d(QuantizedModule, nn.Conv3d):
    """A quantized nn.Conv3d."""

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Conv3d."""
        x, weight = self.quantized_input(input), self.quantized_weight()
        return self.quantized_output(self._conv_forward(x, weight, self.quantized_bias()))


class QuantizedConvTranspose2d(QuantizedModule, nn.ConvTranspose2d):
    """A quantized nn.ConvTranspose2d."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As nn.ConvTranspose2d."""
        x, weight = self.quantized_input(input), self.quantized_weight()
        own: Any = self
        padding = own._output_padding(x, output_size, own.stride, own.padding, own.kernel_size, 2, own.dilation)
        bias = self.quantized_bias()
        made = F.conv_transpose2d(x, weight, bias, own.stride, own.padding, padding, own.groups, own.dilation)
        return self.quantized_output(made)


class QuantizedEmbedding(QuantizedModule, nn.Embedding):
    """A quantized nn.Embedding. Its inputs are indices, which stay as they are."""

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Embedding."""
        made = F.embedding(
            input,
            self.quantized_weight(),
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )
        return self.quantized_output(made)


class QuantizedEmbeddingBag(QuantizedModule, nn.EmbeddingBag):
    """A quantized nn.EmbeddingBag. Its inputs are indices, which stay as they are."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """As nn.EmbeddingBag."""
        made = F.embedding_bag(
            input,
            self.quantized_weight(),
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )
        return self.quantized_output(made)


class QuantizedConv1D(QuantizedModule, nn.Module):
    """A quantized Conv1D of transformers: a linear layer whose weight is [inputs, outputs]."""

    bias: Tensor
    nf: int

    def forward(self, x: Tensor) -> Tensor:
        """As transformers' Conv1D."""
        shape = x.size()[:-1] + (self.nf,)
        flat = self.quantized_input(x).reshape(-1, x.size(-1))
        bias: Any = self.quantized_bias()
        return self.quantized_output(torch.addmm(bias, flat, self.quantized_weight()).view(shape))


_QUANTIZED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: QuantizedLinear,
    nn.Conv1d: QuantizedConv1d,
    nn.Conv2d: QuantizedConv2d,
    nn.Conv3d: QuantizedConv3d,
    nn.ConvTranspose2d: QuantizedConvTranspose2d,
    nn.Embedding: QuantizedEmbedding,
    nn.EmbeddingBag: QuantizedEmbeddingBag,
}


LAYER_TYPES = (*(kind.__name__ for kind in _QUANTIZED), "Conv1D")
"""The names of the types of layers that can be quantized."""

# Subclasses with a forward of their own that computes the same, and subclasses whose weights other modules read.
_SAME = ("transformers.models.falcon.modeling_falcon.FalconLinear",)
_READ_BY_OTHERS = ("torch.nn.modules.linear.NonDynamicallyQuantizableLinear",)


def quantized_class(module: nn.Module) -> type[nn.Module] | None:
    """The quantized class of a layer; None for other layers.

    Subclasses have one if they compute as the type of torch does.
    """
    kind = type(module)
    if is_conv1d(module) and kind.__module__.startswith("transformers."):
        return QuantizedConv1D
    if kind in _QUANTIZED:
        return _QUANTIZED[kind]
    for base, quantized in _QUANTIZED.items():
        if issubclass(kind, base):
            made: type[nn.Module] | None = _of_subclass((quantized, kind)) if _computes_as(kind, base) else None
            return made
    return None


def _computes_as(kind: type[nn.Module], base: type[nn.Module]) -> bool:
    """Whether a subclass computes as a type of torch."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if type(kind) is not type or name in _READ_BY_OTHERS:
        return False
    parts = ("forward", "__call__", "_conv_forward", "_output_padding", "__getattr__")
    return name in _SAME or all(getattr(kind, part, None) is getattr(base, part, None) for part in parts)


class _SubclassType(type):
    """The metaclass of quantized subclasses: such a class is pickled as the classes that it combines."""


@cache
def _of_subclass(classes: Any) -> Any:
    """A class that is a quantized one and a subclass of the type of torch, with what that has besides."""
    _, kind = classes
    return _SubclassType(f"Quantized{kind.__name__}", classes, {"__module__": kind.__module__})


copyreg.pickle(_SubclassType, lambda made: (_of_subclass, (made.__bases__,)))


def is_kind(module: nn.Module, kind: type[nn.Module] | str) -> bool:
    """Whether a module is of a type, or of one with this name."""
    if isinstance(kind, str):
        return any(base.__name__ == kind for base in type(module).__mro__)
    return isinstance(module, kind)


def layer_type(module: nn.Module) -> str:
    """The name among `LAYER_TYPES` of the type of a layer, quantized or not."""
    return next(base.__name__ for base in type(module).__mro__ if base.__name__ in LAYER_TYPES)


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """The modules of a model with all of their names: shared ones have several."""
    found: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(module, []).append(name)
    return found


def become(module: nn.Module, kind: type[nn.Module]) -> Callable[[], None]:
    """Turns a layer into a quantized one, in place: references to it, its parameters and its hooks stay.

    Returns what undoes it.
    """
    before, old = type(module), module.__dict__.get("_old_forward")
    module.__class__ = kind
    if old is not None:
        # Hooks of accelerate call the forward that they found.
        module.__dict__["_old_forward"] = types.MethodType(kind.forward, module)
    module.float_class = before  # type: ignore[assignment]

    def undo() -> None:
        module.__class__ = before
        if old is not None:
            module.__dict__["_old_forward"] = old
        for name in ("weight_quantizer", "bias_quantizer", "input_quantizer", "output_quantizer"):
            module._modules.pop(name, None)
            module.__dict__.pop(name, None)
        for name in ("float_class", "chosen", "scheme_text"):
            module.__dict__.pop(name, None)

    return undo


def leave_fast_path(model: nn.Module) -> Callable[[], None]:
    """Makes nn.TransformerEncoderLayer call its quantized layers: torch's fast path would read their weights instead.

    Returns what undoes it.
    """
    changed: list[Any] = []
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and any(True for _ in quantized_modules(module)):
            changed.append((module, module.activation_relu_or_gelu))
            module.activation_relu_or_gelu = 0

    def undo() -> None:
        for module, before in changed:
            module.activation_relu_or_gelu = before

    return undo


def quantized_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The quantized layers of a model by name."""
    for name, module in model.named_modules():
        if isinstance(module, QuantizedModule):
            yield name, module
