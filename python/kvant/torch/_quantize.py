"""Quantization of a model in place: which layers, calibration, algorithms."""

from __future__ import annotations

import contextlib
import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kvant
from kvant._errors import UnsupportedError, usage_error
from kvant.torch._layouts import layout_of
from kvant.torch._modules import (
    TensorQuantizer,
    become,
    quantized_class,
    quantized_modules,
)
from kvant.torch._schemes import LayerScheme, TensorScheme, layer_scheme


class Observing(Protocol):
    """An observer: `kvant.Observer`, or your own class."""

    def update(self, batch: Tensor) -> None:
        """Takes a batch in, [..., features]."""

    def parameters(self) -> tuple[Any, Any]:
        """Scale and zero point (None where the code of zero is 0)."""


@dataclass(frozen=True)
class LayerRecipe:
    """How some layers are quantized.

    Attributes:
        scheme: A name or spelling of `kvant list schemes`.
        observer: Makes the observers of static activations, from their scheme without its timing; the scheme's own
            observer if it is None.
        algorithm: The rounding of weights: None (nearest), `gptq`, `gptq:damping=0.05`, `hqq`.
    """

    scheme: str
    observer: Callable[[str], Observing] | None = None
    algorithm: str | None = None


Wanted: TypeAlias = str | LayerRecipe | None
"""A scheme, a recipe, or None: the layer stays as it is."""

Forward: TypeAlias = Callable[[nn.Module, Any], Any]
"""Runs a model on a batch."""


def quantize_(
    model: nn.Module,
    scheme: Wanted = None,
    data: Iterable[Any] | None = None,
    *,
    algorithm: str | None = None,
    exclude: str | Iterable[str] = (),
    overrides: Mapping[str, Wanted] | None = None,
    layer_types: Mapping[type[nn.Module] | str, Wanted] | None = None,
    forward: Forward | None = None,
    keep_head: bool = True,
) -> nn.Module:
    """Quantizes layers of a model in place, and returns it.

    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Embedding, nn.EmbeddingBag and transformers'
    Conv1D become quantized layers: the same objects, with the same parameters, which `state_dict` has too. Subclasses
    of these stay as they are.

    Args:
        model: Any model. It runs in evaluation mode during calibration.
        scheme: Of all layers but embeddings, which are quantized where `layer_types` or `overrides` name them.
        data: Batches that static activations and algorithms are calibrated on: a DataLoader, or any iterable.
        algorithm: The rounding of weights: `gptq`, `hqq`, with options as `gptq:damping=0.05`; None rounds to nearest.
        exclude: Patterns of names of layers that stay as they are: globs, or `re:` and a regular expression.
        overrides: Schemes for patterns of names; the last match wins.
        layer_types: Schemes for types, or names of types; names win over types.
        forward: Runs the model on a batch. By default mappings are keyword arguments, tuples and lists arguments.
        keep_head: Whether the output embedding of a transformers model stays as it is unless it is named.

    Raises:
        UsageError: An unknown scheme or algorithm, a pattern that matches no layer, data that are missing.
        UnsupportedError: A scheme or an algorithm that these layers do not have.
        InvalidError: Groups that do not divide a layer's input channels, weights or activations that are not finite.
    """
    exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    chosen = _resolve(model, scheme, exclude, overrides or {}, layer_types or {}, keep_head)
    if algorithm is not None:
        chosen = {name: _with_algorithm(recipe, algorithm) for name, recipe in chosen.items()}
    schemes = {name: layer_scheme(recipe.scheme) for name, recipe in chosen.items()}
    needs_data = any(_is_calibrated(schemes[name]) or _needs_inputs(recipe) for name, recipe in chosen.items())
    if needs_data and data is None:
        raise usage_error(
            "static activations and algorithms need calibration data, and none are given",
            "give batches as `data`, or use a scheme with dynamic activations or for weights only",
        )
    if isinstance(data, str | PathLike):
        raise usage_error(
            f"data are batches of the model's inputs, not a file ({data})",
            "give a DataLoader or a list of batches; kvant.quantize takes files",
        )
    batches = list(data) if needs_data and data is not None else []
    if needs_data and not batches:
        raise usage_error("the calibration data have no batches", "give at least one batch")
    undone: list[Callable[[], None]] = []
    was_training = model.training
    try:
        model.eval()
        for name, recipe in chosen.items():
            module = model.get_submodule(name)
            _check_weight(name, module, schemes[name])
            kind = quantized_class(module)
            assert kind is not None
            undone.append(become(module, kind))
            _equip(module, recipe, schemes[name])
        with torch.no_grad():
            _round_weights(model, chosen, batches, forward or _run)
            _calibrate(model, chosen, batches, forward or _run)
    except BaseException:
        for undo in reversed(undone):
            undo()
        raise
    finally:
        model.train(was_training)
    return model


def freeze(model: nn.Module) -> nn.Module:
    """Rounds the weights of quantized layers for good, and returns the model, which computes with these values then.

    Weights that layers share are rounded for each on its own.
    """
    with torch.no_grad():
        for _, module in quantized_modules(model):
            if module.weight_quantizer.enabled:
                if module.chosen is None:
                    module.chosen = _nearest(module)
                shape, dtype = tuple(module.weight.shape), module.weight.dtype
                rounded = module.layout.to_weight(module.chosen.dequantize(), shape).to(module.weight.device, dtype)
                module.weight = nn.Parameter(rounded.contiguous(), requires_grad=module.weight.requires_grad)
                module.weight_quantizer.enabled = False
    return model


def _resolve(
    model: nn.Module,
    scheme: Wanted,
    exclude: tuple[str, ...],
    overrides: Mapping[str, Wanted],
    layer_types: Mapping[type[nn.Module] | str, Wanted],
    keep_head: bool,
) -> dict[str, LayerRecipe]:
    """The layers that are quantized, and how."""
    layers = {name: module for name, module in model.named_modules() if quantized_class(module) is not None}
    if any(True for _ in quantized_modules(model)):
        raise usage_error("the model is quantized already", "quantize the float model")
    for pattern in (*exclude, *overrides):
        if not any(_matches(pattern, name) for name in layers):
            raise usage_error(f"no layer matches {pattern!r}", _advice(pattern, layers))
    output_embeddings = getattr(model, "get_output_embeddings", None)
    head = output_embeddings() if keep_head and callable(output_embeddings) else None
    found: dict[str, LayerRecipe] = {}
    for name, module in layers.items():
        is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        wanted = None if is_embedding or module is head else scheme
        for kind, of_type in layer_types.items():
            if type(module).__name__ == kind if isinstance(kind, str) else isinstance(module, kind):
                wanted = of_type
        for pattern, of_name in overrides.items():
            if _matches(pattern, name):
                wanted = of_name
        if wanted is None or any(_matches(pattern, name) for pattern in exclude):
            continue
        found[name] = wanted if isinstance(wanted, LayerRecipe) else LayerRecipe(wanted)
    if not found:
        raise usage_error("no layer is left to quantize", "give a scheme, or schemes for the types that the model has")
    return found


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return fnmatchcase(name, pattern)


def _advice(pattern: str, layers: Iterable[str]) -> str:
    """What to write in place of a pattern that matches nothing."""
    names = list(layers)
    if not names:
        return "leave it out: the model has no layer that can be quantized"
    near = difflib.get_close_matches(pattern.strip("*."), [name.rsplit(".")[-1] for name in names], 3, 0.5)
    if near:
        return f"did you mean {' or '.join(dict.fromkeys(near))}?"
    return f"names of layers are, for example, {', '.join(map(repr, names[:3]))}"


def _with_algorithm(recipe: LayerRecipe, algorithm: str) -> LayerRecipe:
    return recipe if recipe.algorithm is not None else LayerRecipe(recipe.scheme, recipe.observer, algorithm)


def _is_calibrated(scheme: LayerScheme) -> bool:
    return any(given is not None and given.timing in ("static", "local") for given in (scheme.input, scheme.output))


_WITHOUT_INPUTS = ("rtn", "hqq")
_WITH_MISMATCH = ("gptaq", "qronos", "adaround", "adaquant")


def _needs_inputs(recipe: LayerRecipe) -> bool:
    name = (recipe.algorithm or "rtn").split(":")[0].lower()
    if name in _WITH_MISMATCH:
        raise UnsupportedError(
            f"{name} needs the inputs of the float model beside those of the quantized one: not collected here",
            kind="unsupported",
            remedy="use gptq, or quantize the checkpoint with kvant.quantize",
        )
    return name not in _WITHOUT_INPUTS


def _check_weight(name: str, module: nn.Module, scheme: LayerScheme) -> None:
    """Refuses weights that do not fit their scheme, before anything is changed."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    columns = layout_of(module, scheme.weight).to_matrix(weight).shape[1]
    size = scheme.weight.size
    if scheme.weight.granularity == "group" and scheme.weight.axis == 1 and size and columns % size:
        raise kvant.InvalidError(
            f"layer {name}: its {columns} input channels are not a multiple of the group size {size}",
            kind="invalid",
            remedy="give it another scheme in `overrides`, or leave it out with `exclude`",
        )


def _equip(module: Any, recipe: LayerRecipe, scheme: LayerScheme) -> None:
    """Gives a layer its quantizers."""
    device = module.weight.device

    def activation(given: TensorScheme | None) -> TensorQuantizer | None:
        if given is None:
            return None
        quantizer = TensorQuantizer(given).to(device if device.type != "meta" else None)
        if given.timing in ("static", "local"):
            quantizer.observer = (recipe.observer or _observer)(given.spelling)
        return quantizer

    is_lookup = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    module.weight_quantizer = TensorQuantizer(scheme.weight)
    module.input_quantizer = None if is_lookup else activation(scheme.input)
    module.output_quantizer = activation(scheme.output)
    module.chosen = None
    module.scheme_text = scheme.spelling


class _Extremes:
    """The observer min-max: of each batch only the least and the greatest values matter."""

    def __init__(self, scheme: str) -> None:
        self.observer = kvant.Observer(scheme)
        self.parameters = self.observer.parameters
        self.by_feature = layer_scheme(scheme).weight.granularity == "channel"

    def update(self, batch: Tensor) -> None:
        """Takes a batch in, [..., features]."""
        if batch.numel() == 0:
            return
        rows = batch.reshape(-1, batch.shape[-1]) if self.by_feature else batch.reshape(-1, 1)
        ends = torch.stack(torch.aminmax(rows, dim=0)) if self.by_feature else torch.stack(torch.aminmax(batch))
        # Values that are not finite are left out and counted.
        self.observer.update((ends if ends.isfinite().all() else rows).cpu().reshape(-1, rows.shape[-1]))


def _observer(scheme: str) -> Observing:
    """The observer that a scheme names."""
    return _Extremes(scheme) if layer_scheme(scheme).weight.observer == "minmax" else kvant.Observer(scheme)


def _nearest(module: Any, format: str | None = None) -> Any:
    """The nearest codes of a layer's weight."""
    matrix = module.layout.to_matrix(module.weight.detach()).contiguous().cpu()
    return kvant.quantize_tensor(matrix, module.scheme_text, format=format)


def _store(module: Any, quantized: Any) -> None:
    """Stores the scales of a weight, if they can be given to the operator."""
    quantizer = module.weight_quantizer
    if quantizer.scheme.has_stored_scale:
        quantizer.set_parameters(quantized.scale, quantized.zero_point, module.weight.device)


def _round_weights(model: nn.Module, chosen: Mapping[str, LayerRecipe], batches: list[Any], run: Forward) -> None:
    """Finds the scales of weights, and with an algorithm their codes."""
    calibrated = {
        name: recipe.algorithm for name, recipe in chosen.items() if recipe.algorithm and _needs_inputs(recipe)
    }
    for name, recipe in chosen.items():
        if name in calibrated:
            continue
        module: Any = model.get_submodule(name)
        if module.weight.device.type == "meta":
            # Its weight comes with each forward pass.
            continue
        if recipe.algorithm and recipe.algorithm.split(":")[0].lower() != "rtn":
            matrix = module.layout.to_matrix(module.weight).contiguous().cpu()
            with _of_layer(name):
                _take(module, kvant.round_tensor(matrix, module.scheme_text, recipe.algorithm))
        else:
            with _of_layer(name):
                _store(module, _nearest(module))
    if calibrated:
        _round_on_data(model, calibrated, batches, run)


@contextlib.contextmanager
def _of_layer(name: str) -> Iterator[None]:
    """Lets errors name the layer."""
    try:
        yield
    except kvant.KvantError as error:
        error.message = f"layer {name}: {error.message}"
        raise


class _Inputs:
    """The sums over the inputs of a layer, or why there are none."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.sums: Any = None

    def add(self, x: Tensor) -> None:
        rows = _rows_of_inputs(self.module, x)
        if rows is not None:
            self.sums = self.sums or kvant.Hessian(rows.shape[1])
            self.sums.add(rows.float().cpu())


def _rows_of_inputs(module: Any, x: Tensor) -> Tensor | None:
    """The values that outputs are products of: [positions, input channels]; None for other kinds of layers."""
    is_plain = module.layout.is_matrix
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        x = x if x.dim() == 4 else x.unsqueeze(0)
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            return None
        patches = F.unfold(x.float(), module.kernel_size, module.dilation, module.padding, module.stride)
        return patches.transpose(1, 2).reshape(-1, patches.shape[1]) if is_plain else None
    if isinstance(module, nn.modules.conv._ConvNd | nn.Embedding | nn.EmbeddingBag):
        if isinstance(module, nn.Conv1d) and module.groups == 1 and is_plain:
            if module.padding_mode != "zeros" or isinstance(module.padding, str):
                return None
            x = (x if x.dim() == 3 else x.unsqueeze(0)).unsqueeze(2).float()
            sizes = [(1, module.kernel_size[0]), (1, module.dilation[0]), (0, module.padding[0]), (1, module.stride[0])]
            patches = F.unfold(x, *sizes)
            return patches.transpose(1, 2).reshape(-1, patches.shape[1])
        return None
    return x.reshape(-1, x.shape[-1])


def _round_on_data(model: nn.Module, algorithms: Mapping[str, str | None], batches: list[Any], run: Forward) -> None:
    """Chooses the codes of weights from the inputs that they meet in the float model, in one pass over the data."""
    modules = {name: model.get_submodule(name) for name in algorithms}
    inputs = {name: _Inputs(module) for name, module in modules.items()}
    handles = [
        module.register_forward_pre_hook(lambda _, args, seen=inputs[name]: seen.add(args[0]))
        for name, module in modules.items()
    ]
    with _quantizers_off(model):
        try:
            for batch in batches:
                run(model, batch)
        finally:
            for handle in handles:
                handle.remove()
    for name, seen in inputs.items():
        module: Any = modules[name]
        if module.weight.device.type == "meta":
            raise UnsupportedError(
                f"layer {name} is offloaded, and algorithms change weights",
                kind="unsupported",
                remedy="leave `algorithm` out, or quantize the checkpoint with kvant.quantize, which streams",
            )
        matrix = module.layout.to_matrix(module.weight).contiguous().cpu()
        if seen.sums is None or seen.sums.features != matrix.shape[1]:
            warnings.warn(
                f"layer {name} is rounded to nearest: it met no data, or is no plain product",
                kvant.KvantWarning,
                stacklevel=4,
            )
            _store(module, _nearest(module))
            continue
        with _of_layer(name):
            _take(module, kvant.round_tensor(matrix, module.scheme_text, algorithms[name] or "rtn", seen.sums))


def _take(module: Any, quantized: Any) -> None:
    """Takes codes that were chosen: the weight becomes their values."""
    values = module.layout.to_weight(quantized.dequantize(), tuple(module.weight.shape))
    module.weight = nn.Parameter(
        values.to(module.weight.device, module.weight.dtype).contiguous(), requires_grad=module.weight.requires_grad
    )
    module.chosen = quantized
    _store(module, quantized)


class _quantizers_off:
    """No quantizer does anything."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        quantizers = (module for module in self.model.modules() if isinstance(module, TensorQuantizer))
        self.were_on = [quantizer for quantizer in quantizers if quantizer.enabled]
        for quantizer in self.were_on:
            quantizer.enabled = False

    def __exit__(self, *_: object) -> None:
        for quantizer in self.were_on:
            quantizer.enabled = True


def _calibrate(model: nn.Module, chosen: Mapping[str, LayerRecipe], batches: list[Any], run: Forward) -> None:
    """Finds the parameters of static activations in the model with nothing quantized, as Quark does."""
    watched: list[tuple[str, Any, TensorQuantizer]] = []
    for name in chosen:
        module: Any = model.get_submodule(name)
        for side in ("input", "output"):
            quantizer = getattr(module, f"{side}_quantizer")
            if quantizer is not None and quantizer.observer is not None:
                watched.append((f"{side} of {name}", module, quantizer))
    if not watched:
        return
    with _quantizers_off(model):
        for _, _, quantizer in watched:
            quantizer.enabled = True
        for batch in batches:
            run(model, batch)
    for place, module, quantizer in watched:
        try:
            scale, zero_point = quantizer.observer.parameters()
        except kvant.UsageError as error:
            raise usage_error(
                f"no calibration data reached the {place}",
                "give data that use the whole model, or leave the layer out with `exclude`",
            ) from error
        device = module.weight.device
        quantizer.set_parameters(scale, zero_point, torch.device("cpu") if device.type == "meta" else device)
        quantizer.observer = None


def _run(model: nn.Module, batch: Any) -> Any:
    """Runs a model on a batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)
