"""Quark's quantizer and exporters over `kvant.torch`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import kvant.torch as kt
from kvant._errors import usage_error
from kvant.compat._shared import escaped, unsupported
from kvant.compat.quark._configuration import (
    NAMED,
    ModelAlgorithms,
    QConfig,
    QLayerConfig,
    QuantizationMode,
    algorithms_of,
    bias_of,
    scheme_of,
)
from kvant.torch._modules import layer_type, quantized_class


@dataclass
class TemplateConfig:
    """The configuration that a template makes of a scheme's name."""

    scheme: str
    exclude: list[str]
    algorithms: ModelAlgorithms


class LLMTemplate:
    """Named schemes for language models."""

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type

    @staticmethod
    def get(model_type: str) -> LLMTemplate:
        """The template of an architecture. One serves all: output embeddings stay as they are."""
        return LLMTemplate(model_type)

    def get_config(
        self,
        scheme: str,
        algorithm: str | list[str] | None = None,
        exclude_layers: list[str] | None = None,
        algo_configs: dict[str, Any] | None = None,
        **more: Any,
    ) -> TemplateConfig:
        """The configuration of a named scheme, with algorithms by name whose settings `algo_configs` may have.

        Raises:
            UnsupportedError: An algorithm or an option that models in place do not have.
        """
        given = sorted(name for name, value in more.items() if value)
        if given:
            raise unsupported(
                f"{', '.join(given)} of a template", "quantize the checkpoint with kvant.quantize, which has them"
            )
        names = [algorithm] if isinstance(algorithm, str) else algorithm or []
        chosen = {name.lower(): config for name, config in (algo_configs or {}).items()}
        entries = [chosen.get(name.lower()) or _named(name) for name in names]
        exclude = ["lm_head"] if exclude_layers is None else exclude_layers
        return TemplateConfig(scheme, exclude, algorithms_of(entries))


class ModelQuantizer:
    """Quantizes models in place."""

    def __init__(self, config: QConfig | TemplateConfig, multi_device: bool = False) -> None:
        self.config = config

    def quantize_model(self, model: nn.Module, dataloader: Iterable[Any] | None = None) -> nn.Module:
        """Quantizes a model in place, and returns it.

        Raises:
            UnsupportedError: Kvant does not do what the configuration asks for.
        """
        layers = {name: module for name, module in model.named_modules() if quantized_class(module) is not None}
        if isinstance(self.config, TemplateConfig):
            return self._quantize_by_template(self.config, model, dataloader, layers)
        config = self.config
        if config.quant_mode is not QuantizationMode.eager_mode:
            raise unsupported("the mode fx_graph_mode", "use eager_mode, or kvant.torch.pt2e with torchao")
        if config.kv_cache_quant_config or config.softmax_quant_spec:
            raise unsupported("quantized attention of models in place", "quantize the checkpoint with kvant.quantize")
        algorithms = algorithms_of(config.algo_config)
        recipes: dict[str, kt.LayerRecipe | None] = {}
        for name, module in layers.items():
            layer = _resolved(config, name, module)
            scheme = None if layer is None else scheme_of(layer, layer_type(module))
            recipe = _recipe(scheme, algorithms, name)
            # Quark leaves the configuration of a bias out where a layer has none.
            if layer is not None and recipe is not None and getattr(module, "bias", None) is not None:
                recipe = replace(recipe, bias=bias_of(layer))
            recipes[name] = recipe
        _check_algorithms(model, layers, algorithms)
        return kt.quantize_(
            model,
            None,
            dataloader,
            overrides={escaped(name): recipe for name, recipe in recipes.items()},
            smoothing=_smoothing(model, algorithms),
            keep_head=False,
            channels_last=False,
        )

    @staticmethod
    def _quantize_by_template(
        config: TemplateConfig, model: nn.Module, dataloader: Iterable[Any] | None, layers: Iterable[str]
    ) -> nn.Module:
        _check_algorithms(model, layers, config.algorithms)
        inside = [name for name in layers if config.algorithms.names(name)]
        return kt.quantize_(
            model,
            _recipe(config.scheme, config.algorithms, ""),
            dataloader,
            exclude=[pattern for pattern in config.exclude if any(_is(pattern, name) for name in layers)],
            overrides={escaped(name): _recipe(config.scheme, config.algorithms, name) for name in inside},
            smoothing=_smoothing(model, config.algorithms),
            channels_last=False,
        )

    @staticmethod
    def freeze(model: nn.Module, quantize: bool = True) -> nn.Module:
        """Rounds weights for good, and returns the model."""
        return kt.freeze(model) if quantize else model


def _named(algorithm: str) -> Any:
    """The configuration of an algorithm by its name."""
    if algorithm.lower() not in NAMED:
        raise unsupported(
            f"the algorithm {algorithm} does not run on models in place", f"use one of {', '.join(NAMED)}"
        )
    return NAMED[algorithm.lower()]()


def _recipe(scheme: str | None, algorithms: ModelAlgorithms, name: str) -> kt.LayerRecipe | None:
    return None if scheme is None else kt.LayerRecipe(scheme, algorithm=algorithms.of_layer(name))


def _smoothing(model: nn.Module, algorithms: ModelAlgorithms) -> dict[str, list[str]] | None:
    """The smoothing pairs of all blocks; None to find them."""
    blocks = model.get_submodule(algorithms.blocks) if algorithms.blocks else None
    return algorithms.smoothing(0 if blocks is None else sum(1 for _ in blocks.children()))


def _check_algorithms(model: nn.Module, layers: Iterable[str], algorithms: ModelAlgorithms) -> None:
    """Refuses names of blocks and layers that the model does not have."""
    blocks = algorithms.blocks
    if blocks and not isinstance(dict(model.named_modules()).get(blocks), nn.ModuleList | nn.Sequential):
        raise usage_error(f"model_decoder_layers names {blocks!r}, which is no list of the model", "check its spelling")
    if algorithms.rounded and not any(algorithms.names(name) for name in layers):
        raise usage_error("inside_layer_modules names no layer of the blocks", "check the spelling of its entries")


def _is(pattern: str, name: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)


def _resolved(config: QConfig, name: str, module: nn.Module) -> QLayerConfig | None:
    """The configuration of a layer, in Quark's order: exclusion, name, pattern, type, then the global one.

    Embeddings do not take the global one.
    """
    if any(_is(pattern, name) for pattern in config.exclude):
        return None
    if name in config.layer_quant_config:
        return config.layer_quant_config[name]
    for pattern, layer in config.layer_quant_config.items():
        if _is(pattern, name):
            return layer
    for kind, layer in config.layer_type_quant_config.items():
        if type(module).__name__ == kind if isinstance(kind, str) else isinstance(module, kind):
            return layer
    return None if isinstance(module, nn.Embedding | nn.EmbeddingBag) else config.global_quant_config


def export_safetensors(
    model: nn.Module,
    output_dir: str,
    custom_mode: str = "quark",
    weight_format: str | None = None,
    pack_method: str = "reorder",
) -> None:
    """Writes a checkpoint.

    Raises:
        UnsupportedError: Another format of weights, or order of codes.
    """
    if weight_format == "fake_quantized":
        raise unsupported("the format fake_quantized of models in place", "use model.save_pretrained on a frozen model")
    if pack_method != "reorder":
        raise unsupported(f"the order {pack_method!r} of codes of models in place", "use pack_method='reorder'")
    kt.export(model, output_dir, custom_mode)


def export_onnx(
    model: nn.Module,
    output_dir: str,
    input_args: Any,
    opset_version: int = 17,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    dynamic_axes: Any = None,
    **more: Any,
) -> Path:
    """Writes `quark_model.onnx`, with QuantizeLinear and DequantizeLinear for static activations.

    Raises:
        UnsupportedError: Other quantized activations, or an option that is not known.
    """
    given = sorted(name for name, value in more.items() if value)
    if given:
        raise unsupported(f"the options {', '.join(given)} of ONNX export", "leave them out")
    for name, module in kt.quantized_modules(model):
        for quantizer in (module.input_quantizer, module.output_quantizer):
            if quantizer is not None and not quantizer.is_exportable:
                raise unsupported(
                    f"activations in {quantizer.scheme.timed} (layer {name}) in ONNX graphs",
                    "use static int8 with one scale for the tensor, or quantize the float graph with kvant.quantize",
                )
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    kt.freeze(model)
    if isinstance(input_args, dict):
        names, arguments = list(input_args), tuple(input_args.values())
    else:
        names, arguments = [], input_args if isinstance(input_args, tuple) else (input_args,)
    path, partial = directory / "quark_model.onnx", directory / "quark_model.partial.onnx"
    options = {
        "input_names": input_names or names or None,
        "output_names": output_names,
        "opset_version": opset_version,
    }
    call, problems = _Call(model, names).eval(), []
    for export in (_export_traced, _export_scripted):
        try:
            with torch.no_grad():
                export(call, arguments, partial, dynamic_axes, options)
                problem = _difference(call, arguments, partial)
        except Exception as error:  # The exporters of torch raise what they like.
            problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if problem is None:
            os.replace(partial, path)
            return path
        problems.append(problem)
        partial.unlink(missing_ok=True)
    raise unsupported(
        f"torch's exporters make no ONNX graph of this model: {'; '.join(problems)}",
        "quantize the checkpoint with kvant.quantize(model, scheme, format='onnx', output='out.onnx')",
    )


def _export_traced(call: nn.Module, arguments: Any, path: Path, dynamic_axes: Any, options: dict[str, Any]) -> None:
    """Exports through torch.export, which follows the code of recent models."""
    if dynamic_axes is not None:
        raise ValueError("dynamic_axes are those of the scripted exporter")
    with _exportable(call):
        program = torch.export.export(call, arguments, strict=False)
    options = {**options, "opset_version": max(options["opset_version"], 18)}
    torch.onnx.export(program, (), str(path), dynamo=True, external_data=False, verbose=False, **options)


def _export_scripted(call: nn.Module, arguments: Any, path: Path, dynamic_axes: Any, options: dict[str, Any]) -> None:
    """Exports through TorchScript."""
    with _exportable(call):
        torch.onnx.export(call, arguments, str(path), dynamo=False, dynamic_axes=dynamic_axes, **options)


@contextlib.contextmanager
def _exportable(call: nn.Module) -> Iterator[None]:
    """Quantizers compute with torch's own operator, which exporters know."""
    quantizers = [module for module in call.modules() if isinstance(module, kt.TensorQuantizer)]
    for quantizer in quantizers:
        quantizer.is_exporting = True
    try:
        yield
    finally:
        for quantizer in quantizers:
            quantizer.is_exporting = False


def _difference(call: nn.Module, arguments: Any, path: Path) -> str | None:
    """What is wrong with a graph; None if it gives the model's outputs, and where onnxruntime is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    made = session.run(None, {name: value.numpy() for name, value in zip(names, arguments, strict=True)})[0]
    expected = _first(call(*arguments)).float()
    distance = (torch.from_numpy(made).float() - expected).abs().max()
    # A code more or less is no mistake of the exporter.
    if distance <= 0.02 * expected.abs().max():
        return None
    return f"the graph's outputs differ from the model's by {float(distance):.3g}"


def _first(made: Any) -> torch.Tensor:
    """The first output of a model."""
    if isinstance(made, torch.Tensor):
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


def export_gguf(*_: Any, **__: Any) -> None:
    """Not supported on models in place.

    Raises:
        UnsupportedError: Always.
    """
    raise unsupported(
        "GGUF files of models in place", "write the file with kvant.quantize(model, 'Q4_K_M', output='out.gguf')"
    )


class ModelExporter:
    """Exports of older versions."""

    def __init__(self, config: Any = None, export_dir: str = "./export") -> None:
        self.export_dir = export_dir

    def export_safetensors_model(self, model: nn.Module, quant_config: Any = None, **more: Any) -> None:
        """As `export_safetensors`."""
        export_safetensors(model, self.export_dir, **more)

    def export_onnx_model(self, model: nn.Module, input_args: Any, **more: Any) -> Path:
        """As `export_onnx`."""
        return export_onnx(model, self.export_dir, input_args, **more)
