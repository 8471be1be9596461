"""Quantized checkpoints read back into models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn

import kvant
from kvant import _kvant
from kvant._errors import UnsupportedError, usage_error
from kvant._types import StrPath
from kvant.torch._algorithms import LayerRecipe
from kvant.torch._layouts import layout_of
from kvant.torch._modules import become, quantized_class
from kvant.torch._quantize import equip
from kvant.torch._schemes import LayerScheme, layer_scheme

# Types of torch by the names of safetensors files.
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}

# Types of codes of one byte by their dtypes.
BYTES = {"int8": torch.int8, "uint8": torch.uint8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class StoredLayer:
    """A quantized layer of a checkpoint.

    Attributes:
        name: Its name in the checkpoint.
        scheme: Its scheme.
        bias: The scheme of its bias, if that is quantized.
        is_packed: Whether its weight is codes, which are read as the values of a matrix [outputs, inputs].
        is_convolution: Whether its weight is codes of the weight's own shape.
        parameters: The scale and zero point of static activations, by `input` and `output`.
    """

    name: str
    scheme: LayerScheme
    bias: str | None
    is_packed: bool
    is_convolution: bool
    parameters: Mapping[str, tuple[Tensor, Tensor | None]]

    @property
    def parts(self) -> tuple[str, ...]:
        """The tensors that its weight and its quantized bias are read from."""
        suffixes = ("weight", "weight_scale", "weight_zero_point") if self.is_convolution else ("weight",)
        return tuple(f"{self.name}.{suffix}" for suffix in (*suffixes, *(("bias",) if self.bias else ())))

    def weight_for(self, module: Any, tensors: Mapping[str, Tensor]) -> Tensor:
        """The values of its weight, with the shape and type of a module's.

        Raises:
            InvalidError: They do not fit, are missing or not finite.
        """
        name, shape = self.parts[0], tuple(module.weight.shape)
        if name not in tensors:
            raise _invalid(f"{name} is missing")
        layout = layout_of(module, self.scheme.weight)
        if self.is_convolution:
            values = self._unpacked(module, tensors)
        elif self.is_packed:
            _check_shape(name, tensors[name], tuple(layout.to_matrix(module.weight).shape))
            values = layout.to_weight(tensors[name], shape)
        else:
            _check_shape(name, tensors[name], shape)
            values = tensors[name]
        if not values.isfinite().all():
            raise _invalid(f"{name}: a value of the weight is NaN or infinite")
        return values.to(module.weight.device, module.weight.dtype).contiguous()

    def _unpacked(self, module: Any, tensors: Mapping[str, Tensor]) -> Tensor:
        """The values of codes that have the shape of the weight."""
        scheme, layout = self.scheme.weight, layout_of(module, self.scheme.weight)
        codes, scale, zero_point = (tensors.get(part) for part in self.parts[:3])
        assert codes is not None
        _check_shape(self.parts[0], codes, tuple(module.weight.shape))
        if scheme.dtype not in BYTES or scheme.granularity not in ("tensor", "channel") or scheme.axis == 1:
            raise UnsupportedError(
                f"{self.parts[0]}: convolutions in {scheme.spelling} are not read",
                kind="unsupported",
                remedy="use a scheme of eight bits for them, such as int8:channel or e4m3:channel",
            )
        if codes.dtype != BYTES[scheme.dtype]:
            raise _invalid(f"{self.parts[0]} is {codes.dtype}; {scheme.dtype} codes were expected")
        matrix = layout.to_matrix(codes.float())
        rows = 1 if scheme.granularity == "tensor" else matrix.shape[0]
        for part, parameter in zip(self.parts[1:3], (scale, zero_point), strict=True):
            if parameter is not None and parameter.numel() != rows:
                raise _invalid(f"{part}: shape {list(parameter.shape)} does not fit the layer: {rows} were expected")
        if scale is None:
            raise _invalid(f"{self.parts[1]} is missing")
        if zero_point is not None:
            matrix = matrix - zero_point.float().reshape(-1, 1)
        return layout.to_weight(matrix * scale.float().reshape(-1, 1), tuple(module.weight.shape))

    def bias_for(self, module: Any, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The values of its bias, if that is quantized, with the type of a module's.

        Raises:
            InvalidError: They do not fit, are missing or not finite.
        """
        if self.bias is None:
            return None
        name = f"{self.name}.bias"
        if module.bias is None or name not in tensors:
            raise _invalid(f"{name} is missing" if name not in tensors else f"the model has no {name}")
        _check_shape(name, tensors[name], tuple(module.bias.shape))
        if not tensors[name].isfinite().all():
            raise _invalid(f"{name}: a value of the bias is NaN or infinite")
        return tensors[name].to(module.weight.device, module.weight.dtype)

    def apply(self, module: Any, weight: Tensor, bias: Tensor | None) -> None:
        """Makes a float layer this one."""
        make_quantized(module, self.scheme, self.bias)
        module.weight = nn.Parameter(weight, requires_grad=module.weight.requires_grad)
        module.weight_quantizer.enabled = False
        if bias is not None:
            module.bias = nn.Parameter(bias, requires_grad=module.bias.requires_grad)
            module.bias_quantizer.enabled = False
        for side, parameters in self.parameters.items():
            quantizer = getattr(module, f"{side}_quantizer")
            if quantizer is not None:
                quantizer.set_parameters(*parameters, weight.device)


class StoredCheckpoint:
    """A quantized checkpoint.

    Attributes:
        layers: Its quantized layers by name.
        parts: The tensors that their weights are read from.

    Raises:
        UsageError: Nothing in the checkpoint is quantized.
        InvalidError: The checkpoint is damaged.
        UnsupportedError: It quantizes more than layers, or has a layout that is not read.
    """

    def __init__(self, directory: StrPath) -> None:
        self._stored = _kvant.StoredModel(os.fspath(directory))
        described = json.loads(self._stored.layers())
        self.layers = {name: _stored_layer(name, layer) for name, layer in described.items()}
        if not self.layers:
            raise usage_error(
                f"{os.fspath(directory)} describes no quantized layers",
                "load its weights as those of a float model: they are ones, or on the grid of a weight-only scheme",
            )
        self.parts = {part for layer in self.layers.values() for part in layer.parts}

    def read(self, modules: Mapping[str, Any], *, layers_only: bool = False) -> dict[str, Tensor]:
        """The tensors of the float model; codes of convolutions as they are stored.

        Args:
            modules: The layers that they are for. Values of codes get the types of their weights.
            layers_only: Whether other tensors are left out.
        """
        packed = {f"{name}.weight": name for name, layer in self.layers.items() if layer.is_packed}
        tensors: dict[str, Tensor] = {}

        def deliver(name: str, dtype: str, shape: list[int], data: numpy.typing.NDArray[numpy.uint8]) -> None:
            if layers_only and name not in self.parts:
                return
            if dtype not in _DTYPES:
                raise UnsupportedError(f"{name}: numbers of type {dtype} are not read", kind="unsupported")
            tensor = torch.from_numpy(data).view(_DTYPES[dtype]).reshape(shape)
            tensors[name] = tensor.to(modules[packed[name]].weight.dtype) if name in packed else tensor

        self._stored.read(deliver)
        return tensors

    def restore(self, modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        """Checks the weights of layers against modules, and returns what makes these quantized ones."""
        weights = {name: self.layers[name].weight_for(module, tensors) for name, module in modules.items()}
        biases = {name: self.layers[name].bias_for(module, tensors) for name, module in modules.items()}

        def apply() -> None:
            # Shared layers are stored under each of their names.
            names = {module: name for name, module in modules.items()}
            for module, name in names.items():
                self.layers[name].apply(module, weights[name], biases[name])

        return apply


def load_checkpoint(model: nn.Module, directory: StrPath) -> None:
    """Makes a float model the quantized one of a checkpoint, in place; one that does not fit changes nothing."""
    stored = StoredCheckpoint(directory)
    modules = float_layers(model, stored.layers)
    tensors = stored.read(modules)
    apply = stored.restore(modules, tensors)
    others = {name: tensor for name, tensor in tensors.items() if name not in stored.parts}
    check_state(model, others, stored.parts)
    tied = _tied_to(model, modules, others)
    model.load_state_dict(others, strict=False)
    apply()
    for name, module in tied.items():
        owner, _, parameter = name.rpartition(".")
        setattr(model.get_submodule(owner), parameter, module.weight)


def _tied_to(model: nn.Module, modules: Mapping[str, Any], others: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors of a model that a checkpoint does not have because they are the weight of a quantized layer, with
    that layer."""
    owners = {module.weight.data_ptr(): module for module in modules.values()}
    quantized = {id(module) for module in modules.values()}
    return {
        name: owners[tensor.data_ptr()]
        for name, tensor in model.state_dict().items()
        if tensor.data_ptr() in owners
        and name not in others
        and id(model.get_submodule(name.rpartition(".")[0])) not in quantized
    }


def float_layers(model: nn.Module, names: Iterable[str], rename: Callable[[str], str] = str) -> dict[str, nn.Module]:
    """The layers of a float model by the names of quantized ones.

    Args:
        model: A float model.
        names: The names.
        rename: From these names to those in the model.

    Raises:
        InvalidError: The model has other layers.
        UsageError: Their weights are not in memory.
    """
    modules = {}
    for name in names:
        try:
            module = model.get_submodule(rename(name))
        except AttributeError as error:
            raise _invalid(f"the model has no layer {name}") from error
        if quantized_class(module) is None:
            raise kvant.InvalidError(
                f"layer {name} is a {type(module).__name__}, not one to quantize",
                kind="invalid",
                remedy="give the float model that was quantized",
            )
        if module.weight.device.type == "meta":
            raise usage_error(f"the weight of layer {name} is on the device meta", "load the model without offloading")
        modules[name] = module
    return modules


def make_quantized(module: nn.Module, scheme: LayerScheme, bias: str | None = None) -> None:
    """Makes a float layer a quantized one whose parameters are set afterwards."""
    kind = quantized_class(module)
    assert kind is not None
    become(module, kind)
    equip(module, LayerRecipe(scheme.spelling, bias=bias), scheme)


def check_state(model: nn.Module, tensors: Mapping[str, Tensor], known: Iterable[str]) -> None:
    """Compares tensors with the state of a model.

    Args:
        model: The model.
        tensors: The tensors that are to be loaded.
        known: Names of its state that come from elsewhere.

    Raises:
        InvalidError: A tensor is missing, in excess or of another shape.
    """
    state = model.state_dict()
    for name, tensor in tensors.items():
        if name not in state:
            raise _invalid(f"the model has no tensor {name}")
        _check_shape(name, tensor, tuple(state[name].shape))
    known = set(known)
    shared = {state[name].data_ptr() for name in state.keys() & (tensors.keys() | known)}
    for name in state.keys() - tensors.keys() - known:
        if state[name].data_ptr() not in shared:
            raise _invalid(f"{name} is missing")


def _stored_layer(name: str, described: Mapping[str, Any]) -> StoredLayer:
    def parameters(given: Mapping[str, list[float]]) -> tuple[Tensor, Tensor | None]:
        # Whatever device the caller's context creates tensors on.
        scale, zero_point = (
            torch.tensor(given[key], dtype=torch.float32, device="cpu") for key in ("scales", "zero_points")
        )
        shape = () if scale.numel() == 1 else (-1,)
        return scale.reshape(shape), zero_point.reshape(shape) if zero_point.numel() else None

    found = {side: parameters(described[side]) for side in ("input", "output") if described[side] is not None}
    scheme = layer_scheme(described["scheme"])
    return StoredLayer(name, scheme, described["bias"], described["is_packed"], described["is_convolution"], found)


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise _invalid(f"{name}: shape {list(tensor.shape)} does not fit the model: {list(expected)} was expected")


def _invalid(message: str) -> kvant.InvalidError:
    return kvant.InvalidError(
        message, kind="invalid", remedy="load the checkpoint into the model that it was made from"
    )
