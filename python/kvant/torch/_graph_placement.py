"""From the operators of a graph to its quantized tensors, by the rules of `crates/onnx/src/placement`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from kvant.torch._graph_operators import Operator, OperatorGraph
from kvant.torch._graph_presets import GraphRecipe, TensorRecipe

# `all`: every input and output. `data`: the first input and the outputs. `product`: data, a weight, a bias and the
# output. `normalization`: data, gain and offset, and the output. `same`: the output has the scale of the input.
# `clamp`: data that may go into the codes before. `choice`: two alternatives and the output.
Rule = Literal["all", "data", "product", "normalization", "same", "clamp", "choice"]

_STANDARD: dict[str, Rule] = {
    "Conv": "product",
    "ConvTranspose": "product",
    "Gemm": "product",
    "MatMul": "product",
    # Several operators in ONNX, whose inner tensors are none of the program.
    "Attention": "all",
    "Silu": "all",
    "Relu": "clamp",
    "Clip": "clamp",
    "Add": "all",
    "Mul": "all",
    "LeakyRelu": "all",
    "Sigmoid": "all",
    "Softmax": "all",
    "ArgMax": "data",
    "Pad": "data",
    "ConvPad": "same",
    "Gelu": "all",
    "Concat": "all",
    "Where": "choice",
    "InstanceNormalization": "normalization",
    "LayerNormalization": "normalization",
    "Reshape": "same",
    "Transpose": "same",
    "Squeeze": "same",
    "Unsqueeze": "same",
    "MaxPool": "same",
    "Resize": "same",
    "Split": "same",
    "Gather": "same",
    "AveragePool": "same",
    "Tanh": "all",
    "Slice": "same",
}
_EXTENDED: dict[str, Rule] = {
    **_STANDARD,
    "AveragePool": "all",
    "GlobalAveragePool": "all",
    "Div": "all",
    "Sub": "all",
    "Erf": "all",
    "Min": "all",
    "Max": "all",
    "ReduceMean": "data",
    "DepthToSpace": "all",
    "Slice": "data",
    "PRelu": "all",
    "HardSigmoid": "all",
    "HardSwish": "all",
}
RULES: dict[str, dict[str, Rule]] = {
    "standard": _STANDARD,
    "extended": _EXTENDED,
    "products": {"MatMul": "product", "Gemm": "product", "Attention": "all"},
}
_ARITHMETIC = ("Mul", "Add", "Sub", "Div", "Min", "Max")
_BEFORE_ACTIVATIONS = ("Conv", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "MatMul", "Gemm", "ConvTranspose")
FUSED_ACTIVATIONS = ("Relu", "LeakyRelu", "PRelu", "Clip")


class PlacedActivation(NamedTuple):
    """An activation that is quantized: how, and the tensor whose scale it has, if not its own."""

    recipe: TensorRecipe
    provider: str | None = None


class PlacedWeight(NamedTuple):
    """A constant that is quantized: how, and the axis whose entries each have a scale."""

    recipe: TensorRecipe
    axis: int | None = None


class PlacedBias(NamedTuple):
    """A bias of int32 codes: the data and the weight whose scales' product it has, and its operator's node."""

    input: str
    weight: str
    node: str


@dataclass
class Placement:
    """The quantized tensors of a graph, by name."""

    graph: OperatorGraph
    activations: dict[str, PlacedActivation] = field(default_factory=dict)
    weights: dict[str, PlacedWeight] = field(default_factory=dict)
    biases: dict[str, PlacedBias] = field(default_factory=dict)

    def observed(self, tensor: str) -> str:
        """The tensor that determines a tensor's range: what only Relu or Clip read needs codes for their output."""
        reader = self.graph.only_reader(tensor)
        if reader is None or reader.kind not in ("Relu", "Clip") or self._is_behind_reshape(tensor):
            return tensor
        return reader.outputs[0]

    def is_whole_softmax(self, tensor: str) -> bool:
        """Whether a tensor is made by a Softmax of codes: its range is then 0 to 1."""
        producer = self.graph.producer(tensor)
        return producer is not None and producer.kind == "Softmax" and producer.inputs[0] in self.activations

    def _is_behind_reshape(self, tensor: str) -> bool:
        producer = self.graph.producer(tensor)
        return producer is not None and producer.is_reshaped


class _Placer:
    def __init__(self, graph: OperatorGraph, recipe: GraphRecipe, excluded: Collection[str]) -> None:
        self.graph = graph
        self.recipe = recipe
        self.excluded = excluded
        self.made = Placement(graph)
        # Outputs of operators that only move values, by their input; and tensors that operators compute with.
        self.moved: dict[str, str] = {}
        self.computed: set[str] = set()

    def place(self) -> Placement:
        rules = RULES[self.recipe.rules]
        for made in self.graph.operators:
            rule = rules.get(made.kind)
            if rule is None and self.recipe.all_operators and made.kind:
                rule = _EXTENDED.get(made.kind, "all")
            if rule is not None and made.node not in self.excluded and not self._stays_float(made, rule):
                self._operator(made, rule)
        self._remove_idle_moves()
        self._remove_fused()
        self._share()
        self._drop_clamps()
        self._check_biases()
        return self.made

    def _stays_float(self, made: Operator, rule: Rule) -> bool:
        """Whether an operator carries masks, or is a product without a constant in weight-only recipes."""
        in_float = self.recipe.activation is None
        masked = self.graph.masked.intersection(name for name in (*made.inputs, *made.outputs) if name is not None)
        if masked and rule != "clamp" and not (rule == "product" and in_float):
            return True
        is_variable = not any(name is not None and self.graph.is_constant(name) for name in made.inputs[:2])
        return rule == "product" and in_float and is_variable

    def _operator(self, made: Operator, rule: Rule) -> None:
        if rule != "same":
            self.computed.update(name for name in (*made.inputs, *made.outputs) if name is not None)
        if rule == "product":
            self._product(made)
        elif rule == "normalization":
            self._tensors(made, made.inputs[:1])
            for name in made.inputs[1:3]:
                self._constant(name, self.recipe.weight, None)
        else:
            self._tensors(made, {"all": made.inputs, "choice": made.inputs[1:3]}.get(rule, made.inputs[:1]))
        for output in made.outputs:
            self._activation(output, self.recipe.activation)
            if rule == "same" and made.inputs[0] is not None:
                self.moved[output] = made.inputs[0]

    def _tensors(self, made: Operator, names: tuple[str | None, ...]) -> None:
        like_activation = self.recipe.has_two_byte_types
        like_activation |= self.recipe.align_elementwise and made.kind in _ARITHMETIC
        recipe = self.recipe.weight
        if like_activation and self.recipe.activation is not None:
            recipe = replace(self.recipe.activation, observer=recipe.observer, per_channel=False)
        for name in names:
            if name is not None and self.graph.is_constant(name):
                self._constant(name, recipe, None)
            else:
                self._activation(name, self.recipe.activation)

    def _product(self, made: Operator) -> None:
        for operand, name in enumerate(made.inputs[:2]):
            if name is not None and self.graph.is_constant(name):
                self._constant(name, self.recipe.weight, made.channel_axis if operand == 1 else None)
            else:
                self._activation(name, self.recipe.activation)
        bias = made.inputs[2] if len(made.inputs) > 2 else None
        if self.recipe.activation is None and made.is_reshaped:
            # Where activations stay in float, graphs keep a MatMul and an Add, whose constant is one like others.
            self._constant(bias, self.recipe.weight, None)
        if bias is None or not self.graph.is_constant(bias) or self.recipe.activation is None or made.is_normalized:
            return
        if self.recipe.bias == "weight":
            self._constant(bias, self.recipe.weight, None)
            return
        data, matrix = made.inputs[:2]
        assert data is not None and matrix is not None
        is_bias = self.graph.is_float(bias) and self.graph.is_constant(matrix) and bias not in self.made.weights
        # ONNX graphs get a copy of a bias for each product, and nodes share their constants.
        if self.recipe.bias == "int32" and is_bias and len(self.graph.readers(bias)) == 1:
            self.made.biases[bias] = PlacedBias(data, matrix, made.node)

    def _activation(self, name: str | None, recipe: TensorRecipe | None) -> None:
        if recipe is None or name is None or self.graph.is_constant(name) or not self.graph.is_float(name):
            return
        self.made.activations.setdefault(name, PlacedActivation(recipe))

    def _constant(self, name: str | None, recipe: TensorRecipe, axis: int | None) -> None:
        if (
            name is None
            or name in self.made.biases
            or not self.graph.is_constant(name)
            or not self.graph.is_float(name)
        ):
            return
        self.made.weights.setdefault(name, PlacedWeight(recipe, axis if recipe.per_channel else None))

    def _origin(self, tensor: str) -> str:
        while tensor in self.moved:
            tensor = self.moved[tensor]
        return tensor

    def _remove_idle_moves(self) -> None:
        """Leaves in float what values only move between, while nothing on either side computes with codes."""
        busy = {self._origin(name) for name in self.computed}
        for name in (*self.moved, *self.moved.values()):
            if self._origin(name) not in busy:
                self.made.activations.pop(name, None)

    def _remove_fused(self) -> None:
        for made in self.graph.operators:
            for output in made.outputs:
                if is_fused(self.graph, made, output):
                    self.made.activations.pop(output, None)

    def _share(self) -> None:
        """Gives moved values the scale of where they come from."""
        activations = self.made.activations
        for output, source in self.moved.items():
            origin = source
            while origin in self.moved and origin in activations:
                origin = self.moved[origin]
            if output not in activations:
                continue
            recipe = activations[output].recipe
            weight = self.made.weights.get(origin)
            found = activations[origin].recipe if origin in activations else None
            if found is None and weight is not None and weight.axis is None:
                found = weight.recipe
            if found is not None and (found.dtype, found.symmetric) == (recipe.dtype, recipe.symmetric):
                activations[output] = PlacedActivation(recipe, origin)

    def _drop_clamps(self) -> None:
        """Leaves in float what Relu and Clip read whose lowest code is zero anyway."""
        activation = self.recipe.activation
        if activation is None or activation.symmetric or self.recipe.rules == "extended":
            return
        for made in self.graph.operators:
            clamps = made.kind == "Relu" or (made.bounds is not None and made.bounds[0] <= 0.0 <= made.bounds[1])
            source = made.inputs[0] if made.inputs else None
            if not clamps or source is None or self.graph.only_reader(source) is None:
                continue
            codes = self.made.activations.get(made.outputs[0])
            producer = self.graph.producer(source)
            # Behind a Reshape the clamp goes, and the codes before the Reshape stay.
            if codes is None or codes.provider is not None or producer is None or producer.is_reshaped:
                continue
            self.made.activations.pop(source, None)

    def _check_biases(self) -> None:
        """Leaves biases in float whose product has no codes on both sides."""
        known = {**self.made.activations, **self.made.weights}
        self.made.biases = {
            name: bias for name, bias in self.made.biases.items() if bias.input in known and bias.weight in known
        }


def is_fused(graph: OperatorGraph, made: Operator, tensor: str) -> bool:
    """Whether a tensor goes straight into an activation function that runs as one with the operator before it."""
    reader = graph.only_reader(tensor)
    if reader is None or made.is_reshaped:
        return False
    if made.kind == "Pad":
        return reader.kind in ("AveragePool", "GlobalAveragePool")
    if made.kind not in _BEFORE_ACTIVATIONS:
        return False
    return reader.kind in ("Relu", "LeakyRelu", "PRelu") or reader.bounds in ((0.0, 6.0), (0.0, 1.0))


def place(graph: OperatorGraph, recipe: GraphRecipe, excluded: Collection[str] = ()) -> Placement:
    """The quantized tensors of a graph; operators of the excluded nodes stay in float."""
    return _Placer(graph, recipe, excluded).place()
