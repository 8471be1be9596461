"""Quark's exporters and importers over `kvant.torch`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

import kvant.torch as kt
from kvant._types import StrPath
from kvant.compat._shared import unsupported
from kvant.compat.quark._configuration import QConfig
from kvant.compat.quark._types import QuantizationMode
from kvant.torch._onnx import check_activations, write_graph

# Files beside the weights that say how texts become tokens and pictures become inputs.
_BESIDE = (
    *("added_tokens.json", "chat_template*", "merges.txt", "preprocessor_config.json", "processor_config.json"),
    *("special_tokens_map.json", "*.model", "tokenizer*", "vocab.*"),
)


def export_safetensors(
    model: nn.Module,
    output_dir: StrPath,
    custom_mode: str = "quark",
    weight_format: str | None = None,
    pack_method: str = "reorder",
) -> None:
    """Writes a checkpoint into a directory, in place of the files of an earlier one.

    The tokenizer's files come from the directory that the model was loaded from. Keys and values that are quantized
    share the greatest of their scales, which is `min_kv_scale` at least.

    Raises:
        UnsupportedError: Another format of weights, or order of codes.
    """
    if weight_format == "fake_quantized":
        raise unsupported(
            "the format fake_quantized of models in place",
            "use kvant.torch.export(model, directory, 'fake'), or model.save_pretrained on a frozen model",
        )
    if pack_method != "reorder":
        raise unsupported(f"the order {pack_method!r} of codes of models in place", "use pack_method='reorder'")
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".kvant-") as temporary:
        with _cache_scales(model):
            made = kt.export(model, Path(temporary) / "made", custom_mode)
        if custom_mode == "quark":
            _describe_cache(made / "config.json", model)
        _copy_beside(model, made)
        for file in made.iterdir():
            os.replace(file, directory / file.name)


def _copy_beside(model: nn.Module, directory: Path) -> None:
    """Copies the tokenizer of a model that was loaded from a directory."""
    source = getattr(getattr(model, "config", None), "_name_or_path", "")
    if not source or not (Path(source) / "config.json").is_file():
        return
    for file in Path(source).iterdir():
        if any(fnmatchcase(file.name, pattern) for pattern in _BESIDE) and file.is_file():
            shutil.copy(file, directory / file.name)


def _cached(model: nn.Module) -> tuple[QConfig | None, dict[str, list[Any]]]:
    """The configuration of a model whose keys and values are quantized, and their layers by the module around them."""
    config = getattr(model, "quant_config", None)
    if not isinstance(config, QConfig) or not config.kv_cache_quant_config:
        return None, {}
    found: dict[str, list[Any]] = {}
    for name, module in kt.quantized_modules(model):
        if any(fnmatchcase(name, pattern) for pattern in config.kv_cache_group or ()):
            found.setdefault(name.rpartition(".")[0], []).append(module.output_quantizer)
    return config, found


@contextlib.contextmanager
def _cache_scales(model: nn.Module) -> Iterator[None]:
    """Keys and values have the scales of engines, one for both, while a model is written."""
    config, groups = _cached(model)
    before = {}
    for quantizers in groups.values():
        known = [quantizer for quantizer in quantizers if quantizer is not None and quantizer.scale is not None]
        before.update({quantizer: quantizer.scale for quantizer in known})
        for quantizer in known:
            greatest = torch.stack([before[other] for other in known]).amax()
            quantizer.scale = greatest.clamp(min=0.0 if config is None else config.min_kv_scale)
    try:
        yield
    finally:
        for quantizer, scale in before.items():
            quantizer.scale = scale


def _describe_cache(file: Path, model: nn.Module) -> None:
    """Says in config.json which outputs are keys and values."""
    config, _ = _cached(model)
    if config is None:
        return
    described = json.loads(file.read_text())
    quantization = described["quantization_config"]
    quantization["kv_cache_quant_config"] = config.to_dict()["kv_cache_quant_config"]
    quantization["export"].update(kv_cache_group=config.kv_cache_group, min_kv_scale=config.min_kv_scale)
    file.write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")


def export_onnx(
    model: nn.Module,
    output_dir: StrPath,
    input_args: Any,
    opset_version: int | None = None,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    verbose: bool = False,
    do_constant_folding: bool = True,
    operator_export_type: Any = torch.onnx.OperatorExportTypes.ONNX,
    uint4_int4_flag: bool = False,
    dynamo: bool = False,
    *,
    dynamic_axes: Any = None,
) -> Path:
    """Writes `quark_model.onnx`, with QuantizeLinear and DequantizeLinear for static activations.

    As in Quark, transformers models run without caches of keys and values.

    Args:
        model: A quantized model, which is frozen.
        output_dir: The directory.
        input_args: The inputs, a tuple or by name.
        opset_version: The least version of operators; 17 if it is None.
        input_names: Names of inputs.
        output_names: Names of outputs.
        verbose: Whether torch prints the graph.
        do_constant_folding: Whether constants are folded.
        operator_export_type: The kind of operators: those of ONNX.
        uint4_int4_flag: Whether codes have four bits. Not supported.
        dynamo: Whether only the exporter through torch.export is tried.
        dynamic_axes: Axes of any size, for the exporter through TorchScript.

    Raises:
        UnsupportedError: Other quantized activations, codes of four bits, or other kinds of operators.
    """
    if uint4_int4_flag:
        raise unsupported(
            "codes of four bits in graphs of models in place (uint4_int4_flag)",
            "use kvant.quantize on the checkpoint, with format='onnx'",
        )
    if operator_export_type is not torch.onnx.OperatorExportTypes.ONNX:
        raise unsupported(f"operator_export_type {operator_export_type}", "leave it out: operators are those of ONNX")
    check_activations(model)
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "quark_model.onnx"
    options = {
        "input_names": input_names,
        "output_names": output_names or None,
        "opset_version": 17 if opset_version is None else opset_version,
        "verbose": verbose,
        "do_constant_folding": do_constant_folding,
    }
    write_graph(kt.freeze(model), input_args, path, options, dynamic_axes=dynamic_axes, may_script=not dynamo)
    return path


def export_gguf(model: nn.Module, output_dir: StrPath, model_type: str, tokenizer_path: StrPath) -> None:
    """Not supported on models in place.

    Raises:
        UnsupportedError: Always.
    """
    raise unsupported(
        "GGUF files of models in place", "write the file with kvant.quantize(model, 'Q4_K_M', output='out.gguf')"
    )


def import_model_from_safetensors(
    model: nn.Module | None,
    model_dir: StrPath,
    multi_device: bool = False,
    trust_remote_code: bool = False,
    attn_implementation: str = "eager",
    device: str = "cuda",
    multi_gpu: str | bool | None = False,
) -> nn.Module:
    """Makes a float model the quantized one of a checkpoint, in place, and returns it.

    Args:
        model: The float model, in memory; None makes the language model that the checkpoint describes.
        model_dir: The checkpoint.
        multi_device: Not needed.
        trust_remote_code: As for transformers, if there is no model.
        attn_implementation: As for transformers, if there is no model.
        device: Where a model that is made is; without CUDA the CPU.
        multi_gpu: Not needed.

    Raises:
        InvalidError: The checkpoint is damaged, or of another model.
        UnsupportedError: It quantizes more than layers.
    """
    if model is not None:
        return kt.load(model, model_dir)
    from transformers import AutoModelForCausalLM

    from kvant.transformers import reload_config

    config = reload_config(model_dir, trust_remote_code=trust_remote_code)
    options = {"trust_remote_code": trust_remote_code, "attn_implementation": attn_implementation}
    made: nn.Module = AutoModelForCausalLM.from_pretrained(os.fspath(model_dir), config=config, **options)
    return made if device == "cuda" and not torch.cuda.is_available() else made.to(device)


def save_params(
    model: nn.Module,
    model_type: str,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    export_dir: StrPath = "/tmp",
    quant_mode: QuantizationMode = QuantizationMode.eager_mode,
    compressed: bool = False,
    reorder: bool = True,
) -> None:
    """Writes `<model_type>.safetensors` for `load_params`. The file is Kvant's, which Quark does not read.

    Raises:
        UnsupportedError: Another mode.
    """
    _check_eager(quant_mode)
    directory = Path(export_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".kvant-") as temporary:
        file = Path(temporary) / f"{model_type}.safetensors"
        kt.save(model, file)
        os.replace(file, directory / file.name)


def load_params(
    model: nn.Module | None = None,
    json_path: StrPath = "",
    safetensors_path: StrPath = "",
    pth_path: StrPath = "",
    quant_mode: QuantizationMode = QuantizationMode.eager_mode,
    compressed: bool = False,
    reorder: bool = True,
) -> nn.Module:
    """Makes a float model the quantized one that `save_params` has written. `json_path` is not needed.

    Raises:
        UnsupportedError: Another mode.
        InvalidError: The file is of another model.
    """
    _check_eager(quant_mode)
    if model is None:
        raise unsupported("parameters without a model", "give the float model that was quantized")
    return kt.load(model, safetensors_path)


def _check_eager(mode: QuantizationMode) -> None:
    if mode is not QuantizationMode.eager_mode:
        raise unsupported("programs of torch.fx (fx_graph_mode)", "use torch.export.save and torch.export.load")


@dataclass
class JsonExporterConfig:
    """How `ModelExporter` writes checkpoints."""

    weight_merge_groups: list[list[str]] | None = None
    kv_cache_group: list[str] = field(default_factory=list)
    min_kv_scale: float = 0.0
    weight_format: str = "real_quantized"
    pack_method: str = "reorder"


@dataclass
class ExporterConfig:
    """How `ModelExporter` writes."""

    json_export_config: JsonExporterConfig
    onnx_export_config: Any = None


class ModelExporter:
    """Exports of older versions."""

    def __init__(self, config: ExporterConfig | None = None, export_dir: StrPath = "./export") -> None:
        self.config = JsonExporterConfig() if config is None else config.json_export_config
        self.export_dir = export_dir

    def export_safetensors_model(self, model: nn.Module, quant_config: Any = None, **more: Any) -> None:
        """As `export_safetensors`."""
        options = {"weight_format": self.config.weight_format, "pack_method": self.config.pack_method}
        export_safetensors(model, self.export_dir, **{**options, **more})

    def export_onnx_model(self, model: nn.Module, input_args: Any, **more: Any) -> Path:
        """As `export_onnx`."""
        return export_onnx(model, self.export_dir, input_args, **more)

    def export_gguf_model(self, model: nn.Module, tokenizer_path: StrPath, model_type: str) -> None:
        """As `export_gguf`."""
        export_gguf(model, self.export_dir, model_type, tokenizer_path)
