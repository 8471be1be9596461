"""Codes of weights: the nearest ones, or those that an algorithm chooses on the inputs that a layer meets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kvant
from kvant.torch._algorithms import LayerRecipe
from kvant.torch._blocks import Stage, Walk, versions
from kvant.torch._layouts import Layout, bias_matrix, is_lookup
from kvant.torch._offload import device_of, is_stored, values_of
from kvant.torch._routing import Rows
from kvant.torch._runs import Calibration, of_layer, quantizers_off


def matrix_of(module: Any) -> Tensor:
    """The weight of a layer as a matrix on the CPU, [outputs, inputs]."""
    matrix: Tensor = module.layout.to_matrix(values_of(module, "weight")).contiguous().cpu()
    return matrix


def nearest(module: Any, format: str | None = None) -> Any:
    """The nearest codes of a layer's weight."""
    return kvant.quantize_tensor(matrix_of(module), module.scheme_text, format=format)


def codes_of(module: Any, format: str | None = None) -> Any:
    """The codes of a layer's weight: those that an algorithm chose, or the nearest under its stored scales, which are
    those of its values unless it was trained."""
    if module.chosen is not None and module.is_as_chosen():
        return module.chosen
    quantizer = module.weight_quantizer
    scale = quantizer.current_scale
    plain = nearest(module, format)
    if scale is None or _has_parameters(plain if format is None else nearest(module), scale, quantizer.zero_point):
        return plain
    return kvant.quantize_tensor(matrix_of(module), module.scheme_text, scale, quantizer.zero_point, format=format)


def _has_parameters(quantized: Any, scale: Tensor, zero_point: Tensor | None) -> bool:
    """Whether codes have these scales and zero points."""
    for found, expected in ((quantized.scale, scale), (quantized.zero_point, zero_point)):
        if found is None or expected is None:
            if found is not expected:
                return False
        elif not torch.equal(found.float().flatten(), expected.cpu().float().flatten()):
            return False
    return True


def store(module: Any, quantized: Any) -> None:
    """Stores the scales of a weight, if they can be given to the operator."""
    quantizer = module.weight_quantizer
    if quantizer.scheme.has_stored_scale:
        quantizer.set_parameters(quantized.scale, quantized.zero_point, device_of(module))


def nearest_bias(module: Any, format: str | None = None) -> Any:
    """The nearest codes of a quantized bias, as the matrix of `bias_matrix`: under its stored scales, where it has
    some."""
    quantizer = module.bias_quantizer
    matrix = bias_matrix(values_of(module, "bias"), quantizer.scheme).contiguous().cpu()
    if quantizer.scale is None:
        return kvant.quantize_tensor(matrix, quantizer.scheme.spelling, format=format)
    return kvant.quantize_tensor(
        matrix, quantizer.scheme.spelling, quantizer.current_scale, quantizer.zero_point, format=format
    )


def store_biases(calibration: Calibration, chosen: Iterable[str]) -> None:
    """Stores the scales of biases, as weights and algorithms have left them."""
    for name in chosen:
        module: Any = calibration.model.get_submodule(name)
        if module.bias_quantizer is not None and is_stored(module):
            with of_layer(name):
                found = nearest_bias(module)
            module.bias_quantizer.set_parameters(found.scale, found.zero_point, device_of(module))


def take(module: Any, quantized: Any, calibration: Calibration) -> None:
    """Takes codes that were chosen: the weight becomes their values."""
    calibration.replace(module, "weight", module.layout.to_weight(quantized.dequantize(), tuple(module.weight.shape)))
    store(module, quantized)
    # The stored scales and the values of an offloaded weight give its codes again.
    if module.weight.device.type != "meta" or module.weight_quantizer.scale is None:
        module.chosen = quantized


def round_weights(calibration: Calibration, chosen: Mapping[str, LayerRecipe]) -> None:
    """Finds the scales of weights, and with an algorithm their codes."""
    on_data = {name: recipe for name, recipe in chosen.items() if recipe.algorithms.sees_inputs}
    for name, recipe in chosen.items():
        module: Any = calibration.model.get_submodule(name)
        if name in on_data or (recipe.algorithms.rounding is None and not is_stored(module)):
            continue
        with of_layer(name):
            if recipe.algorithms.rounding is None:
                store(module, nearest(module))
            else:
                rounded = kvant.round_tensor(matrix_of(module), module.scheme_text, recipe.algorithms.rounding)
                take(module, rounded, calibration)
    if on_data:
        with quantizers_off(calibration.model):
            _round_on_data(calibration, on_data)
    store_biases(calibration, chosen)


def _round_on_data(calibration: Calibration, recipes: Mapping[str, LayerRecipe]) -> None:
    """Rounds weights block after block, each on the inputs that it meets when those before it are rounded."""
    walk = Walk(calibration, recipes)
    for stage in walk.stages:
        for name, seen in _collected(calibration, walk, stage, recipes).items():
            with of_layer(name):
                _round(name, seen, calibration)
        walk.leave(stage)
    for name in recipes.keys() - {name for stage in walk.stages for name in stage.layers}:
        _round_to_nearest(name, calibration.model.get_submodule(name), "it met no data")


def _collected(
    calibration: Calibration, walk: Walk, stage: Stage, recipes: Mapping[str, LayerRecipe]
) -> dict[str, _Inputs]:
    """The sums over the inputs of a stage's layers."""
    layers = {name: calibration.model.get_submodule(name) for name in stage.layers}
    inputs = {name: _Inputs(module, recipes[name]) for name, module in layers.items()}
    shared = _SharedInputs(inputs)
    try:
        _collect(calibration, walk, stage, inputs, shared)
        shared.finish()
    except _DivergedError:
        inputs = {name: _Inputs(module, recipes[name]) for name, module in layers.items()}
        _collect(calibration, walk, stage, inputs, _SharedInputs({}))
    return inputs


def _collect(
    calibration: Calibration, walk: Walk, stage: Stage, inputs: Mapping[str, _Inputs], shared: _SharedInputs
) -> None:
    """Adds up the inputs of a stage's layers."""

    def seen(name: str, x: Tensor, chosen: Rows) -> None:
        if shared.is_known(name, x, calibration.batch):
            return
        calibration.check_finite(name, "inputs", x)
        inputs[name].add(x, chosen, calibration.batch)

    def float_seen(name: str, x: Tensor, chosen: Rows) -> None:
        calibration.check_finite(name, "inputs", x)
        inputs[name].expect(x, chosen, calibration.batch)

    has_mismatch = any(item.has_mismatch for item in inputs.values())
    walk.collect(stage, seen, float_seen if has_mismatch else None)


class _DivergedError(Exception):
    """A layer reads other inputs than the layer whose sums it shares."""


class _SharedInputs:
    """Layers that read the same tensors, such as query, key and value: their sums are found once.

    Layers share what their first calls read in the same batch; where later calls differ, a `_DivergedError` says so.

    Args:
        inputs: The layers that may share.
    """

    def __init__(self, inputs: Mapping[str, _Inputs]) -> None:
        self._inputs = {name: item for name, item in inputs.items() if item.is_shareable}
        self._leaders: dict[str, str] = {}
        self._begun: dict[str, int] = {}
        self._calls: dict[str, list[tuple[Tensor, int]]] = {}
        self._batch = -1

    def is_known(self, name: str, x: Tensor, batch: int) -> bool:
        """Takes the inputs of a call; whether another layer has added them."""
        if name not in self._inputs:
            return False
        if batch != self._batch:
            self.finish()
            self._batch, self._calls = batch, {}
        calls = self._calls.setdefault(name, [])
        # The tensors of a batch are held, so that none takes the place of another in memory.
        calls.append((x, versions([x])[0]))
        if name not in self._begun:
            self._begun[name] = batch
            leader = next((other for other in self._calls if other != name and self._is_same(other, name)), None)
            if leader is not None:
                self._leaders[name] = self._leaders.get(leader, leader)
        if name not in self._leaders:
            return False
        if not self._is_same(self._leaders[name], name):
            raise _DivergedError
        return True

    def _is_same(self, leader: str, name: str) -> bool:
        """Whether the last call of a layer reads what the same call of another one has read."""
        ours, theirs = self._calls[name], self._calls.get(leader, [])
        if self._inputs[leader].algorithms != self._inputs[name].algorithms or len(theirs) < len(ours):
            return False
        # What a layer has seen in batches before is no part of another's sums.
        if self._begun[leader] != self._begun[name]:
            return False
        (x, version), (other, other_version) = ours[-1], theirs[len(ours) - 1]
        return x is other and version == other_version

    def finish(self) -> None:
        """Ends a batch, and gives layers the sums that they share."""
        for name, leader in self._leaders.items():
            if len(self._calls.get(name, [])) != len(self._calls.get(leader, [])):
                raise _DivergedError
            self._inputs[name].take_from(self._inputs[leader])


@dataclass(frozen=True)
class _FloatCall:
    """The inputs of a call in the float model, [positions, input channels], and how their rows were chosen."""

    inputs: Tensor
    chosen: Rows


class _Inputs:
    """The sums over the inputs of a layer.

    Attributes:
        is_paired: Whether all inputs could be compared with those in the float model.
    """

    def __init__(self, module: Any, recipe: LayerRecipe) -> None:
        self.module = module
        self.algorithms = recipe.algorithms
        self.has_mismatch = self.algorithms.needs == "mismatch"
        self.sums: Any = None
        self.total: Tensor | None = None
        self.rows = 0
        self.is_paired = True
        self._batch = -1
        self._calls = 0
        self._float: list[_FloatCall] = []

    @property
    def is_shareable(self) -> bool:
        """Whether its sums are those of another layer that reads the same tensors."""
        return not self.has_mismatch and not (
            isinstance(self.module, nn.modules.conv._ConvNd) or is_lookup(self.module)
        )

    def take_from(self, other: _Inputs) -> None:
        """Takes the sums of another layer."""
        self.sums, self.total, self.rows = other.sums, other.total, other.rows

    def expect(self, x: Tensor, chosen: Rows, batch: int) -> None:
        """Takes the inputs of a call in the float model, which `add` compares with those of the same batch."""
        if not self.has_mismatch:
            return
        self._begin(batch)
        rows = rows_of_inputs(self.module, x)
        if rows is not None:
            self._float.append(_FloatCall(rows.float().cpu(), chosen))

    def add(self, x: Tensor, chosen: Rows, batch: int) -> None:
        """Takes the inputs of a call in."""
        self._begin(batch)
        place = self._calls
        self._calls += 1
        rows = rows_of_inputs(self.module, x)
        if rows is None or not rows.numel():
            return
        rows = rows.float().cpu()
        if self.algorithms.correction:
            total = rows.sum(dim=0, dtype=torch.float64)
            self.total = total if self.total is None else self.total + total
            self.rows += rows.shape[0]
        if self.algorithms.needs != "nothing":
            self.sums = self.sums or kvant.Hessian(rows.shape[1], mismatch=self.has_mismatch)
            self.sums.add(rows, self._expected(rows, chosen, place) if self.has_mismatch else None)

    def _begin(self, batch: int) -> None:
        if batch != self._batch:
            self._batch, self._calls = batch, 0
            self._float.clear()

    def _expected(self, rows: Tensor, chosen: Rows, place: int) -> Tensor:
        """The float model's inputs for the same tokens; a row itself where the float model has none for its token."""
        call = self._float[place] if place < len(self._float) else None
        if call is not None and call.chosen.path == chosen.path and call.inputs.shape == rows.shape:
            return call.inputs
        tokens = _tokens(chosen, rows)
        theirs = [_tokens(call.chosen, call.inputs) for call in self._float]
        known = torch.cat([torch.empty(0, dtype=torch.long), *(some for some in theirs if some is not None)])
        is_known = tokens is not None and all(some is not None for some in theirs)
        is_same_origin = all(call.chosen.origin == chosen.origin for call in self._float)
        is_unique = len(set(known.tolist())) == len(known)
        if tokens is None or not (is_known and is_same_origin and is_unique):
            self.is_paired = False
            return rows
        where = {token: row for row, token in enumerate(known.tolist())}
        pairs = [(row, where[token]) for row, token in enumerate(tokens.tolist()) if token in where]
        expected = rows.clone()
        if pairs:
            ours, float_rows = torch.tensor(pairs).T
            expected[ours] = torch.cat([call.inputs for call in self._float])[float_rows]
        return expected


def _tokens(chosen: Rows, rows: Tensor) -> Tensor | None:
    """The token of each row, if they are known."""
    is_known = chosen.tokens is not None and len(chosen.tokens) == len(rows)
    return chosen.tokens if is_known else None


def _round(name: str, seen: _Inputs, calibration: Calibration) -> None:
    """Rounds a weight on the inputs that its layer has met, and then corrects its bias."""
    module, algorithms = seen.module, seen.algorithms
    matrix = matrix_of(module)
    features = matrix.shape[1]
    if algorithms.needs != "nothing" and (seen.sums is None or seen.sums.features != features):
        _round_to_nearest(name, module, "it met no data, or is no plain product")
        return
    if not seen.is_paired:
        warnings.warn(
            f"layer {name} is rounded as GPTQ rounds it, on some of its inputs: other tokens reach it in the float "
            "model, and which ones is not known",
            kvant.KvantWarning,
            stacklevel=5,
        )
    if algorithms.rounding is None:
        quantized = nearest(module)
        store(module, quantized)
    else:
        quantized = kvant.round_tensor(matrix, module.scheme_text, algorithms.rounding, seen.sums)
        take(module, quantized, calibration)
    if algorithms.correction and module.bias is not None and seen.total is not None and len(seen.total) == features:
        error = (matrix.double() - quantized.dequantize().double()) @ (seen.total / seen.rows)
        corrected = values_of(module, "bias").cpu().double() + algorithms.correction * error
        if corrected.isfinite().all():
            calibration.replace(module, "bias", corrected)


def _round_to_nearest(name: str, module: Any, reason: str) -> None:
    warnings.warn(f"layer {name} is rounded to nearest: {reason}", kvant.KvantWarning, stacklevel=5)
    store(module, nearest(module))


def rows_of_inputs(module: Any, x: Tensor) -> Tensor | None:
    """The values that outputs are products of: [positions, input channels]; None for other kinds of layers."""
    if is_lookup(module):
        return None
    if not isinstance(module, nn.modules.conv._ConvNd):
        return x.reshape(-1, x.shape[-1])
    layout: Layout = module.layout  # type: ignore[assignment]
    is_plain = layout.is_matrix and module.groups == 1 and module.padding_mode == "zeros"
    if not is_plain or isinstance(module.padding, str) or not isinstance(module, nn.Conv1d | nn.Conv2d):
        return None
    axes = len(module.kernel_size)
    x = (x if x.dim() == axes + 2 else x.unsqueeze(0)).float()
    kernel, dilation, padding, stride = module.kernel_size, module.dilation, module.padding, module.stride
    if isinstance(module, nn.Conv1d):
        x = x.unsqueeze(2)
        kernel, dilation, padding, stride = (1, *kernel), (1, *dilation), (0, *padding), (1, *stride)
    patches = F.unfold(x, kernel, dilation, padding, stride)
    return patches.transpose(1, 2).reshape(-1, patches.shape[1])
