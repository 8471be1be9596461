"""ONNX graphs of quantized models, made by torch's exporters."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvant._errors import UnsupportedError, usage_error
from kvant._types import StrPath
from kvant.torch._modules import TensorQuantizer, quantized_modules
from kvant.torch._runs import evaluating


def export_onnx(
    model: nn.Module,
    args: Any,
    path: StrPath,
    *,
    opset_version: int = 18,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Path:
    """Writes a frozen model as an ONNX graph.

    Weights are floats on the grid of their codes, and static activations have QuantizeLinear and DequantizeLinear.
    Transformers models run without caches of keys and values. Torch's exporters need the package onnxscript. Where
    onnxruntime is installed, the graph's first output is compared with the model's before the file gets its name.

    Args:
        model: A model that `quantize_` has quantized and `freeze` has frozen.
        args: Inputs as examples: a tensor, a tuple of arguments, or a dict of keyword arguments. Their shapes are those
            of the graph's inputs.
        path: A new file.
        opset_version: The version of ONNX's operators.
        input_names: Names of the graph's inputs [default: for a dict its keys].
        output_names: Names of the graph's outputs.

    Returns:
        The file.

    Raises:
        UsageError: The file exists, or the model is not quantized or not frozen.
        UnsupportedError: Activations are quantized to something other than static integers of eight bits with one
            scale, or torch's exporters make no graph that computes what the model does.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise usage_error(f"{path} exists already", "choose another name, or remove it")
    layers = list(quantized_modules(model))
    if not layers:
        raise usage_error("no layer of the model is quantized", "quantize it with kvant.torch.quantize_")
    for name, module in layers:
        if module.weight_quantizer.enabled:
            raise usage_error(
                f"layer {name} is not frozen: its weight is rounded in each pass",
                "round the weights for good first, with kvant.torch.freeze(model)",
            )
    check_activations(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {
        "input_names": None if input_names is None else list(input_names),
        "output_names": None if output_names is None else list(output_names),
        "opset_version": opset_version,
        "verbose": False,
    }
    write_graph(model, args, path, options)
    return path


def check_activations(model: nn.Module) -> None:
    """Refuses a model whose quantized activations ONNX has no operators for.

    Raises:
        UnsupportedError: They are not static integers of eight bits with one scale; it names the layer.
    """
    for name, module in quantized_modules(model):
        for quantizer in (module.input_quantizer, module.output_quantizer):
            if quantizer is not None and not quantizer.is_exportable:
                raise UnsupportedError(
                    f"activations in {quantizer.scheme.timed} (layer {name}) in ONNX graphs",
                    kind="unsupported",
                    remedy="use static int8 with one scale for the tensor, "
                    "or quantize the float graph with kvant.quantize",
                )


def write_graph(
    model: nn.Module,
    args: Any,
    path: Path,
    options: dict[str, Any],
    *,
    dynamic_axes: Any = None,
    may_script: bool = True,
) -> None:
    """Writes the graph that the first of torch's exporters makes which computes what the model does.

    Args:
        model: A frozen model that `check_activations` does not refuse.
        args: As for `export_onnx`.
        path: The file, which is replaced.
        options: Those of `torch.onnx.export`.
        dynamic_axes: Axes of any size, which the exporter through TorchScript alone has.
        may_script: Whether the exporter through TorchScript is tried too.

    Raises:
        UnsupportedError: None of them does.
    """
    if isinstance(args, dict):
        names, arguments = list(args), tuple(args.values())
    else:
        names, arguments = [], args if isinstance(args, tuple) else (args,)
    options = {**options, "input_names": options["input_names"] or names or None}
    call, problems = _Call(model, names), []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".kvant-") as temporary, evaluating(call):
        unfinished = Path(temporary) / path.name
        for export in (_export_traced, _export_scripted) if may_script else (_export_traced,):
            try:
                with _exported(call):
                    export(call, arguments, unfinished, dynamic_axes, options)
                problem = _difference(call, arguments, unfinished)
            except Exception as error:  # The exporters of torch raise what they like.
                problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if problem is None:
                os.replace(unfinished, path)
                return
            problems.append(problem)
    remedy = "quantize the checkpoint with kvant.quantize(model, scheme, format='onnx', output='out.onnx')"
    if any(parameter.dtype is torch.bfloat16 for parameter in model.parameters()):
        remedy = f"convert the model with model.float(), since ONNX Runtime's CPU has no bfloat16; or {remedy}"
    raise UnsupportedError(
        f"torch's exporters make no ONNX graph of this model: {'; '.join(problems)}", kind="unsupported", remedy=remedy
    )


def _export_traced(call: nn.Module, arguments: Any, path: Path, dynamic_axes: Any, options: dict[str, Any]) -> None:
    """Exports through torch.export, which follows the code of recent models."""
    if dynamic_axes is not None:
        raise ValueError("dynamic_axes are those of the scripted exporter")
    program = torch.export.export(call, arguments, strict=False)
    options = {**options, "opset_version": max(options["opset_version"], 18)}
    torch.onnx.export(program, (), str(path), dynamo=True, external_data=False, **options)


def _export_scripted(call: nn.Module, arguments: Any, path: Path, dynamic_axes: Any, options: dict[str, Any]) -> None:
    """Exports through TorchScript."""
    torch.onnx.export(call, arguments, str(path), dynamo=False, dynamic_axes=dynamic_axes, **options)


@contextlib.contextmanager
def _exported(call: nn.Module) -> Iterator[None]:
    """Quantizers compute with torch's own operator, which exporters know."""
    quantizers = [module for module in call.modules() if isinstance(module, TensorQuantizer) and module.is_exportable]
    for quantizer in quantizers:
        zero = 0 if quantizer.zero_point is None else int(quantizer.zero_point)
        quantizer.exported = float(quantizer.current_scale), zero
    try:
        yield
    finally:
        for quantizer in quantizers:
            quantizer.exported = None


def _difference(call: nn.Module, arguments: Any, path: Path) -> str | None:
    """What is wrong with a graph; None if it gives the model's outputs, and where onnxruntime is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    inputs = {name: value.cpu().numpy() for name, value in zip(names, arguments, strict=True)}
    made = session.run(None, inputs)[0]
    expected = _first(call(*arguments)).float().cpu()
    distance = (torch.from_numpy(made).float() - expected).abs().max()
    # A code more or less is no mistake of the exporter.
    if distance <= 0.02 * expected.abs().max():
        return None
    return f"the graph's outputs differ from the model's by {float(distance):.3g}"


def _first(made: Any) -> Tensor:
    """The first output of a model."""
    if isinstance(made, Tensor):
        return made
    return _first(made[0] if isinstance(made, tuple | list) else next(iter(made.values())))


class _Call(nn.Module):
    """A model with the inputs that it is given, and none for its other parameters."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *arguments: Any) -> Any:
        """Runs the model."""
        if self.names:
            return self.model(**dict(zip(self.names, arguments, strict=True)))
        return self.model(*arguments)
