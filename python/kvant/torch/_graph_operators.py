"""The operators of an exported program, as the ONNX operators that torch.onnx.export makes of them.

Not what is quantized about them: see `_graph_placement`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

# The ONNX operator of each aten operator, and the positions of the tensors among its arguments.
_OPERATORS: dict[Any, tuple[str, tuple[int, ...]]] = {
    aten.conv1d: ("Conv", (0, 1, 2)),
    aten.conv2d: ("Conv", (0, 1, 2)),
    aten.conv3d: ("Conv", (0, 1, 2)),
    aten.convolution: ("Conv", (0, 1, 2)),
    aten.conv_transpose1d: ("ConvTranspose", (0, 1, 2)),
    aten.conv_transpose2d: ("ConvTranspose", (0, 1, 2)),
    aten.conv_transpose3d: ("ConvTranspose", (0, 1, 2)),
    aten.linear: ("Gemm", (0, 1, 2)),
    aten.addmm: ("Gemm", (1, 2, 0)),
    aten.mm: ("MatMul", (0, 1)),
    aten.bmm: ("MatMul", (0, 1)),
    aten.matmul: ("MatMul", (0, 1)),
    aten.scaled_dot_product_attention: ("Attention", (0, 1, 2)),
    aten.relu: ("Relu", (0,)),
    aten.relu6: ("Clip", (0,)),
    aten.hardtanh: ("Clip", (0,)),
    aten.clamp: ("Clip", (0,)),
    aten.add: ("Add", (0, 1)),
    aten.sub: ("Sub", (0, 1)),
    aten.rsub: ("Sub", (1, 0)),
    aten.mul: ("Mul", (0, 1)),
    aten.div: ("Div", (0, 1)),
    aten.minimum: ("Min", (0, 1)),
    aten.maximum: ("Max", (0, 1)),
    aten.leaky_relu: ("LeakyRelu", (0,)),
    aten.prelu: ("PRelu", (0, 1)),
    aten.sigmoid: ("Sigmoid", (0,)),
    aten.tanh: ("Tanh", (0,)),
    aten.softmax: ("Softmax", (0,)),
    aten._softmax: ("Softmax", (0,)),
    aten.gelu: ("Gelu", (0,)),
    aten.erf: ("Erf", (0,)),
    aten.silu: ("Silu", (0,)),
    aten.hardsigmoid: ("HardSigmoid", (0,)),
    aten.hardswish: ("HardSwish", (0,)),
    aten.argmax: ("ArgMax", (0,)),
    aten.avg_pool1d: ("AveragePool", (0,)),
    aten.avg_pool2d: ("AveragePool", (0,)),
    aten.avg_pool3d: ("AveragePool", (0,)),
    aten.adaptive_avg_pool1d: ("AveragePool", (0,)),
    aten.adaptive_avg_pool2d: ("AveragePool", (0,)),
    aten.adaptive_avg_pool3d: ("AveragePool", (0,)),
    aten.mean: ("ReduceMean", (0,)),
    aten.max_pool1d: ("MaxPool", (0,)),
    aten.max_pool2d: ("MaxPool", (0,)),
    aten.max_pool3d: ("MaxPool", (0,)),
    aten.pad: ("Pad", (0,)),
    aten.constant_pad_nd: ("Pad", (0,)),
    aten.cat: ("Concat", (0,)),
    aten.stack: ("Concat", (0,)),
    aten.where: ("Where", (0, 1, 2)),
    aten.masked_fill: ("Where", (1, 2, 0)),
    aten.layer_norm: ("LayerNormalization", (0, 2, 3)),
    aten.instance_norm: ("InstanceNormalization", (0, 1, 2)),
    aten.reshape: ("Reshape", (0,)),
    aten.view: ("Reshape", (0,)),
    aten._unsafe_view: ("Reshape", (0,)),
    aten.flatten: ("Reshape", (0,)),
    aten.unflatten: ("Reshape", (0,)),
    aten.permute: ("Transpose", (0,)),
    aten.transpose: ("Transpose", (0,)),
    aten.t: ("Transpose", (0,)),
    aten.squeeze: ("Squeeze", (0,)),
    aten.unsqueeze: ("Unsqueeze", (0,)),
    aten.slice: ("Slice", (0,)),
    aten.select: ("Gather", (0,)),
    aten.embedding: ("Gather", (0,)),
    aten.index_select: ("Gather", (0,)),
    aten.split: ("Split", (0,)),
    aten.split_with_sizes: ("Split", (0,)),
    aten.chunk: ("Split", (0,)),
    aten.unbind: ("Split", (0,)),
    aten.upsample_nearest1d: ("Resize", (0,)),
    aten.upsample_nearest2d: ("Resize", (0,)),
    aten.upsample_nearest3d: ("Resize", (0,)),
    aten.upsample_linear1d: ("Resize", (0,)),
    aten.upsample_bilinear2d: ("Resize", (0,)),
    aten.upsample_bicubic2d: ("Resize", (0,)),
    aten.pixel_shuffle: ("DepthToSpace", (0,)),
    aten.expand: ("Expand", (0,)),
}

# Operators that give what they get: graphs do not have them.
_ALIASES = (
    aten.alias,
    aten.clone,
    aten.contiguous,
    aten.detach,
    aten.detach_,
    aten.dropout,
    aten.dropout_,
    aten.feature_dropout,
    aten.lift_fresh_copy,
)

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

# From this magnitude on a constant is a mask and no value; what is added before a Softmax is one from `_FAR` down.
_HUGE = 1e30
_FAR = -9e3
_PASSING = {"Add", "Concat", "Expand", "Gather", "Max", "Min", "Mul", "Reshape", "Slice"}
_PASSING |= {"Squeeze", "Sub", "Transpose", "Unsqueeze", "Where"}


@dataclass(frozen=True)
class Operator:
    """An operator of the ONNX graph.

    Attributes:
        kind: The ONNX operator. `Silu` and `Attention` are several there, `ConvPad` is none.
        node: The name of its node in the program.
        inputs: Names of the tensors that it reads; None where an optional one is missing.
        outputs: Names of the tensors that it makes.
        channel_axis: The axis of output channels of a product's weight.
        bounds: Those of a Clip.
        is_reshaped: Whether the ONNX operator works on two dimensions, between two Reshapes.
        is_normalized: Whether batch normalization follows, whose weights are folded after training.
    """

    kind: str
    node: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    channel_axis: int | None = None
    bounds: tuple[float, float] | None = None
    is_reshaped: bool = False
    is_normalized: bool = False


@dataclass
class OperatorGraph:
    """The operators of a program in order, and its tensors by the names of their nodes.

    Attributes:
        operators: The operators.
        nodes: The node of each tensor.
        constants: Tensors that depend on no input.
        scalars: Numbers among the operands of operators, by generated names.
        graph_outputs: Tensors that the program returns.
        masked: Tensors with values beyond 1e30, such as attention masks.
    """

    operators: list[Operator] = field(default_factory=list)
    nodes: dict[str, fx.Node] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    scalars: dict[str, float] = field(default_factory=dict)
    graph_outputs: set[str] = field(default_factory=set)
    masked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._readers: dict[str, list[Operator]] = {}
        self._producers: dict[str, Operator] = {}
        self._source: dict[fx.Node, str] = {}

    @classmethod
    def of(cls, model: fx.GraphModule, *, is_extended: bool) -> OperatorGraph:
        """The operators of a program. `is_extended` says whether spatial means become GlobalAveragePool."""
        made = cls()
        for node in model.graph.nodes:
            made._add(node, is_extended)
        for one in made.operators:
            made._producers.update(dict.fromkeys(one.outputs, one))
            for name in dict.fromkeys(name for name in one.inputs if name is not None):
                made._readers.setdefault(name, []).append(one)
        made.operators = [made._without_pad(one) for one in made.operators]
        made._find_masks(model)
        return made

    def producer(self, tensor: str | None) -> Operator | None:
        """The operator that makes a tensor."""
        return None if tensor is None else self._producers.get(tensor)

    def readers(self, tensor: str) -> Sequence[Operator]:
        """The operators that read a tensor."""
        return self._readers.get(tensor, ())

    def only_reader(self, tensor: str) -> Operator | None:
        """The operator that alone reads a tensor."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and tensor not in self.graph_outputs else None

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor depends on no input."""
        return tensor in self.constants or tensor in self.scalars

    def is_float(self, tensor: str) -> bool:
        """Whether a tensor is one of float32 without masks."""
        if tensor in self.masked:
            return False
        return tensor in self.scalars or _value(self.nodes[tensor]).dtype == torch.float32

    def rank(self, tensor: str) -> int:
        """The number of a tensor's axes."""
        return 0 if tensor in self.scalars else _value(self.nodes[tensor]).dim()

    def _without_pad(self, made: Operator) -> Operator:
        """The operator, a Pad of zeros before a Conv as a `ConvPad`: torch.onnx.export makes it the Conv's own."""
        reader = self.only_reader(made.outputs[0]) if made.kind == "Pad" else None
        if reader is None or reader.kind != "Conv" or reader.inputs[0] != made.outputs[0]:
            return made
        node = self.nodes[made.outputs[0]]
        settings = [*node.args[2:], *node.kwargs.values()]
        widths: Any = node.args[1]
        is_spatial = isinstance(widths, (list, tuple)) and len(widths) <= 2 * (self.rank(made.outputs[0]) - 2)
        is_zero = all(value in ("constant", 0, None) for value in settings)
        if not is_zero or not is_spatial or not all(isinstance(width, int) and width >= 0 for width in widths):
            return made
        folded = replace(made, kind="ConvPad")
        self._producers[made.outputs[0]] = folded
        return folded

    def release(self) -> None:
        """Forgets the nodes of the program, whose names are enough once tensors are placed."""
        self.nodes, self._source = {}, {}

    def _add(self, node: fx.Node, is_extended: bool) -> None:
        if node.op == "output":
            self.graph_outputs = {self._source[given] for given in node.all_input_nodes if given in self._source}
        elif node.op in ("placeholder", "get_attr"):
            self._tensor(node)
            if node.op == "get_attr":
                self.constants.add(node.name)
        elif node.op != "call_function" or not isinstance(node.meta.get("val"), (Tensor, tuple, list)):
            return
        elif node.target is operator.getitem and node.args[0] not in self._source:
            # A part of a Split: an output of the operator, which is there already.
            return
        elif _packet(node) in _ALIASES:
            self._source[node] = self._source[node.all_input_nodes[0]]
        else:
            self._operator(node, is_extended)

    def _tensor(self, node: fx.Node) -> str:
        self.nodes[node.name], self._source[node] = node, node.name
        return node.name

    def _operator(self, node: fx.Node, is_extended: bool) -> None:
        packet = _packet(node)
        kind, positions = _OPERATORS.get(packet, ("", ()))
        if kind and all(self._source.get(given) in self.constants for given in node.all_input_nodes):
            self._tensor(node)
            self.constants.add(node.name)
            return
        if packet is aten.batch_norm and self._fold(node):
            return
        if not kind:
            inputs: tuple[str | None, ...] = tuple(self._source.get(given) for given in node.all_input_nodes)
        else:
            given = [node.args[i] if i < len(node.args) else None for i in positions]
            operands = given[0] if kind == "Concat" else given
            assert isinstance(operands, (list, tuple))
            inputs = tuple(self._operand(node, i, operand) for i, operand in enumerate(operands))
        parts = [user for user in node.users if user.target is operator.getitem] if kind == "Split" else [node]
        outputs = tuple(self._tensor(part) for part in parts)
        self.operators.extend(_specialized(Operator(kind, node.name, inputs, outputs), node, is_extended))

    def _operand(self, node: fx.Node, index: int, operand: Any) -> str | None:
        if isinstance(operand, fx.Node):
            return self._source.get(operand)
        if isinstance(operand, (int, float)) and not isinstance(operand, bool):
            name = f"{node.name}[{index}]"
            self.scalars[name] = float(operand)
            return name
        return None

    def _fold(self, node: fx.Node) -> bool:
        """Counts a batch normalization as a part of the product before it, as it will be once trained."""
        before = node.args[0]
        assert isinstance(before, fx.Node)
        for index, product in enumerate(self.operators):
            if product.outputs == (before.name,) and product.kind in PRODUCTS and len(before.users) == 1:
                del self.nodes[before.name]
                self.operators[index] = replace(product, outputs=(self._tensor(node),), is_normalized=True)
                return True
        return False

    def _find_masks(self, model: fx.GraphModule) -> None:
        scores: set[str] = set()
        for read in reversed(self.operators):
            if read.kind == "Softmax" or (read.kind in _PASSING and scores.intersection(read.outputs)):
                scores.update(name for name in read.inputs if name is not None)
        for read in self.operators:
            passes = read.kind in _PASSING
            far = passes and bool(scores.intersection(read.outputs))
            for name in read.inputs:
                if name is not None and self.is_constant(name) and self._masks(model, name, read, far):
                    self.masked.add(name)
            if passes and self.masked.intersection(name for name in read.inputs if name is not None):
                self.masked.update(read.outputs)

    def _masks(self, model: fx.GraphModule, name: str, read: Operator, far: bool) -> bool:
        if name in self.scalars:
            values = torch.tensor(self.scalars[name])
        elif self.nodes[name].op == "get_attr":
            values = attribute(model, self.nodes[name])
            if values.dtype != torch.float32:
                return False
        else:
            return False
        huge = values.abs() >= _HUGE
        if read.kind in PRODUCTS:
            huge &= values.isfinite()
        return bool(huge.any()) or (far and bool((values <= _FAR).any()))


def attribute(model: fx.GraphModule, node: fx.Node) -> Tensor:
    """The parameter or buffer of a node."""
    assert isinstance(node.target, str)
    found = operator.attrgetter(node.target)(model)
    assert isinstance(found, Tensor)
    return found.detach()


def _packet(node: fx.Node) -> Any:
    """The operator without its overload; in place or not is the same."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    return getattr(aten, name[:-1]) if name.endswith("_") and hasattr(aten, name[:-1]) else packet


def _value(node: fx.Node) -> Tensor:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _specialized(made: Operator, node: fx.Node, is_extended: bool) -> list[Operator]:
    """The operator with what follows from its settings; a Split of the extended rules is one Slice for each part."""
    args, packet = node.args, _packet(node)
    if made.kind == "Conv":
        if packet is aten.convolution and args[6]:
            return [replace(made, kind="ConvTranspose", channel_axis=1 if args[8] == 1 else None)]
        return [replace(made, channel_axis=0)]
    if made.kind == "ConvTranspose":
        groups = args[6] if len(args) > 6 else 1
        return [replace(made, channel_axis=1 if groups == 1 else None)]
    if packet is aten.linear:
        is_flat = _value(node).dim() == 2
        kind = "Gemm" if made.inputs[2] is not None or is_flat else "MatMul"
        return [replace(made, kind=kind, channel_axis=0, is_reshaped=not is_flat and kind == "Gemm")]
    if packet is aten.addmm:
        return [replace(made, channel_axis=1)]
    if made.kind == "MatMul":
        weight = args[1]
        assert isinstance(weight, fx.Node)
        return [replace(made, channel_axis=1 if _value(weight).dim() == 2 else None)]
    if made.kind == "Clip":
        return [_clip(made, node)]
    if packet in (aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d):
        sizes = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
        if all(size == 1 for size in sizes):
            is_pool = is_extended and packet is aten.adaptive_avg_pool2d
            return [replace(made, kind="GlobalAveragePool" if is_pool else "ReduceMean")]
    if made.kind == "ReduceMean" and is_extended and _value(node).dim() == 4 and len(args) > 2 and args[2]:
        axes = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
        if sorted(axis % 4 for axis in axes if isinstance(axis, int)) == [2, 3]:
            return [replace(made, kind="GlobalAveragePool")]
    if made.kind == "Split" and is_extended and packet is not aten.unbind:
        return [replace(made, kind="Slice", outputs=(part,)) for part in made.outputs]
    return [made]


def _clip(made: Operator, node: fx.Node) -> Operator:
    """Clip with its bounds; one bound alone is a Max or a Min for torch.onnx.export."""
    low: Any
    high: Any
    if _packet(node) is aten.relu6:
        low, high = 0.0, 6.0
    else:
        default = (-1.0, 1.0) if _packet(node) is aten.hardtanh else (None, None)
        low = node.args[1] if len(node.args) > 1 else node.kwargs.get("min", default[0])
        high = node.args[2] if len(node.args) > 2 else node.kwargs.get("max", default[1])
    if high is None:
        return replace(made, kind="Max")
    least = torch.finfo(torch.float32).min if low is None else low
    return replace(made, bounds=(float(least), float(high)))
