"""Statistics of layers' inputs, captured from any model that runs in PyTorch, for `statistics` of `kvant.quantize`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvant._errors import InvalidError, usage_error
from kvant._types import StrPath
from kvant.torch._layouts import is_conv1d


def capture_statistics(
    model: nn.Module | Mapping[str, nn.Module],
    run: Callable[[], object],
    path: StrPath,
    *,
    hessians: bool = False,
) -> None:
    """Runs a model and writes statistics of the inputs of its linear layers and convolutions to a file.

    The file holds the range and the mean square of each input channel, from which `kvant.quantize(...,
    statistics=path)` finds static scales of activations and weighs the errors of searched weights: for diffusers
    pipelines and other models that do not run in Kvant.

    Args:
        model: The model, or the components of a pipeline by name, such as `{"transformer": pipe.transformer}`.
        run: Runs the model on data, as often as is useful: `lambda: pipe("a cat")`.
        path: The safetensors file to write.
        hessians: Whether the products of input channels are captured too, for the algorithm `gptq`: a matrix of
            [channels, channels] for each linear layer.

    Inputs are measured in float32, within `torch.autocast` too.

    Raises:
        UsageError: `path` exists already, or its folder does not; no layer was reached.
        InvalidError: The inputs of a layer are NaN or infinite.
    """
    from safetensors.torch import save_file

    target = Path(os.fspath(path))
    _check_target(target)
    components = {"": model} if isinstance(model, nn.Module) else {f"{name}.": part for name, part in model.items()}
    seen: dict[str, _Inputs] = {}
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for prefix, component in components.items():
            hooks.enter_context(_watched(component, prefix, seen, hessians))
        run()
    if not seen:
        raise usage_error("no linear layer or convolution of the model was run", "give a `run` that calls the model")
    tensors = {
        f"{name}.{key}": value for name, inputs in seen.items() for key, value in inputs.statistics(name).items()
    }
    # The model may have written the file while it ran.
    _check_target(target)
    unfinished = Path(f"{target}.unfinished")
    save_file(tensors, unfinished)
    unfinished.replace(target)


def _check_target(target: Path) -> None:
    """Refuses to write where a file is, or where none can be.

    Raises:
        UsageError: The file exists, or its folder does not, or is not writable.
    """
    if os.path.lexists(target):
        raise usage_error(f"{target} exists already", "give another path, or remove the file")
    if not target.parent.is_dir():
        raise usage_error(f"{target} cannot be written: {target.parent} is not a folder", "make the folder first")
    if not os.access(target.parent, os.W_OK):
        raise usage_error(f"{target} cannot be written: {target.parent} is not writable", "give another path")


class _Inputs:
    """What was seen of a layer's inputs, by channel."""

    def __init__(self, channels: int, hessian: bool) -> None:
        self.low = torch.full((channels,), float("inf"))
        self.high = torch.full((channels,), float("-inf"))
        self.squares = torch.zeros(channels, dtype=torch.float64)
        self.products = torch.zeros(channels, channels, dtype=torch.float64) if hessian else None
        self.rows = 0

    def update(self, rows: Tensor) -> None:
        """Takes rows in, [rows, channels]."""
        rows = rows.float()
        # Autocast would multiply in half precision what the layer has read.
        with torch.autocast(rows.device.type, enabled=False):
            low, high = torch.aminmax(rows, dim=0)
            self.low, self.high = torch.minimum(self.low, low.cpu()), torch.maximum(self.high, high.cpu())
            self.squares += rows.square().sum(0).cpu().double()
            if self.products is not None:
                self.products += (rows.t() @ rows).cpu().double()
        self.rows += rows.shape[0]

    def statistics(self, name: str) -> dict[str, Tensor]:
        """The tensors of the file.

        Raises:
            InvalidError: An input was NaN or infinite.
        """
        tensors = {
            "input_min": self.low,
            "input_max": self.high,
            "input_mean_square": (self.squares / self.rows).float(),
        }
        if self.products is not None:
            tensors["hessian"] = (self.products / self.rows).float()
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise InvalidError(f"inputs of the layer {name} are NaN or infinite", kind="invalid")
        return tensors


@contextlib.contextmanager
def _watched(model: nn.Module, prefix: str, seen: dict[str, _Inputs], hessians: bool) -> Iterator[None]:
    """Takes in what layers read."""
    handles = []
    for name, module in model.named_modules():
        axis = _channel_axis(module)
        if axis is None or not name:
            continue

        def hook(module: nn.Module, args: Any, kwargs: Any, name: str = prefix + name, axis: int = axis) -> None:
            given = args[0] if args else next(iter(kwargs.values()), None)
            if not isinstance(given, Tensor) or given.numel() == 0:
                return
            rows = given.detach().movedim(axis, -1).reshape(-1, given.shape[axis])
            if name not in seen:
                seen[name] = _Inputs(rows.shape[1], hessians and axis == -1)
            seen[name].update(rows)

        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _channel_axis(module: nn.Module) -> int | None:
    """The axis of input channels of a layer that has weights to quantize."""
    if isinstance(module, nn.Linear) or is_conv1d(module):
        return -1
    if isinstance(module, nn.modules.conv._ConvNd):
        # Without an axis for the batch, too.
        return -1 - len(module.kernel_size)
    return None
