"""Weights of layers as matrices whose rows are output channels and whose columns are input channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from kvant.torch._schemes import TensorScheme


@dataclass(frozen=True)
class Layout:
    """A weight as a matrix, and back."""

    to_matrix: Callable[[Tensor], Tensor]
    to_weight: Callable[[Tensor, tuple[int, ...]], Tensor]
    is_matrix: bool
    """Whether the matrix is the weight itself, so that checkpoints hold it under the weight's name and shape."""


def _plain() -> Layout:
    return Layout(lambda w: w.reshape(w.shape[0], -1), lambda m, shape: m.reshape(shape), True)


def _turned() -> Layout:
    """[inputs, outputs], as transformers' Conv1D has it."""
    return Layout(lambda w: w.t(), lambda m, shape: m.t(), False)


def _transposed() -> Layout:
    """[inputs, outputs, ...] of transposed convolutions."""

    def back(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
        return matrix.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)

    return Layout(lambda w: w.transpose(0, 1).reshape(w.shape[1], -1), back, False)


def _grouped(outputs: int) -> Layout:
    """Groups run along the input channels at each place of a kernel. `outputs` is the axis of output channels."""

    def to_matrix(weight: Tensor) -> Tensor:
        return weight.transpose(0, outputs).transpose(1, -1).reshape(-1, weight.shape[1 - outputs])

    def back(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
        straight = (shape[outputs], shape[1 - outputs], *shape[2:])
        turned = (straight[0], straight[-1], *straight[2:-1], straight[1])
        return matrix.reshape(turned).transpose(1, -1).transpose(0, outputs)

    return Layout(to_matrix, back, False)


def layout_of(module: nn.Module, scheme: TensorScheme) -> Layout:
    """The layout of a layer's weight for a scheme."""
    is_transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    is_convolution = isinstance(module, nn.modules.conv._ConvNd)
    if is_convolution and scheme.granularity not in ("tensor", "channel", None):
        return _grouped(1 if is_transposed else 0)
    if is_transposed:
        return _transposed()
    return _turned() if is_conv1d(module) else _plain()


def bias_matrix(bias: Tensor, scheme: TensorScheme) -> Tensor:
    """A bias [outputs] as a matrix: with a scale for each value a column, otherwise a row."""
    return bias.reshape(-1, 1) if scheme.granularity == "channel" else bias.reshape(1, -1)


def is_conv1d(module: nn.Module) -> bool:
    """Whether a layer is transformers' Conv1D, quantized or not."""
    return type(module).__name__ in ("Conv1D", "QuantizedConv1D")


def is_lookup(module: nn.Module) -> bool:
    """Whether the inputs of a layer are indices."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag)
