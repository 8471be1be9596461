"""Quantization of a model in place: which layers, calibration, algorithms."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn

import kvant
from kvant._errors import UnsupportedError, usage_error
from kvant.torch._algorithms import LayerRecipe, Wanted
from kvant.torch._calibration import calibrate
from kvant.torch._layouts import is_lookup, layout_of
from kvant.torch._modules import (
    LAYER_TYPES,
    TensorQuantizer,
    become,
    leave_fast_path,
    quantized_class,
    quantized_modules,
)
from kvant.torch._ops import with_strides_of
from kvant.torch._rounding import codes_of, round_weights
from kvant.torch._runs import Calibration, Forward
from kvant.torch._schemes import LayerScheme, TensorScheme, layer_scheme
from kvant.torch._smoothing import transform_weights


def quantize_(
    model: nn.Module,
    scheme: Wanted = None,
    data: Iterable[Any] | None = None,
    *,
    algorithm: str | None = None,
    exclude: str | Iterable[str] = (),
    overrides: Mapping[str, Wanted] | None = None,
    layer_types: Mapping[type[nn.Module] | str, Wanted] | None = None,
    smoothing: Mapping[str, Sequence[str]] | None = None,
    trainable: bool = False,
    steps: Literal["learned", "fixed"] = "learned",
    forward: Forward | None = None,
    keep_head: bool = True,
    channels_last: bool = True,
) -> nn.Module:
    """Quantizes layers of a model in place, and returns it.

    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Embedding, nn.EmbeddingBag and transformers'
    Conv1D become quantized layers: the same objects, with the same parameters, which `state_dict` has too. Subclasses
    of these stay as they are.

    Args:
        model: Any model. It runs in evaluation mode during calibration.
        scheme: Of all layers but embeddings, which are quantized where `layer_types` or `overrides` name them.
        data: Batches that static activations and algorithms are calibrated on: a DataLoader, or any iterable.
        algorithm: Algorithms of `kvant list algorithms` with their options: transforms (`smoothquant`, `awq`), a
            rounding (`gptq`, `gptaq`, `qronos`, `adaround`, `hqq`) and `bias-correction`, as in
            `smoothquant,gptq:damping=0.05`; None rounds to nearest.
        exclude: Patterns of names of layers that stay as they are: globs, or `re:` and a regular expression.
        overrides: Schemes for patterns of names; the last match wins.
        layer_types: Schemes for types, or names of types; names win over types.
        smoothing: For transforms, the linear layers that read the outputs of a norm or of another linear layer, by the
            latter's name. By default they are found by watching a batch run through the model.
        trainable: Whether scales are prepared for training (quantization-aware training). Weights stay floats
            underneath, gradients pass straight through rounding, and `freeze` or `export` rounds for good.
        steps: With `trainable`, whether stored scales are parameters of the model that are learned too (LSQ, arXiv
            1902.08153), or fixed.
        forward: Runs the model on a batch. By default mappings are keyword arguments, tuples and lists arguments.
        keep_head: Whether the output embedding of a transformers model stays as it is unless it is named.
        channels_last: Whether two-dimensional convolutions run in the channels-last memory format while activations
            are calibrated. It can be faster on CPUs, and scales may differ in their last digits.

    Raises:
        UsageError: An unknown scheme or algorithm, a pattern that matches no layer, data that are missing.
        UnsupportedError: A scheme or an algorithm that these layers do not have.
        InvalidError: Groups that do not divide a layer's input channels, weights or activations that are not finite.
    """
    exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    chosen = _resolve(model, scheme, exclude, overrides or {}, layer_types or {}, keep_head)
    chosen = {name: recipe.with_algorithm(algorithm) for name, recipe in chosen.items()}
    schemes = {name: layer_scheme(recipe.scheme) for name, recipe in chosen.items()}
    if steps not in ("learned", "fixed"):
        raise usage_error(f"steps={steps!r} is unknown", 'give "learned" or "fixed"')
    if smoothing and not any(recipe.algorithms.transforms for recipe in chosen.values()):
        raise usage_error("`smoothing` is given, and no algorithm scales pairs", 'add one, as in "smoothquant,gptq"')
    needs_data = any(_is_calibrated(schemes[name]) or recipe.algorithms.needs_data for name, recipe in chosen.items())
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
    for name in chosen:
        _check_weight(name, model.get_submodule(name), schemes[name])
        if trainable and steps == "learned":
            _check_learnable(name, schemes[name])
    calibration = Calibration(model, batches, forward)
    try:
        with calibration.evaluating():
            for name, recipe in chosen.items():
                module = model.get_submodule(name)
                kind = quantized_class(module)
                assert kind is not None
                calibration.on_undo(become(module, kind))
                equip(module, recipe, schemes[name])
            calibration.on_undo(leave_fast_path(model))
            transform_weights(calibration, chosen, smoothing)
            round_weights(calibration, chosen)
            calibrate(calibration, chosen, channels_last)
    except BaseException:
        calibration.undo()
        raise
    if trainable and steps == "learned":
        for _, module in quantized_modules(model):
            for quantizer in module.quantizers:
                quantizer.learn_scale()
    return model


def freeze(model: nn.Module) -> nn.Module:
    """Rounds the weights of quantized layers for good, and returns the model, which computes with these values then.

    Weights that layers share are rounded for each on its own. Learned scales become fixed ones.
    """
    layers = [module for _, module in quantized_modules(model)]
    with torch.no_grad():
        for module in layers:
            for quantizer in module.quantizers:
                quantizer.fix_scale(module.weight.dtype)
        rounded = [module for module in layers if module.weight_quantizer.enabled]
        # Codes stay, so they are made first: then the memory of each weight serves for the values of the next one.
        for module in rounded:
            module.chosen = codes_of(module)
        for module in rounded:
            shape, dtype = tuple(module.weight.shape), module.weight.dtype
            values = module.layout.to_weight(module.chosen.dequantize(), shape).to(module.weight.device, dtype)
            values = with_strides_of(module.weight, values)
            module.weight = nn.Parameter(values, requires_grad=module.weight.requires_grad)
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
    for kind in layer_types:
        if isinstance(kind, str) and kind not in LAYER_TYPES:
            raise usage_error(f"`layer_types` names {kind!r}", f"types of layers are {', '.join(LAYER_TYPES)}")
    output_embeddings = getattr(model, "get_output_embeddings", None)
    head = output_embeddings() if keep_head and callable(output_embeddings) else None
    found: dict[str, LayerRecipe] = {}
    for name, module in layers.items():
        wanted = None if is_lookup(module) or module is head else scheme
        for kind, of_type in layer_types.items():
            if _is_kind(module, kind):
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


def _is_kind(module: nn.Module, kind: type[nn.Module] | str) -> bool:
    return type(module).__name__ == kind if isinstance(kind, str) else isinstance(module, kind)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error as error:
            raise usage_error(f"{pattern!r} is not a regular expression: {error}", "correct it") from error
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


def _is_calibrated(scheme: LayerScheme) -> bool:
    return any(given is not None and given.timing in ("static", "local") for given in (scheme.input, scheme.output))


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


def _check_learnable(name: str, scheme: LayerScheme) -> None:
    """Refuses schemes whose scales cannot be learned."""
    if not scheme.weight.has_learnable_scale:
        raise UnsupportedError(
            f"layer {name}: the scales of {scheme.weight.spelling} are computed from the weights and cannot be learned",
            kind="unsupported",
            remedy='give steps="fixed": weights are trained, and their scales follow from them',
        )


def equip(module: Any, recipe: LayerRecipe, scheme: LayerScheme) -> None:
    """Gives a layer its quantizers."""
    device = module.weight.device

    def activation(given: TensorScheme | None) -> TensorQuantizer | None:
        if given is None:
            return None
        return TensorQuantizer(given).to(device if device.type != "meta" else None)

    module.weight_quantizer = TensorQuantizer(scheme.weight)
    module.input_quantizer = None if is_lookup(module) else activation(scheme.input)
    module.output_quantizer = activation(scheme.output)
    module.chosen = None
    module.remember_weight()
    module.scheme_text = scheme.spelling_without_input if is_lookup(module) else scheme.spelling
