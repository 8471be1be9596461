"""Smoothing: scales that move the difficulty of quantizing inputs into weights, and clipping thresholds.

A smoothing pair is a module whose outputs scale with its parameters (a norm, or a linear layer), and the linear layers
that alone read them. Pairs are found by watching a batch run through the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

import kvant
from kvant import _kvant
from kvant._errors import usage_error
from kvant._tensors import _weight
from kvant.torch._algorithms import LayerRecipe
from kvant.torch._blocks import input_of
from kvant.torch._layouts import is_conv1d
from kvant.torch._modules import names_of
from kvant.torch._offload import device_of, is_stored, values_of
from kvant.torch._rounding import matrix_of
from kvant.torch._runs import Calibration, of_layer, quantizers_off, tensors_of

# The relative difference of outputs that folding may make by rounding, in bfloat16 too.
_TOLERANCE = 0.03
# Layers that AWQ does not clip: the scores of attention react strongly to their largest weights.
_NOT_CLIPPED = ("q_", "k_", "query", "key", "qkv")


@dataclass
class SmoothingPair:
    """A module and the layers that read its outputs.

    Attributes:
        source: The name of the module.
        layers: The names of the layers.
    """

    source: str
    layers: tuple[str, ...]


def transform_weights(
    calibration: Calibration, chosen: Mapping[str, LayerRecipe], table: Mapping[str, Sequence[str]] | None
) -> None:
    """Scales and clips weights, transform after transform."""
    transforms = dict.fromkeys(name for recipe in chosen.values() for name in recipe.algorithms.transforms)
    if not transforms:
        return
    with quantizers_off(calibration.model):
        pairs = _pairs(calibration, chosen, table)
        for transform in transforms:
            _scale(calibration, chosen, [pair for pair in pairs if _applies(pair, transform, chosen)], transform)
            clipped = [
                name
                for name, recipe in chosen.items()
                if transform in recipe.algorithms.clips and not any(part in name for part in _NOT_CLIPPED)
            ]
            _clip(calibration, chosen, clipped, transform)
    calibration.forget_float_weights()


def _applies(pair: SmoothingPair, transform: str, chosen: Mapping[str, LayerRecipe]) -> bool:
    """Whether a transform is asked for a pair: by all of its quantized layers, which have the same scheme."""
    recipes = [chosen[name] for name in pair.layers if name in chosen]
    is_wanted = all(transform in recipe.algorithms.transforms for recipe in recipes)
    return bool(recipes) and is_wanted and len({recipe.scheme for recipe in recipes}) == 1


def _scale(
    calibration: Calibration, chosen: Mapping[str, LayerRecipe], pairs: list[SmoothingPair], transform: str
) -> None:
    """Finds the scales of pairs, and folds them into the model."""
    if not pairs:
        warnings.warn(
            f"{transform} changes nothing: no norm or layer was found whose outputs only linear layers read",
            kvant.KvantWarning,
            stacklevel=5,
        )
        return
    statistics = _statistics(calibration, [pair.layers[0] for pair in pairs])
    outputs, kept = _outputs(calibration), calibration.changes
    for pair in pairs:
        inputs = statistics.get(pair.layers[0])
        if inputs is None:
            continue
        quantized = [name for name in pair.layers if name in chosen]
        weights = [_weight(matrix_of(calibration.model.get_submodule(name)).float()).data for name in quantized]
        with of_layer(quantized[0]):
            found = inputs.scales(weights, chosen[quantized[0]].scheme, transform)
        if found is not None:
            _fold(calibration, pair, torch.from_numpy(found))
    if not _agree(outputs, _outputs(calibration)):
        calibration.undo(kept)
        warnings.warn(
            f"{transform} is left out: with its scales folded in, the model would compute something else",
            kvant.KvantWarning,
            stacklevel=5,
        )


def _outputs(calibration: Calibration) -> list[Tensor]:
    """The outputs of the model for the first and the last batch."""
    ends = sorted({0, len(calibration.batches) - 1})
    found = [tensor for number in ends for tensor in tensors_of(calibration.run(number))]
    return [tensor.detach().float().cpu() for tensor in found if tensor.is_floating_point()]


def _agree(before: list[Tensor], after: list[Tensor]) -> bool:
    """Whether outputs are the same but for rounding."""
    if [tensor.shape for tensor in before] != [tensor.shape for tensor in after]:
        return False
    return all(
        float((x - y).nan_to_num().norm()) <= _TOLERANCE * float(x.nan_to_num().norm())
        for x, y in zip(before, after, strict=True)
    )


def _clip(calibration: Calibration, chosen: Mapping[str, LayerRecipe], layers: list[str], transform: str) -> None:
    """Clips weights at the thresholds with the least error of outputs."""
    for name, inputs in _statistics(calibration, layers).items():
        module: Any = calibration.model.get_submodule(name)
        matrix = matrix_of(module).float()
        with of_layer(name):
            values = inputs.clipped(_weight(matrix).data, chosen[name].scheme, transform)
        if values is not None:
            matrix = torch.from_numpy(values).reshape(matrix.shape)
            calibration.replace(module, "weight", module.layout.to_weight(matrix, tuple(module.weight.shape)))


def _statistics(calibration: Calibration, layers: Iterable[str]) -> dict[str, _kvant.InputStatistics]:
    """The statistics of the inputs of linear layers, of those that met data."""
    found: dict[str, _kvant.InputStatistics] = {}

    def hook(name: str) -> Any:
        def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = input_of(args, kwargs)
            calibration.check_finite(name, "inputs", given)
            rows = given.reshape(-1, given.shape[-1]).float().cpu()
            found.setdefault(name, _kvant.InputStatistics(rows.shape[1])).add(_weight(rows).data)

        return see

    modules = {name: calibration.model.get_submodule(name) for name in layers}
    handles = [
        module.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, module in modules.items()
        if _is_linear(module)
    ]
    try:
        if handles:
            calibration.run_all()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _has_own_weight(module: nn.Module) -> bool:
    """Whether the weight is a parameter, and not computed from others in each pass."""
    return module._parameters.get("weight") is not None and not parametrize.is_parametrized(module)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_conv1d(module)


def _fold(calibration: Calibration, pair: SmoothingPair, scales: Tensor) -> None:
    """Divides the outputs of a module by scales, one for each channel, and multiplies columns of the layers by them."""
    source = calibration.model.get_submodule(pair.source)
    weight: Tensor = values_of(source, "weight").cpu().double()
    scales = scales.double()
    if weight.dim() == 1:
        divided = (weight + 1) / scales - 1 if _adds_one(source) else weight / scales
    else:
        divided = weight / scales if is_conv1d(source) else weight / scales.reshape(-1, 1)
    calibration.replace(source, "weight", divided)
    bias = getattr(source, "bias", None)
    if bias is not None:
        calibration.replace(source, "bias", values_of(source, "bias").cpu().double() / scales)
    for name in pair.layers:
        layer = calibration.model.get_submodule(name)
        columns: Tensor = values_of(layer, "weight").cpu().double()
        calibration.replace(layer, "weight", columns * (scales.reshape(-1, 1) if is_conv1d(layer) else scales))


def _pairs(
    calibration: Calibration, chosen: Mapping[str, LayerRecipe], table: Mapping[str, Sequence[str]] | None
) -> list[SmoothingPair]:
    """The pairs that a table names, or that are found, of which at least one layer is quantized."""
    if table is None:
        return [pair for pair in find_pairs(calibration) if any(name in chosen for name in pair.layers)]
    names = {name: given[0] for given in names_of(calibration.model).values() for name in given}
    pairs = [
        SmoothingPair(names.get(source, source), tuple(names.get(layer, layer) for layer in layers))
        for source, layers in table.items()
    ]
    modules = dict(calibration.model.named_modules())
    for pair in pairs:
        for name in (pair.source, *pair.layers):
            if name not in modules:
                raise usage_error(f"`smoothing` names {name!r}, which the model does not have", "check its spelling")
        for name in pair.layers:
            if not _is_linear(modules[name]):
                raise usage_error(f"`smoothing` names {name!r}, which is not a linear layer", "leave it out")
        if not _has_own_weight(modules[pair.source]):
            raise usage_error(
                f"`smoothing` names {pair.source!r}, which has no weight to fold scales into", "leave it out"
            )
    return pairs


def find_pairs(calibration: Calibration) -> list[SmoothingPair]:
    """The smoothing pairs of a model, from a run of its first batch."""
    model = calibration.model
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    watch = _Watch(model)
    with watch:
        watch.leave_model(calibration.run(0))
    found = []
    for source, readers in watch.readers.items():
        module = model.get_submodule(source)
        names = tuple(dict.fromkeys(readers))
        parameters = [*module.parameters(recurse=False), *(model.get_submodule(name).weight for name in names if name)]
        is_own = all(owners.get(id(parameter), 1) == 1 for parameter in parameters)
        are_stored = all(_has_own_weight(model.get_submodule(name)) for name in (source, *names) if name)
        is_called_once = all(watch.calls.get(name) == 1 for name in (source, *names))
        if names and all(names) and is_own and are_stored and is_called_once and source not in names:
            found.append(SmoothingPair(source, names))
    return found


@dataclass
class _Watch:
    """Watches who reads the outputs of norms and linear layers while a model runs.

    Attributes:
        readers: The readers of each source; an empty name is a reader that does not scale with its inputs.
        calls: How often each source ran.
    """

    model: nn.Module
    readers: dict[str, list[str]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> _Watch:
        self._stack: list[str] = []
        # Sources by the identity of tensors, which are kept so that no other gets it.
        self._sources: dict[int, str] = {}
        self._kept: list[Tensor] = []
        self._handles: list[Any] = []
        for name, module in self.model.named_modules():
            if _is_linear(module):
                self._handles.append(module.register_forward_pre_hook(self._enter(name)))
                self._handles.append(module.register_forward_hook(self._leave(name)))
            elif _is_norm(module):
                self._handles.append(module.register_forward_hook(self._leave(name)))
        self._mode = _Functions(self)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def _enter(self, name: str) -> Any:
        return lambda module, args: self._stack.append(name)

    def _leave(self, name: str) -> Any:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self._stack and self._stack[-1] == name:
                self._stack.pop()
            self.calls[name] = self.calls.get(name, 0) + 1
            if isinstance(output, Tensor):
                self.readers.setdefault(name, [])
                self._follow(output, name)

        return leave

    def _follow(self, tensor: Tensor, source: str) -> None:
        self._sources[id(tensor)] = source
        self._kept.append(tensor)

    def leave_model(self, outputs: Any) -> None:
        """Takes the outputs of the model in, which whoever runs it reads."""
        for tensor in tensors_of(outputs):
            if id(tensor) in self._sources:
                self.readers[self._sources[id(tensor)]].append("")

    def see(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Takes a call of a function of torch in."""
        name = getattr(function, "__name__", "")
        if name in _PROPERTIES and not isinstance(result, Tensor):
            return
        given = tensors_of([args, kwargs])
        sources = {self._sources[id(tensor)] for tensor in given if id(tensor) in self._sources}
        if self._stack:
            for source in sources:
                self.readers[source].append(self._stack[-1])
            return
        followed = [tensor for tensor in given if id(tensor) in self._sources]
        passes = isinstance(result, Tensor) and len(followed) == 1 and result.shape == followed[0].shape
        if passes and (name in _ALIASES or (name in _SCALING and _is_layer_output(self.model, sources))):
            self._follow(result, next(iter(sources)))
            return
        for source in sources:
            self.readers[source].append("")


def _is_layer_output(model: nn.Module, sources: set[str]) -> bool:
    return all(_is_linear(model.get_submodule(source)) for source in sources)


# Functions that say something of a tensor and do not read its values.
_PROPERTIES = frozenset({"__get__", "dim", "size", "is_floating_point", "numel", "stride", "is_contiguous", "__len__"})
# Functions whose results have the same values, channel by channel.
_ALIASES = frozenset({"to", "contiguous", "dropout", "float", "type_as", "clone", "detach"})
# Functions that commute with a positive scale for each channel, where one of their arguments is scaled.
_SCALING = frozenset({"mul", "__mul__", "__rmul__", "relu", "multiply"})


class _Functions(TorchFunctionMode):
    """Reports calls of functions of torch."""

    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.watch.see(function, args, kwargs or {}, result)
        return result


def _is_norm(module: nn.Module) -> bool:
    """Whether a module may be a norm over features: its parameters are a vector, and perhaps another one."""
    weight = getattr(module, "weight", None)
    own = dict(module.named_parameters(recurse=False))
    is_alone = not any(True for _ in module.children()) and set(own) <= {"weight", "bias"}
    return isinstance(weight, Tensor) and weight.dim() == 1 and is_alone and _scales(module) is not None


def _adds_one(module: nn.Module) -> bool:
    return _scales(module) == 1.0


@torch.no_grad()
def _scales(module: nn.Module) -> float | None:
    """What a norm adds to its weight before it multiplies by it: 0 or 1; None if outputs are not products of it."""
    if not is_stored(module):
        return None
    kept: dict[str, Any] = {name: value for name, value in module.named_parameters(recurse=False)}
    given = {name: values_of(module, name).to(device_of(module)) for name in kept}
    # Hooks of accelerate would bring the parameters as they are.
    forward: Any = module.__dict__.get("_old_forward", module.forward)
    weight = given["weight"]
    generator = torch.Generator().manual_seed(0)
    # Of a size that no other axis than the last one has.
    x = torch.randn(2, len(weight) + 1, len(weight), generator=generator).to(weight.device, weight.dtype)
    try:
        for name, value in given.items():
            setattr(module, name, nn.Parameter(value))
        plain = forward(x)
        for added in (0.0, 1.0):
            module.weight = nn.Parameter((weight + added) / 2 - added)
            if getattr(module, "bias", None) is not None:
                module.bias = nn.Parameter(given["bias"] / 2)
            halved = forward(x)
            if plain.shape == x.shape and torch.allclose(halved, plain / 2, rtol=2e-2, atol=1e-5) and plain.any():
                return added
    except Exception:
        # Any other module: it is no norm over the last axis.
        return None
    finally:
        for name, parameter in kept.items():
            setattr(module, name, parameter)
    return None
