"""Scales and zero points of all tensors of a placement from what was observed, as Kvant's ONNX flow finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy

from kvant._kvant import position, power_of_two, product_scales
from kvant._tensors import _weight
from kvant.torch._graph_operators import Operator, OperatorGraph
from kvant.torch._graph_placement import FUSED_ACTIVATIONS, PlacedWeight, Placement
from kvant.torch._graph_presets import GraphRecipe
from kvant.torch._graph_statistics import Affine, Floats, affine, row_affines

# Rounds of adjustment for NPUs: one rule may break another.
_ROUNDS = 5


class Scales:
    """Scales and zero points of activations, of weights (one for each channel) and of biases."""

    def __init__(self) -> None:
        self.activations: dict[str, Affine] = {}
        self.weights: dict[str, list[Affine]] = {}
        self.biases: dict[str, list[Affine]] = {}

    def __contains__(self, tensor: str) -> bool:
        return tensor in self.activations or tensor in self.weights or tensor in self.biases

    def of(self, tensor: str) -> list[Affine]:
        """The parameters of a tensor."""
        found = self.biases.get(tensor) or self.weights.get(tensor)
        return [self.activations[tensor]] if found is None else found


def solve(
    recipe: GraphRecipe,
    placement: Placement,
    observed: Mapping[str, Affine],
    weights: Mapping[str, list[Affine]],
    biases: Mapping[str, Floats],
) -> Scales:
    """Solves for all tensors that something is known of.

    Args:
        recipe: The recipe.
        placement: The quantized tensors.
        observed: The parameters of activations, by what was observed of each.
        weights: The parameters of weights, as `weight_parameters` finds them.
        biases: The values of biases.
    """
    made = Scales()
    made.weights = {name: list(found) for name, found in weights.items()}
    for name, value in placement.graph.scalars.items():
        if name in placement.weights:
            values = numpy.asarray([value], numpy.float32)
            made.weights[name] = weight_parameters(values, placement.weights[name])
    for name, activation in placement.activations.items():
        found = observed.get(placement.observed(name))
        if placement.is_whole_softmax(name) and activation.recipe.scheme is None:
            found = affine(0.0, 1.0, activation.recipe)
        if activation.provider is None and found is not None:
            made.activations[name] = found
    _follow_providers(placement, made)
    if recipe.npu:
        _Positions(placement, made).refine()
    elif recipe.align_concat:
        _align_concatenations(placement, made)
    _follow_providers(placement, made)
    _solve_biases(placement, made, biases)
    return made


def weight_parameters(values: Floats, weight: PlacedWeight) -> list[Affine]:
    """Scale and zero point of a weight, or of each of its channels."""
    rows = values.reshape(1, -1) if weight.axis is None else numpy.moveaxis(values, weight.axis, 0)
    return row_affines(rows.reshape(len(rows), -1), weight.recipe)


def _follow_providers(placement: Placement, made: Scales) -> None:
    for name, activation in placement.activations.items():
        if activation.provider in made.activations:
            made.activations[name] = made.activations[activation.provider]
        elif activation.provider in made.weights:
            made.activations[name] = made.weights[activation.provider][0]


def _align_concatenations(placement: Placement, made: Scales) -> None:
    """Gives the inputs and the output of each Concat the largest scale, where their zero points are the same."""
    for joint in placement.graph.operators:
        if joint.kind != "Concat":
            continue
        tensors = [name for name in (*joint.inputs, *joint.outputs) if name in made.activations]
        found = [made.activations[name] for name in tensors if name is not None]
        if not found or len({one.zero_point for one in found}) > 1:
            continue
        widest = max(found, key=lambda one: one.scale)
        for name in tensors:
            assert name is not None
            owner = placement.activations[name].provider or name
            if owner in made.activations:
                made.activations[owner] = widest


def _solve_biases(placement: Placement, made: Scales, biases: Mapping[str, Floats]) -> None:
    """Raises weights' scales until biases have int32 codes; beyond that, biases get wider scales."""
    for name, bias in placement.biases.items():
        data = made.activations.get(bias.input) or made.weights.get(bias.input, [None])[0]
        values, weights = biases.get(name), made.weights.get(bias.weight)
        if data is None or values is None or weights is None:
            continue
        known = placement.activations.get(bias.input) or placement.weights[bias.input]
        powers = placement.weights[bias.weight].recipe.power_of_two
        found = product_scales(_weight(values).data, data.scale, weights, known.recipe.bits <= 8, powers)
        made.weights[bias.weight] = [Affine(s, one.zero_point) for s, one in zip(found[0], weights, strict=True)]
        made.biases[name] = [Affine(scale, 0) for scale in found[1]]


def _limited(value: int, low: int, high: int) -> int | None:
    """The nearest position within bounds; None if the value is within them."""
    inside = min(max(value, low), high)
    return None if inside == value else inside


class _Positions:
    """Positions (`-log2` of scales) within the shifts of AMD's NPUs: see `crates/onnx/src/npu/refine.rs`."""

    def __init__(self, placement: Placement, made: Scales) -> None:
        self.placement = placement
        self.graph: OperatorGraph = placement.graph
        self.made = made
        own = {name: a for name, a in made.activations.items() if placement.activations[name].provider is None}
        own.update({name: found[0] for name, found in made.weights.items() if len(found) == 1})
        self.of = {name: position(found.scale) for name, found in own.items()}
        self.changed = False

    def refine(self) -> None:
        """Moves scales until every rule holds, or for some rounds."""
        before = dict(self.of)
        rules: Sequence[tuple[tuple[str, ...], Callable[[Operator], None]]] = (
            (("Concat",), self._align_all),
            (("MaxPool", "AveragePool", "GlobalAveragePool"), self._align_first),
            (("Pad",), self._align_first),
            (("Slice",), self._align_first),
            (("Add", "Sub"), self._shift_read),
            (("Add", "Mul"), self._shift_write),
            (("Conv", "Gemm"), self._shift_cut),
            (("Conv", "Gemm"), self._shift_bias),
            (("HardSigmoid",), self._hard_sigmoid),
            (("Mul",), self._swish),
        )
        for _ in range(_ROUNDS):
            self.changed = False
            for kinds, rule in rules:
                for made in self.graph.operators:
                    if made.kind in kinds:
                        rule(made)
            if not self.changed:
                break
        for name, moved in self.of.items():
            if before[name] != moved and name in self.made.activations:
                self.made.activations[name] = Affine(power_of_two(moved), self.made.activations[name].zero_point)
            elif before[name] != moved:
                self.made.weights[name] = [Affine(power_of_two(moved), self.made.weights[name][0].zero_point)]

    def _owner(self, tensor: str | None) -> str | None:
        placed = self.placement.activations.get(tensor or "")
        owner = tensor if placed is None or placed.provider is None else placed.provider
        return owner if owner in self.of else None

    def _get(self, tensor: str | None) -> int | None:
        owner = self._owner(tensor)
        return None if owner is None else self.of[owner]

    def _set(self, tensor: str | None, moved: int) -> None:
        owner = self._owner(tensor)
        if owner is not None and self.of[owner] != moved:
            self.of[owner] = moved
            self.changed = True

    def _input(self, made: Operator) -> str | None:
        """The tensor with a scale that an operator reads: pooling may read through a Pad."""
        name = made.inputs[0]
        if self._owner(name) is None and made.kind in ("AveragePool", "GlobalAveragePool"):
            producer = self.graph.producer(name)
            name = None if producer is None else producer.inputs[0]
        return None if self._owner(name) is None else name

    def _output(self, made: Operator) -> str | None:
        """The tensor with a scale that an operator makes, itself or by the activation function it is fused with."""
        name: str | None = made.outputs[0]
        if self._owner(name) is None:
            reader = self.graph.only_reader(made.outputs[0])
            name = reader.outputs[0] if reader is not None and reader.kind in FUSED_ACTIVATIONS else None
        return None if self._owner(name) is None else name

    def _inputs(self, made: Operator) -> list[int] | None:
        found = [self._get(name) for name in made.inputs]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else None

    def _align_all(self, made: Operator) -> None:
        output = self._output(made)
        if output is None:
            return
        tensors = (*made.inputs, output)
        least = min(found for found in map(self._get, tensors) if found is not None)
        for name in tensors:
            self._set(name, least)

    def _align_first(self, made: Operator) -> None:
        source, output = self._input(made), self._output(made)
        if source is None or output is None:
            return
        least = min(found for found in (self._get(source), self._get(output)) if found is not None)
        self._set(source, least)
        self._set(output, least)

    def _shift_read(self, made: Operator) -> None:
        inputs = self._inputs(made)
        if inputs and max(inputs) - min(inputs) > 7:
            self._set(made.inputs[inputs.index(max(inputs))], min(inputs) + 7)

    def _shift_write(self, made: Operator) -> None:
        inputs, output = self._inputs(made), self._output(made)
        written = self._get(output)
        if inputs is None or written is None:
            return
        base, low, high = (sum(inputs), 0, 32) if made.kind == "Mul" else (min(inputs), -7, 25)
        shift = _limited(base - written, low, high)
        if shift is not None:
            self._set(output, base - shift)

    def _product(self, made: Operator) -> tuple[int, int, int] | None:
        """Positions of the input, the weight and the output of a product."""
        found = self._get(self._input(made)), self._get(made.inputs[1]), self._get(self._output(made))
        read, weight, written = found
        return None if read is None or weight is None or written is None else (read, weight, written)

    def _shift_cut(self, made: Operator) -> None:
        found = self._product(made)
        if found is None:
            return
        read, weight, written = found
        cut = _limited(weight + read - written, 0, 16)
        if cut is not None:
            self._set(made.inputs[1], cut + written - read)

    def _shift_bias(self, made: Operator) -> None:
        found = self._product(made)
        bias = self._get(made.inputs[2]) if len(made.inputs) > 2 else None
        if found is None or bias is None:
            return
        read, weight, written = found
        is_leaky = any(reader.kind == "LeakyRelu" for reader in self.graph.readers(made.outputs[0]))
        low = 0 if is_leaky else min(weight + read - written - 16, 0)
        shift = _limited(weight + read - bias, low, 15)
        if shift is not None:
            self._set(made.inputs[2], weight + read - shift)

    def _hard_sigmoid(self, made: Operator) -> None:
        source, output = self._input(made), self._output(made)
        read, written = self._get(source), self._get(output)
        if read is None or written is None:
            return
        read = min(max(read, 0), 15)
        self._set(source, read)
        self._set(output, min(max(written, 7), 14 + read))

    def _swish(self, made: Operator) -> None:
        if len(made.inputs) != 2:
            return

        def is_sigmoid_of(x: str | None, y: str | None) -> bool:
            producer = self.graph.producer(y)
            return producer is not None and producer.kind in ("Sigmoid", "HardSigmoid") and producer.inputs[0] == x

        first, second = made.inputs
        if not is_sigmoid_of(first, second) and not is_sigmoid_of(second, first):
            return
        inputs, output = self._inputs(made), self._output(made)
        written = self._get(output)
        if inputs is None or written is None:
            return
        shift = _limited(sum(inputs) - written, 0, 15)
        if shift is not None:
            self._set(output, sum(inputs) - shift)
