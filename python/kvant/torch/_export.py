"""Quantized models on disk: checkpoints for loaders, and files that `load` reads."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kvant
from kvant import _kvant
from kvant._errors import UnsupportedError, usage_error
from kvant._tensors import _weight
from kvant._types import StrPath
from kvant.torch._checkpoint import BYTES, check_state, float_layers, load_checkpoint, make_quantized
from kvant.torch._layouts import is_conv1d
from kvant.torch._modules import (
    QuantizedModule,
    TensorQuantizer,
    leave_fast_path,
    names_of,
    quantized_class,
    quantized_modules,
)
from kvant.torch._offload import state_of, values_of
from kvant.torch._rounding import codes_of, nearest_bias
from kvant.torch._runs import of_layer
from kvant.torch._schemes import TensorScheme, layer_scheme

_METADATA = "kvant"

# Formats of `kvant list formats` that `export` does not write, and other ways.
_FILES = {
    "gguf": "quantize the float checkpoint, as in kvant.quantize(model, 'Q4_K_M', output='out.gguf')",
    "onnx": "use kvant.torch.export_onnx(model, inputs, 'out.onnx')",
}


def export(model: nn.Module, output: StrPath, format: str = "quark") -> Path:
    """Writes a quantized model as a checkpoint: model.safetensors and config.json.

    Args:
        model: A model that `quantize_` has quantized; frozen or not.
        output: A new directory.
        format: `quark`, in which convolutions and embeddings are codes where these are whole bytes, and otherwise, as
            AMD Quark exports them, floats on the grid of the codes; `fake`, in which every layer is such floats; other
            formats of `kvant list formats` hold linear layers.

    Returns:
        The directory.

    Raises:
        UsageError: The directory exists, or the model is not quantized or a layer itself.
        UnsupportedError: The format has no place for a layer's type or scheme, or is none of checkpoints; or the model
            was loaded frozen: its codes are not kept.
    """
    if format in _FILES:
        raise UnsupportedError(
            f"{format} is a format of files, and models in place are exported to checkpoints",
            kind="unsupported",
            remedy=_FILES[format],
        )
    directory = Path(output)
    _layers_to_write(model, directory)
    modules = {module: names for module, names in names_of(model).items() if isinstance(module, QuantizedModule)}
    layers: dict[str, Any] = {name: module for module, names in modules.items() for name in names}
    if "" in layers:
        raise usage_error("the model is a layer itself, which has no name", "put it into a model: nn.Sequential(layer)")
    for name, module in layers.items() if format != "fake" else ():
        with of_layer(name):
            _check_place(module, format)
    tensors = _other_tensors(model, layers)
    config = _config(model)
    if set(_tied(model).values()) & {f"{name}.weight" for name in layers}:
        config["tie_word_embeddings"] = False
    if format == "fake":
        for name, module in layers.items():
            tensors[f"{name}.weight"] = _values_of_codes(module)
            if module.bias_quantizer is not None:
                tensors[f"{name}.bias"] = _values_of_bias(module)
        config["kvant_fake_quantization"] = _fake_quantization(layers)
    else:
        schemes = [(name, module.scheme_text, module.bias_text) for name, module in layers.items()]
        exclude = [name for module, names in names_of(model).items() if _is_float_layer(module) for name in names]
        config["quantization_config"] = json.loads(_kvant.quantization_config(format, schemes, exclude))
        for name, module in layers.items():
            with of_layer(name):
                tensors.update(_packed(name, module, format))
    _write(directory, tensors, config, model)
    return directory


def _values_of_codes(module: Any) -> Tensor:
    """A weight after quantization."""
    if module.weight.device.type != "meta":
        values: Tensor = module.quantized_weight().detach().cpu().contiguous()
        return values
    if not module.weight_quantizer.enabled:
        return values_of(module, "weight").contiguous()
    values = module.layout.to_weight(codes_of(module).dequantize(), tuple(module.weight.shape))
    return values.to(module.weight.dtype).contiguous()


def _values_of_bias(module: Any) -> Tensor:
    """A quantized bias after quantization."""
    if module.bias.device.type == "meta":
        return nearest_bias(module).dequantize().reshape(module.bias.shape).to(module.bias.dtype)  # type: ignore[no-any-return]
    values: Tensor = module.quantized_bias().detach().cpu().contiguous()
    return values


def _is_float_layer(module: nn.Module) -> bool:
    """Whether loaders might take a module for a quantized layer, by its type."""
    is_layer = quantized_class(module) is not None or isinstance(module, nn.Linear)
    return is_layer and not isinstance(module, QuantizedModule)


def _fake_quantization(layers: Mapping[str, Any]) -> dict[str, Any]:
    """How weights and activations are quantized, for a model whose weights are floats."""
    described, static = [], {}
    for name, module in layers.items():
        layer = {"modules": [name], "weight": module.weight_quantizer.scheme.spelling}
        for side in ("input", "output"):
            quantizer = getattr(module, f"{side}_quantizer")
            if quantizer is None:
                continue
            layer[side] = quantizer.scheme.timed
            if quantizer.scale is not None:
                parameters = {"scales": quantizer.current_scale.reshape(-1).tolist()}
                if quantizer.zero_point is not None:
                    parameters["zero_points"] = quantizer.zero_point.reshape(-1).float().tolist()
                static[f"{side}:{name}"] = parameters
        described.append(layer)
    return {"version": 1, "layers": described, "static": static}


def _layers_to_write(model: nn.Module, path: Path) -> dict[str, Any]:
    """The quantized layers of a model that can be written under a path."""
    if os.path.lexists(path):
        raise usage_error(f"{path} exists already", "choose another name, or remove it")
    layers = dict(quantized_modules(model))
    if not layers:
        raise usage_error("no layer of the model is quantized", "quantize it with kvant.torch.quantize_")
    return layers


def _config(model: nn.Module) -> dict[str, Any]:
    """config.json of the model."""
    own = getattr(model, "config", None)
    if own is not None and hasattr(own, "to_dict"):
        config = dict(own.to_dict())
        # The key describes the loaded checkpoint, not this one.
        config.pop("quantization_config", None)
        config.setdefault("architectures", [type(model).__name__])
        if not config["architectures"]:
            config["architectures"] = [type(model).__name__]
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        config["dtype" if "dtype" in config else "torch_dtype"] = dtype
        return config
    return {"architectures": [type(model).__name__]}


def _other_tensors(model: nn.Module, layers: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of the model but those of quantized weights and their quantizers."""
    modules = {module: names for module, names in names_of(model).items() if isinstance(module, TensorQuantizer)}
    quantizers = tuple(f"{name}." for names in modules.values() for name in names)
    packed = {f"{name}.weight" for name in layers}
    kept = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in state_of(model).items()
        if name not in packed and not (quantizers and name.startswith(quantizers))
    }
    for name, source in _tied(model).items():
        if source not in packed:
            kept.pop(name, None)
    # Other tensors that share memory are written once for each name.
    return {name: tensor.clone() for name, tensor in kept.items()}


def _tied(model: nn.Module) -> dict[str, str]:
    """The tied tensors of a transformers model with what they are tied to; no longer where that is quantized."""
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return {}
    tied = getattr(model, "_tied_weights_keys", None) or {}
    return dict(tied) if isinstance(tied, Mapping) else dict.fromkeys(tied, "")


def _check_place(module: Any, format: str) -> None:
    """Refuses a quantized layer that a format has no place for."""
    is_linear = _is_linear(module)
    if not is_linear and format != "quark":
        raise UnsupportedError(
            f"it is a {module.float_class.__name__}, and {format} holds linear layers",
            kind="unsupported",
            remedy="export to quark, or leave the layer out with `exclude`",
        )
    if is_conv1d(module):
        raise UnsupportedError(
            "it is a Conv1D, whose weight is [inputs, outputs]: loaders read its codes as a Linear's",
            kind="unsupported",
            remedy="quantize the checkpoint with kvant.quantize, which turns it",
        )
    quantizer = module.weight_quantizer
    scheme = quantizer.scheme
    if scheme.kind == "other":
        raise UnsupportedError(
            f"{format} has no place for {scheme.spelling}, whose values have no codes of their own",
            kind="unsupported",
            remedy='export to the format fake, kvant.torch.export(model, directory, "fake"), which holds every scheme '
            "as floats on the grid of its values",
        )
    if module.chosen is None and not quantizer.enabled and quantizer.scale is None:
        raise UnsupportedError(
            "it was loaded frozen, and its codes are not kept",
            kind="unsupported",
            remedy="export the model that was quantized, or to the format fake",
        )
    if not is_linear and not _is_bytes(scheme) and not _has_plain_scales(scheme):
        raise UnsupportedError(
            f"it is a {module.float_class.__name__}, for which {format} has no place in {scheme.spelling}",
            kind="unsupported",
            remedy="export to the format fake, or give it integers, fp8 or MX, such as int8:channel",
        )
    are_codes = is_linear or _is_bytes(scheme)
    if are_codes and module.bias_quantizer is not None and module.bias_quantizer.scheme.dtype not in BYTES:
        raise UnsupportedError(
            f"{format} holds biases of eight bits, and its bias has {module.bias_text}",
            kind="unsupported",
            remedy="give biases another scheme, such as int8:tensor, or export to the format fake",
        )


def _is_linear(module: Any) -> bool:
    return isinstance(module, nn.Linear) or is_conv1d(module)


def _has_plain_scales(scheme: TensorScheme) -> bool:
    """Whether codes times scales are the values."""
    is_float = scheme.kind == "float" and scheme.scale in ("model", "f32", "f16", "bf16", "e8m0")
    return scheme.kind == "int" or is_float


def _packed(name: str, module: Any, format: str) -> dict[str, Tensor]:
    """The tensors of a quantized layer."""
    is_linear = _is_linear(module)
    if not is_linear and not _is_bytes(module.weight_quantizer.scheme):
        return _rounded(name, module, format)
    quantized = codes_of(module, format)
    tensors: dict[str, Tensor] = quantized.packed(format, name)
    codes = f"{name}.weight"
    if not is_linear:
        tensors[codes] = module.layout.to_weight(tensors[codes], tuple(module.weight.shape)).contiguous()
    return {**tensors, **_packed_bias(name, module, format), **_activations(name, module, format)}


def _is_bytes(scheme: TensorScheme) -> bool:
    """Whether codes are bytes with one scale or one for each output channel, so that they can have any shape."""
    return scheme.dtype in BYTES and scheme.granularity in ("tensor", "channel") and scheme.axis != 1


def _rounded(name: str, module: Any, format: str) -> dict[str, Tensor]:
    """The tensors of a convolution or embedding as AMD Quark exports it: floats on the grid of the codes, and under the
    names of its quantizers the parameters."""
    scheme = module.weight_quantizer.scheme
    quantized = codes_of(module)
    weight = module.layout.to_weight(quantized.dequantize(), tuple(module.weight.shape))
    # One group in each row has an axis too.
    shape = (quantized.shape[0], -1) if scheme.granularity == "group" else tuple(quantized.scale.shape)
    tensors = {
        f"{name}.weight": weight.to(module.weight.dtype).contiguous(),
        f"{name}._weight_scale": quantized.scale.reshape(shape).contiguous(),
    }
    if scheme.scale != "e8m0":
        zero = torch.zeros_like(quantized.scale) if quantized.zero_point is None else quantized.zero_point
        tensors[f"{name}._weight_zero_point"] = zero.reshape(shape).to(torch.int32).contiguous()
    for stored, tensor in _activations(name, module, format).items():
        parameter = stored.removeprefix(f"{name}.")
        tensors[f"{name}._{parameter}"] = tensor.to(torch.int32) if parameter.endswith("_zero_point") else tensor
    if module.bias_quantizer is not None:
        tensors[f"{name}.bias"] = _values_of_bias(module)
    return tensors


def _packed_bias(name: str, module: Any, format: str) -> dict[str, Tensor]:
    """The codes of a quantized bias with their parameters, as those of a weight."""
    if module.bias_quantizer is None:
        return {}
    packed = nearest_bias(module, format).packed(format, name)
    tensors = {f"{name}.bias{stored.removeprefix(f'{name}.weight')}": tensor for stored, tensor in packed.items()}
    tensors[f"{name}.bias"] = tensors[f"{name}.bias"].reshape(module.bias.shape)
    return tensors


def _activations(name: str, module: Any, format: str) -> dict[str, Tensor]:
    """The tensors of static activations."""
    tensors = {}
    for side in ("input", "output"):
        quantizer = getattr(module, f"{side}_quantizer")
        if quantizer is not None and quantizer.scale is not None:
            tensors.update(_parameters(name, side, module, quantizer, format))
    return tensors


def _parameters(name: str, side: str, module: Any, quantizer: Any, format: str) -> dict[str, Tensor]:
    """The tensors of static inputs or outputs."""
    points = [] if quantizer.zero_point is None else quantizer.zero_point.reshape(-1).float().tolist()
    given = _weight(values_of(module, "weight").cpu())
    features = int(module.layout.to_matrix(module.weight).shape[1])
    packed = _kvant.packed_activations(
        format,
        (name, side),
        quantizer.scheme.timed,
        features,
        (quantizer.current_scale.reshape(-1).tolist(), points),
        given.data,
    )
    return {name: given.origin.stored(data, dtype, shape) for name, dtype, shape, data in packed}


def _write(directory: Path, tensors: dict[str, Tensor], config: dict[str, Any], model: nn.Module) -> None:
    """Writes the directory as a whole: it has its name once it is complete."""
    from safetensors.torch import save_file

    with _unfinished(directory) as unfinished:
        unfinished.mkdir()
        save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")
        generation = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(unfinished)


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A name in the same file system, for what gets its own name when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".kvant-") as directory:
        unfinished = Path(directory) / path.name
        yield unfinished
        os.rename(unfinished, path)


def save(model: nn.Module, file: StrPath) -> Path:
    """Writes a quantized model for `load`: its tensors with their quantizers' parameters, in one safetensors file.

    Raises:
        UsageError: The file exists, or the model is not quantized.
    """
    from safetensors.torch import save_file

    path = Path(file)
    layers = _layers_to_write(model, path)
    described = {
        name: {
            "scheme": module.scheme_text,
            "bias": module.bias_text,
            "frozen": not module.weight_quantizer.enabled,
        }
        for name, module in layers.items()
    }
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state_of(model).items()}
    with _unfinished(path) as unfinished:
        # One entry: safetensors writes several in an order that differs from run to run.
        save_file(tensors, unfinished, metadata={_METADATA: json.dumps(described)})
    return path


def load(model: nn.Module, path: StrPath) -> nn.Module:
    """Makes a float model a quantized one, in place, and returns it.

    Layers of a checkpoint get the values of its codes as weights, frozen, and quantize activations as it describes.

    Args:
        model: The float model, with weights on a device.
        path: A file that `save` wrote, or the directory of a quantized checkpoint: one that `export` or
            `kvant.quantize` wrote, or that of another tool in a format of `kvant list formats`.

    Raises:
        UsageError: The file is not one of `save`, or the checkpoint describes no quantized layers.
        InvalidError: The model has other layers or tensors, or the checkpoint is damaged; the error names the tensor.
        UnsupportedError: A format that is not read, or one that quantizes more than layers (a KV cache).
    """
    if os.path.isdir(path):
        load_checkpoint(model, path)
    else:
        _load_file(model, path)
    leave_fast_path(model)
    return model


def _load_file(model: nn.Module, file: StrPath) -> None:
    """Makes a float model the quantized one that `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(file), framework="pt") as opened:
            described = json.loads((opened.metadata() or {}).get(_METADATA, "null"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    except (SafetensorError, json.JSONDecodeError) as error:
        raise kvant.InvalidError(f"{os.fspath(file)} is damaged: {error}", kind="invalid") from error
    if not isinstance(described, dict):
        raise usage_error(
            f"{os.fspath(file)} was not written by kvant.torch.save",
            "name a file that it has written, or the directory of a checkpoint",
        )
    modules = float_layers(model, described)
    try:
        schemes = {name: layer_scheme(layer["scheme"]) for name, layer in described.items()}
        biases = {name: layer.get("bias") for name, layer in described.items()}
        frozen = {name for name, layer in described.items() if layer["frozen"]}
    except (KeyError, TypeError, kvant.UsageError) as error:
        raise kvant.InvalidError(f"{os.fspath(file)} is damaged: {error!r} in its metadata", kind="invalid") from error
    of_quantizers = {name for name in tensors if name.rpartition(".")[0].endswith("_quantizer")}
    check_state(model, {name: tensor for name, tensor in tensors.items() if name not in of_quantizers}, ())
    for name, scheme in schemes.items():
        module: Any = modules[name]
        make_quantized(module, scheme, biases[name])
        module.weight_quantizer.enabled = name not in frozen
        if module.bias_quantizer is not None:
            module.bias_quantizer.enabled = name not in frozen
        _place(module, name, tensors)
    model.load_state_dict(tensors, strict=False)


def _place(module: Any, name: str, tensors: dict[str, Tensor]) -> None:
    """Makes room for the parameters of a layer's quantizers."""
    for role in ("weight", "bias", "input", "output"):
        quantizer = getattr(module, f"{role}_quantizer")
        if quantizer is None:
            continue
        for parameter in ("scale", "zero_point", "log_change"):
            stored = tensors.get(f"{name}.{role}_quantizer.{parameter}")
            if stored is not None:
                place = torch.empty_like(stored, device=module.weight.device)
                setattr(quantizer, parameter, nn.Parameter(place) if parameter == "log_change" else place)
