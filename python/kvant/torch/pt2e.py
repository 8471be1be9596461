"""A quantizer for torchao's PT2E flow: exported programs quantized as Kvant quantizes ONNX graphs.

    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    program = torch.export.export(model, example).module()
    prepared = prepare_pt2e(program, KvantQuantizer("A8W8"))
    for batch in data:
        prepared(batch)
    quantized = convert_pt2e(prepared)

Which tensors are quantized, their observers and their scales are those of `kvant.quantize(graph, preset)` on the graph
that torch.onnx.export makes of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, fx

from kvant._errors import UnsupportedError, missing_extra, usage_error
from kvant.torch._graph_operators import OperatorGraph, attribute
from kvant.torch._graph_placement import PlacedWeight, Placement, place
from kvant.torch._graph_presets import PRESETS, GraphRecipe, TensorRecipe, graph_recipe
from kvant.torch._graph_scales import Scales, solve, weight_parameters
from kvant.torch._graph_statistics import Affine, Floats, Statistic
from kvant.torch._selection import matches

try:
    from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase
    from torchao.quantization.pt2e.quantizer import (
        DerivedQuantizationSpec,
        EdgeOrNode,
        QuantizationAnnotation,
        QuantizationSpec,
        QuantizationSpecBase,
        Quantizer,
    )
except ModuleNotFoundError as error:
    raise missing_extra(error, "kvant.torch.pt2e", "pt2e") from error

__all__ = ["PRESETS", "KvantFakeQuantize", "KvantObserver", "KvantQuantizer"]

_ANNOTATION = "quantization_annotation"
# A sample of activations may not hold values from here on: they are masks, which no code represents beside others.
_HUGE = 1e30


class Calibration:
    """The observers of a prepared model, and the scales that follow from all of them together."""

    def __init__(self, recipe: GraphRecipe, placement: Placement, biases: dict[str, Floats]) -> None:
        self._recipe = recipe
        self._placement = placement
        self._biases = biases
        self._observers: dict[str, KvantObserver] = {}
        self._scales: Scales | None = None
        self._is_stale = True
        self._seen: set[str] = set()

    def add(self, observer: KvantObserver) -> None:
        """Makes an observer one of this model."""
        self._observers[observer.tensor] = observer
        observer.calibration = self

    def observed(self, tensor: str) -> None:
        """Notes that a tensor was observed; a second time begins another pass over the model."""
        if tensor in self._seen:
            self._scales = None
            self._seen.clear()
        self._seen.add(tensor)
        self._is_stale = True

    def qparams(self, tensor: str) -> tuple[Tensor, Tensor]:
        """Scale and zero point of a tensor from all that was observed.

        Raises:
            UsageError: There was no data.
            UnsupportedError: The tensor holds masks.
        """
        if self._is_stale or self._scales is None:
            self._solve()
        return self._of(tensor)

    def qparams_of_pass(self, tensor: str) -> tuple[Tensor, Tensor]:
        """The same as of the beginning of this pass over the model, which is cheaper in training."""
        if self._scales is None or tensor not in self._scales:
            self._solve()
        return self._of(tensor)

    def _solve(self) -> None:
        observers = self._observers.values()
        found = {
            observer.tensor: observer.statistic.affine() for observer in observers if observer.statistic is not None
        }
        observed = {tensor: one for tensor, one in found.items() if one is not None}
        weights = {observer.tensor: observer.parameters for observer in observers if observer.parameters}
        self._scales = solve(self._recipe, self._placement, observed, weights, self._biases)
        self._is_stale = False

    def _of(self, tensor: str) -> tuple[Tensor, Tensor]:
        assert self._scales is not None
        if tensor not in self._scales:
            raise usage_error(f"{tensor} has no scale: nothing was observed", "run the prepared model over data first")
        if tensor in self._observers and self._observers[tensor].is_masked:
            raise UnsupportedError(
                f"{tensor} holds values of {_HUGE:g} and more, such as an attention mask, which no code represents",
                kind="unsupported",
                remedy="leave the operators that read and make it in float with `exclude`",
            )
        found = self._scales.of(tensor)
        scales = torch.tensor([one.scale for one in found], dtype=torch.float32)
        return scales, torch.tensor([one.zero_point for one in found])


class KvantObserver(ObserverBase):  # type: ignore[misc]
    """Observes an activation or a constant; its scale follows from it and from the observers around it.

    Args:
        tensor: The name of the tensor: that of its node.
        recipe: How it is quantized.
        axis: The axis of the channels that each have a scale.
        is_constant: Whether it is a weight.
        is_changing: Whether a weight changes between passes, as in training.
        settings: What the annotation says: dtype, quant_min, quant_max, qscheme, is_dynamic.
    """

    def __init__(
        self,
        tensor: str,
        recipe: TensorRecipe,
        axis: int | None,
        is_constant: bool,
        is_changing: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(settings["dtype"], settings.get("is_dynamic", False))
        self.tensor = tensor
        self.quant_min: int = settings["quant_min"]
        self.quant_max: int = settings["quant_max"]
        self.qscheme = settings["qscheme"]
        self.ch_axis = -1 if axis is None else axis
        self.calibration: Calibration | None = None
        self.statistic = None if is_constant else Statistic(recipe)
        self.parameters: list[Affine] = []
        self.is_masked = False
        self._placed = PlacedWeight(recipe, axis)
        self._is_changing = is_changing
        self._version: tuple[int, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Takes a sample in and gives it back. A call is one sample, as in ONNX graphs."""
        version = (x.data_ptr(), x._version)
        if self.statistic is None and version == self._version and not self._is_changing:
            return x
        values = x.detach().to("cpu", torch.float32).numpy()
        if self.statistic is None:
            self.parameters, self._version = weight_parameters(values, self._placed), version
        else:
            self.statistic.observe(values)
            self.is_masked |= bool((numpy.abs(values) >= _HUGE).any())
        if self.calibration is not None:
            self.calibration.observed(self.tensor)
        return x

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """Scale and zero point: [1], or [channels].

        Raises:
            UsageError: There was no data.
            UnsupportedError: The tensor holds masks.
        """
        assert self.calibration is not None
        return self.calibration.qparams(self.tensor)


class KvantFakeQuantize(FakeQuantizeBase):  # type: ignore[misc]
    """Observes a tensor and quantizes and dequantizes it, with straight-through gradients, for training.

    `torchao.quantization.pt2e.disable_observer` keeps scales what they are. See `KvantObserver` for the arguments.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        observer = KvantObserver(**settings, is_changing=True)
        self.activation_post_process = observer
        self.dtype, self.is_dynamic, self.qscheme = observer.dtype, observer.is_dynamic, observer.qscheme
        self.quant_min, self.quant_max, self.ch_axis = observer.quant_min, observer.quant_max, observer.ch_axis
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("zero_point", torch.zeros(1, dtype=torch.int32))

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the model."""
        calibration: Calibration | None = self.activation_post_process.calibration
        return calibration

    def forward(self, x: Tensor) -> Tensor:
        """The values after quantization."""
        if self.observer_enabled[0] == 1:
            self.activation_post_process(x)
            assert self.calibration is not None
            scale, zero_point = self.calibration.qparams_of_pass(self.activation_post_process.tensor)
            self.scale, self.zero_point = scale.to(x.device), zero_point.to(x.device, torch.int32)
        if self.fake_quant_enabled[0] == 0:
            return x
        limits = (self.quant_min, self.quant_max)
        if self.ch_axis >= 0:
            return torch.fake_quantize_per_channel_affine(x, self.scale, self.zero_point, self.ch_axis, *limits)
        return torch.fake_quantize_per_tensor_affine(x, self.scale[0], self.zero_point[0], *limits)

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """See `KvantObserver`."""
        return self.activation_post_process.calculate_qparams()


class KvantQuantizer(Quantizer):  # type: ignore[misc]
    """Annotates exported programs for `prepare_pt2e` and, with `is_qat`, for `prepare_qat_pt2e`.

    Args:
        preset: A preset of ONNX graphs (`kvant list presets`): one of `PRESETS`, or an alias. Or a layer's scheme such
            as `int8:channel+int8:tensor:mse!static`, with the rules of A8W8 and the scales of `kvant.Observer`.
        exclude: Patterns of names of modules and nodes that stay in float: globs, or `re:` and a regular expression.
        exclude_op_types: ONNX operators that stay in float, such as `Softmax`.
        is_qat: Whether tensors are quantized while they are observed, for training.

    Raises:
        UnsupportedError: Torchao's operators do not hold the preset's codes, or it asks for an algorithm.
        UsageError: There is no such preset.
    """

    def __init__(
        self,
        preset: str,
        *,
        exclude: Sequence[str] = (),
        exclude_op_types: Sequence[str] = (),
        is_qat: bool = False,
    ) -> None:
        self.recipe = graph_recipe(preset)
        self.exclude = tuple(exclude)
        self.exclude_op_types = tuple(exclude_op_types)
        self.is_qat = is_qat
        self._calibration: Calibration | None = None

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Annotates the nodes of a program, in place.

        Raises:
            UnsupportedError: Nothing in it is quantized by the preset.
            UsageError: A pattern or an operator to exclude is none of the program.
        """
        graph = OperatorGraph.of(model, is_extended=self.recipe.rules == "extended")
        placement = place(graph, self.recipe, self._excluded(model, graph))
        if not placement.activations and not placement.weights:
            raise UnsupportedError(
                "the preset quantizes no operator of the program",
                kind="unsupported",
                remedy="export a float32 model with convolutions or matrix products",
            )
        _Annotator(model, placement, self.is_qat).annotate()
        biases = {
            name: attribute(model, graph.nodes[name]).to("cpu", torch.float32).numpy().copy()
            for name in placement.biases
            if graph.nodes[name].op == "get_attr"
        }
        graph.release()
        self._calibration = Calibration(self.recipe, placement, biases)
        return model

    def _excluded(self, model: fx.GraphModule, graph: OperatorGraph) -> set[str]:
        """The nodes of operators that stay in float."""
        modules = {node.name: _module_of(node) for node in model.graph.nodes}
        excluded: set[str] = set()
        for pattern in self.exclude:
            named = [(made.node, name) for made in graph.operators for name in (made.node, modules[made.node])]
            found = {node for node, name in named if matches(pattern, name)}
            if not found:
                raise usage_error(
                    f"exclude: {pattern} matches no module or node", "see named_modules() and model.graph"
                )
            excluded |= found
        for kind in self.exclude_op_types:
            found = {made.node for made in graph.operators if made.kind == kind}
            if not found:
                kinds = sorted({made.kind for made in graph.operators if made.kind})
                raise usage_error(f"exclude_op_types: the program has no {kind}", f"it has {', '.join(kinds)}")
            excluded |= found
        return excluded

    def validate(self, model: fx.GraphModule) -> None:
        """Nothing: `annotate` annotates only what torchao converts."""

    def prepare_obs_or_fq_callback(
        self, model: fx.GraphModule, edge_or_node_to_obs_or_fq: dict[EdgeOrNode, Any]
    ) -> None:
        """Connects the observers of a model, whose scales depend on one another."""
        assert self._calibration is not None
        for observer in edge_or_node_to_obs_or_fq.values():
            found = getattr(observer, "activation_post_process", observer)
            if isinstance(found, KvantObserver):
                self._calibration.add(found)
        self._calibration = None


def _module_of(node: fx.Node) -> str:
    """The name of the module that a node is of."""
    stack = node.meta.get("nn_module_stack")
    return str(next(reversed(stack.values()))[0]) if stack else ""


def _shared(observers: Sequence[Any], tensor: str) -> tuple[Tensor, Tensor]:
    """Scale and zero point of a tensor that no observer sees, from the calibration of another one's observer."""
    calibration: Calibration = observers[0].calibration
    return calibration.qparams(tensor)


class _Annotator:
    """Annotates the nodes of a program by a placement."""

    def __init__(self, model: fx.GraphModule, placement: Placement, is_qat: bool) -> None:
        self.model = model
        self.placement = placement
        self.nodes = placement.graph.nodes
        self.kind = KvantFakeQuantize if is_qat else KvantObserver
        self.products = {made.node: made.inputs for made in placement.graph.operators if made.channel_axis is not None}
        self._specs: dict[str, QuantizationSpecBase] = {}

    def annotate(self) -> None:
        for node in self.model.graph.nodes:
            if node.op != "call_function":
                continue
            # Torchao derives a bias's scale from tensors before it. In training with batch normalization it takes the
            # first two for the data and the weight of a product.
            arguments = sorted(node.all_input_nodes, key=lambda given: given.name in self.placement.biases)
            inputs = {given: self._spec(given.name) for given in arguments}
            is_product = node.name in self.products
            inputs = {given: spec for given, spec in inputs.items() if spec is not None or is_product}
            is_own = node.name in self.nodes and node.name in self.placement.activations
            output = self._spec(node.name) if is_own else None
            if output is not None or any(spec is not None for spec in inputs.values()):
                node.meta[_ANNOTATION] = QuantizationAnnotation(inputs, output, _annotated=True)

    def _spec(self, tensor: str) -> QuantizationSpecBase | None:
        if tensor not in self._specs:
            made = self._made(tensor)
            if made is None:
                return None
            self._specs[tensor] = made
        return self._specs[tensor]

    def _made(self, tensor: str) -> QuantizationSpecBase | None:
        placement = self.placement
        if tensor in placement.biases:
            return self._bias(tensor)
        activation, weight = placement.activations.get(tensor), placement.weights.get(tensor)
        if weight is not None:
            return self._own(tensor, weight.recipe, weight.axis, True)
        if activation is None:
            return None
        if activation.provider is None:
            return self._own(tensor, activation.recipe, None, False)
        producer = placement.graph.producer(tensor)
        if producer is not None and producer.kind == "MaxPool" and activation.recipe.dtype != torch.uint8:
            # Its values have codes already. Inductor would make a quantized max_pool2d of it, which takes uint8 alone.
            return None
        return DerivedQuantizationSpec(
            derived_from=[self._observed_at(activation.provider)],
            derive_qparams_fn=partial(_shared, tensor=tensor),
            **_settings(activation.recipe, None, False),
        )

    def _own(self, tensor: str, recipe: TensorRecipe, axis: int | None, is_constant: bool) -> QuantizationSpec:
        constructor = self.kind.with_args(tensor=tensor, recipe=recipe, axis=axis, is_constant=is_constant)
        return QuantizationSpec(observer_or_fake_quant_ctr=constructor, **_settings(recipe, axis, is_constant))

    def _bias(self, tensor: str) -> DerivedQuantizationSpec:
        bias = self.placement.biases[tensor]
        axis = self.placement.weights[bias.weight].axis if bias.weight in self.placement.weights else None
        return DerivedQuantizationSpec(
            derived_from=[self._edge(bias.weight, bias.node), self._edge(bias.input, bias.node)],
            derive_qparams_fn=partial(_shared, tensor=tensor),
            dtype=torch.int32,
            quant_min=torch.iinfo(torch.int32).min,
            quant_max=torch.iinfo(torch.int32).max,
            qscheme=torch.per_tensor_symmetric if axis is None else torch.per_channel_symmetric,
            ch_axis=None if axis is None else 0,
        )

    def _observed_at(self, tensor: str) -> EdgeOrNode:
        """Where torchao observes a tensor: where it is made, or where a constant or an input is first read."""
        node = self.nodes[tensor]
        if node.op == "call_function" and tensor not in self.placement.graph.constants:
            return node
        return next(
            (node, user) for user in self.model.graph.nodes if user in node.users and user.op == "call_function"
        )

    def _edge(self, tensor: str, reader: str) -> EdgeOrNode:
        node = self.nodes[tensor]
        is_direct = any(user.name == reader for user in node.users)
        return (
            next((node, user) for user in node.users if user.name == reader) if is_direct else self._observed_at(tensor)
        )


def _settings(recipe: TensorRecipe, axis: int | None, is_constant: bool) -> dict[str, Any]:
    """What an annotation says of a tensor. Codes of weights are symmetric, as integer products may rely on."""
    info = torch.iinfo(recipe.dtype)
    kind = "channel" if axis is not None else "tensor"
    return {
        "dtype": recipe.dtype,
        "quant_min": -info.max if is_constant and info.min < 0 and recipe.scheme is None else info.min,
        "quant_max": info.max,
        "qscheme": getattr(torch, f"per_{kind}_{'symmetric' if recipe.symmetric else 'affine'}"),
        "ch_axis": axis,
    }
