"""Quantization of a model in place: which layers, calibration, algorithms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import kvant
from kvant._errors import UnsupportedError, usage_error
from kvant.torch._algorithms import LayerRecipe, Wanted
from kvant.torch._calibration import calibrate
from kvant.torch._graph_presets import is_preset
from kvant.torch._layouts import is_lookup, layout_of
from kvant.torch._modules import TensorQuantizer, become, leave_fast_path, quantized_class, quantized_modules
from kvant.torch._offload import find_offloaded, remove_unused, slot_of
from kvant.torch._rounding import codes_of, nearest_bias, round_weights, store
from kvant.torch._runs import Calibration, Forward
from kvant.torch._schemes import LayerScheme, TensorScheme, layer_scheme
from kvant.torch._selection import Selection, select
from kvant.torch._smoothing import transform_weights


def quantize_(
    model: nn.Module,
    scheme: Wanted = None,
    data: Iterable[Any] | None = None,
    *,
    algorithm: str | None = None,
    bias: str | None = None,
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
    Conv1D become quantized layers: the same objects, with the same parameters, which `state_dict` has too. So do
    subclasses of these that compute as they do. Layers of other types, such as nn.MultiheadAttention, and experts that
    are one tensor stay as they are, with a warning. A layer with several names has all of them.

    Args:
        model: Any model. It runs in evaluation mode during calibration.
        scheme: Of all layers but embeddings, which are quantized where `layer_types` or `overrides` name them.
        data: Batches that static activations and algorithms are calibrated on: a DataLoader, or any iterable.
        algorithm: Algorithms of `kvant list algorithms` with their options: transforms (`smoothquant`, `awq`), a
            rounding (`gptq`, `gptaq`, `qronos`, `adaround`, `hqq`) and `bias-correction`, as in
            `smoothquant,gptq:damping=0.05`; None rounds to nearest.
        bias: The scheme of biases, as that of a weight, with one scale or one for each value: `int8:tensor`,
            `int32:tensor`, `e4m3:channel`. By default they stay floats; a `LayerRecipe` may have its own.
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
        UnsupportedError: A scheme or an algorithm that these layers do not have, or a weight that torch computes from
            others (weight norm, parametrizations, pruning).
        InvalidError: Groups that do not divide a layer's input channels, weights or activations that are not finite.
    """
    exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    output_embeddings = getattr(model, "get_output_embeddings", None)
    head = output_embeddings() if keep_head and callable(output_embeddings) else None
    selected = select(model, Selection(scheme, exclude, overrides or {}, layer_types or {}, head))
    chosen = {name: recipe.with_defaults(algorithm, bias) for name, recipe in selected.items()}
    schemes = {name: _scheme_of(recipe.scheme) for name, recipe in chosen.items()}
    _check_biases(model, chosen)
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
        module = model.get_submodule(name)
        _check_parameters(name, module)
        _check_groups(name, module, schemes[name])
        if trainable:
            _check_trainable(name, module, schemes[name], steps == "learned")
    find_offloaded(model)
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
    finally:
        remove_unused(model)
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
                quantizer.fix_scale()
        find_offloaded(model)
        offloaded = [module for module in layers if module.weight.device.type == "meta"]
        for module in offloaded:
            _freeze_offloaded(module)
        remove_unused(model)
        rounded = [module for module in layers if module.weight_quantizer.enabled]
        # Codes stay, so they are made first. Then the memory of each weight serves for the values of the next one, and
        # that of the extension, whose allocator is another one, for the next values that it makes.
        for module in rounded:
            module.chosen = codes_of(module)
        for module in rounded:
            weight = module.weight.detach()
            values = module.layout.to_weight(module.chosen.dequantize(), tuple(weight.shape))
            values = torch.empty_like(weight).copy_(values)
            module.weight = nn.Parameter(values, requires_grad=module.weight.requires_grad)
            del weight, values
            module.weight_quantizer.enabled = False
        for module in layers:
            quantizer = module.bias_quantizer
            if quantizer is not None and quantizer.enabled:
                module.bias = nn.Parameter(module.quantized_bias(), requires_grad=module.bias.requires_grad)
                quantizer.enabled = False
    return model


def _freeze_offloaded(module: Any) -> None:
    """Rounds a weight and a bias that come with each pass. Their values and stored scales stay, and no codes."""
    weight, bias = slot_of(module, "weight"), slot_of(module, "bias") if module.bias_quantizer is not None else None
    if weight is not None and module.weight_quantizer.enabled:
        codes = codes_of(module)
        store(module, codes)
        module.chosen = codes if module.weight_quantizer.scale is None else None
        weight.write(module.layout.to_weight(codes.dequantize(), tuple(module.weight.shape)).to(module.weight.dtype))
        module.weight_quantizer.enabled = False
    if bias is not None and module.bias_quantizer.enabled:
        bias.write(nearest_bias(module).dequantize().reshape(module.bias.shape).to(module.bias.dtype))
        module.bias_quantizer.enabled = False


def _scheme_of(text: str) -> LayerScheme:
    """The scheme of a layer. Presets of graphs, which have none, are refused with what is to be used."""
    try:
        return layer_scheme(text)
    except kvant.UsageError as error:
        if not is_preset(text):
            raise
        raise usage_error(
            f"{text} is a preset of graphs, and layers in place have schemes",
            "give a scheme, such as int8:tensor+int8:tensor!static; the preset is that of "
            f'kvant.torch.pt2e.KvantQuantizer("{text}") for programs of torch.export, and of kvant.quantize for ONNX',
        ) from error


def _check_biases(model: nn.Module, chosen: Mapping[str, LayerRecipe]) -> None:
    """Refuses schemes that biases do not have, and a scheme of biases where no layer has one."""
    named = [name for name, recipe in chosen.items() if recipe.bias_scheme is not None]
    if named and all(getattr(model.get_submodule(name), "bias", None) is None for name in named):
        raise usage_error("a scheme of biases is given, and no layer that it is for has one", "leave `bias` out")


def _is_calibrated(scheme: LayerScheme) -> bool:
    return any(given is not None and given.timing in ("static", "local") for given in (scheme.input, scheme.output))


def _check_parameters(name: str, module: nn.Module) -> None:
    """Refuses weights and biases that torch computes from other tensors before each pass, or that have no shape yet."""
    if isinstance(module.weight, nn.UninitializedParameter):
        raise usage_error(f"the weight of layer {name} has no shape yet", "run the model on a batch first")
    for parameter in ("weight", "bias"):
        is_own = parameter in module._parameters or getattr(module, parameter, None) is None
        if is_own and not parametrize.is_parametrized(module, parameter):
            continue
        raise UnsupportedError(
            f"layer {name}: its {parameter} is recomputed from other tensors in every forward pass",
            kind="unsupported",
            remedy=f"first call {_remover(module, parameter)}, or leave the layer out with `exclude`",
        )


def _remover(module: nn.Module, parameter: str) -> str:
    """The call of torch that turns a recomputed tensor back into a parameter."""
    own = module._parameters
    if parametrize.is_parametrized(module, parameter):
        return f'torch.nn.utils.parametrize.remove_parametrizations(layer, "{parameter}")'
    if f"{parameter}_g" in own:
        return f'torch.nn.utils.remove_weight_norm(layer, "{parameter}")'
    if f"{parameter}_mask" in module._buffers:
        return f'torch.nn.utils.prune.remove(layer, "{parameter}")'
    if f"{parameter}_u" in module._buffers:
        return f'torch.nn.utils.remove_spectral_norm(layer, "{parameter}")'
    return f"setattr(layer, {parameter!r}, torch.nn.Parameter(...)) with its values"


def _check_groups(name: str, module: nn.Module, scheme: LayerScheme) -> None:
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


def _check_trainable(name: str, module: nn.Module, scheme: LayerScheme, are_steps_learned: bool) -> None:
    """Refuses schemes whose scales cannot be learned, and embeddings whose training needs more than gradients."""
    if are_steps_learned and not scheme.weight.has_learnable_scale:
        raise UnsupportedError(
            f"layer {name}: the scales of {scheme.weight.spelling} are computed from the weights and cannot be learned",
            kind="unsupported",
            remedy='give steps="fixed": weights are trained, and their scales follow from them',
        )
    for option in ("sparse", "max_norm") if is_lookup(module) else ():
        if getattr(module, option):
            raise UnsupportedError(
                f"layer {name}: an embedding with {option} is not trained under quantization",
                kind="unsupported",
                remedy=f"set its {option} to {False if option == 'sparse' else None}, or leave it out with `exclude`",
            )


def equip(module: Any, recipe: LayerRecipe, scheme: LayerScheme) -> None:
    """Gives a layer its quantizers."""
    device, dtype = module.weight.device, module.weight.dtype

    def activation(given: TensorScheme | None) -> TensorQuantizer | None:
        if given is None:
            return None
        return TensorQuantizer(given, dtype).to(device if device.type != "meta" else None)

    bias = None if getattr(module, "bias", None) is None else recipe.bias_scheme
    module.weight_quantizer = TensorQuantizer(scheme.weight, dtype)
    module.bias_quantizer = None if bias is None else TensorQuantizer(bias, dtype)
    module.input_quantizer = None if is_lookup(module) else activation(scheme.input)
    module.output_quantizer = activation(scheme.output)
    module.chosen = None
    module.scheme_text = scheme.spelling_without_input if is_lookup(module) else scheme.spelling
