"""What Quark has and Kvant has not: names and modules, each with the reason and another way.

Names can be imported, since scripts import more than they use; calling one, or making an object of it, raises the
exception. Modules that are absent raise it when they are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from kvant._errors import UnsupportedError
from kvant.compat._shared import unsupported

Reasons = dict[str, tuple[str, str]]


def _all(names: str, reason: str, remedy: str) -> Reasons:
    """One reason for several names."""
    return dict.fromkeys(names.split(), (reason, remedy))


_NATIVE = (
    "Quark's kernels for AMD GPUs are not there",
    "run the exported checkpoint with vLLM, which has such kernels",
)
_EXPORTERS = ("exports are functions", "use export_safetensors, export_onnx or kvant.torch.export")
_TRAINED = (
    "scales are trained without such a configuration",
    "use kvant.torch.quantize_(model, scheme, data=batches, trainable=True)",
)
_ROTATION = (
    "rotations are folded into checkpoints, not into models in place",
    "use kvant.quantize(checkpoint, scheme, algorithm='rotate', output=output)",
)

TORCH: Reasons = {
    "ModelPruner": ("Kvant does not prune", "prune the model with another tool, and quantize it then"),
    **dict.fromkeys(("RuntimeOptions", "disable_native_inference", "enable_native_inference"), _NATIVE),
    **dict.fromkeys(("RotationConfig", "OnlineRotationConfig", "QuaRotConfig"), _ROTATION),
    "AutoRoundConfig": (
        "AutoRound learns codes of checkpoints, not of models in place",
        "use kvant.quantize(checkpoint, scheme, algorithm='autoround', data=data, output=output), or GPTQConfig",
    ),
    "SVDQuantConfig": ("low-rank parts beside quantized layers are not there", "use GPTQConfig or AWQConfig"),
    "TwoBitScalarConfig": ("levels of two bits that follow from the weights are not there", "use int2 and GPTQConfig"),
    **dict.fromkeys(("QATSpec", "TQTSpec"), _TRAINED),
    **_all(
        "BFP16 BFloat16 FP4 FP6_E2M3 FP6_E3M2 FP8_E4M3 FP8_E5M2 FP8_E5M3 Float16 Int16 Int2 Int3 Int32 Int4 Int8 MX MX6"
        " MX9 UInt16 UInt2 UInt32 UInt4 UInt8",
        "dtypes are members of one class",
        "use Dtype",
    ),
    **_all(
        "AmdFP4GlobalScaleScheme AmdFP4Scheme BFP16Scheme FP4Block16ScaleE4M3Scheme FP8Scheme INT4_FP8Scheme"
        " Int4WeightAndActivationScheme Int4WeightOnlyPerChannelScheme Int4WeightOnlyScheme Int8Scheme MX6Scheme"
        " MX9Scheme MXFP4Scheme MXFP4WeightOnlyScheme MXFP4_FP8Scheme MXFP4_MXFP6E2M3Scheme MXFP6E2M3Scheme"
        " MXFP6E3M2Scheme PTPCFP8Scheme QuantizationScheme QuantizationSchemeCollection"
        " Uint4WeightOnlyPerChannelScheme Uint4WeightOnlyScheme",
        "schemes of templates are named",
        "use LLMTemplate.get_config(scheme), or LLMTemplate.register_scheme(name, layer_config) for one of your own",
    ),
    **dict.fromkeys(
        (
            *("BaseExporter", "BaseImporter", "CustomSafetensorsExporter", "DiffusersSafetensorsExporter"),
            *("GgufExporter", "OnnxExporter", "QuarkSafetensorsExporter", "SafetensorsExporter", "SafetensorsImporter"),
            "OnnxExporterConfig",
        ),
        _EXPORTERS,
    ),
    **_all(
        "from_float_and_dict get_name_and_info",
        "the file that Quark describes models in is not read",
        "use save_params and load_params, or kvant.torch.save and kvant.torch.load",
    ),
}
"""Names of quark.torch."""

ONNX: Reasons = {
    **_all(
        "CalibraterBase MinMaxCalibrater create_calibrator_float_scale create_calibrator_power_of_two"
        " write_calibration_table calibrate_model run_calibration fake_calibration save_tensor_hist_fig"
        " nearest_non_passthrough_ancestor_mapping update_tensors_range_with_dependencies",
        "ranges are found while a graph is quantized, and not on their own",
        "use ModelQuantizer with a calibration_data_reader",
    ),
    **_all(
        "AutoSearch AutoSearchPro SearchSpace generate_all_configs get_auto_search_config",
        "a search over configurations is not there",
        "use kvant.sensitivity, which searches for a mix of types",
    ),
    **_all(
        "VitisExtendedQuantizer VitisQuantFormat VitisQuantType",
        "these are names of the quantizer before Quark",
        "use ModelQuantizer, ExtendedQuantFormat and ExtendedQuantType",
    ),
    "QuantizationMode": ("the choice follows from QuantFormat", "use QuantFormat"),
    "dump_model": (
        "the values of all tensors are not written",
        "use kvant.evaluate(model, data, reference=float_model)",
    ),
    "get_library_path": (
        "Quark's operators for onnxruntime are not there",
        "quantize with Kvant, whose graphs have standard operators",
    ),
    **_all(
        "add_method_to_subclasses get_data_reader parse_data_type parse_enum",
        "it is a helper of configurations and readers",
        "use their classes",
    ),
}
"""Names of quark.onnx."""

MODULES: Reasons = {
    **_all(
        "common experimental integrations online_quantization skills"
        " torch.integrations torch.kernel torch.extensions torch.quantization.cache_integration"
        " torch.quantization.constants torch.quantization.debug torch.quantization.graph"
        " torch.quantization.inverse_quantizer torch.quantization.model_transformation torch.quantization.nn"
        " torch.quantization.post_calibration torch.quantization.tensor_quantize torch.quantization.utils"
        " torch.export.constants torch.export.json_export torch.export.main_export torch.export.main_import"
        " torch.export.nn torch.export.onnx torch.export.prequantized_config_converter"
        " torch.export.prequantized_layer_handler torch.export.qat_export_passes torch.export.safetensors"
        " torch.export.utils torch.quantization.config.config_verification torch.quantization.config.utils"
        " onnx.algorithm onnx.operators onnx.optimizations onnx.postprocess onnx.preprocess onnx.quantizers onnx.utils"
        " onnx.calibration.calib_utils onnx.calibration.calibrate onnx.calibration.calibrators"
        " onnx.calibration.collectors onnx.calibration.interface onnx.quantization.input_check"
        " onnx.quantization.output_eval onnx.quantization.config.maps onnx.quantization.config.utils",
        "it is no part of the interface that Kvant has",
        "use ModelQuantizer and its configurations, or kvant.torch and kvant.quantize",
    ),
    "contrib": ("Quark's evaluations are not there", "use kvant.evaluate, or lm_eval --model kvant"),
    "version": ("the version is that of Kvant", "use kvant.__version__"),
    "shapeshifter": ("its passes over graphs are not there", "use the passes of kvant.quantize: enable_pass=..."),
    "torch.algorithm": ("algorithms are named in configurations", "give them in QConfig.algo_config"),
    "torch.pruning": TORCH["ModelPruner"],
    "torch.utils": (
        "Quark's loaders of models and data are not there",
        "load models with transformers, and give batches of any kind as the dataloader",
    ),
    **_all(
        "torch.quantization.file2file_quantization torch.quantization.file2file_rotation"
        " torch.quantization.file2file_utils torch.quantization.weight_convert",
        "files are not quantized shard by shard",
        "use kvant.quantize(checkpoint, scheme, output=output), which does not hold the model in memory",
    ),
    "torch.quantization.config.algo_configs": (
        "layers and pairs of algorithms are found by running the model, not in lists of families",
        "leave scaling_layers and inside_layer_modules out, or give your own",
    ),
    "torch.export.gguf_export": (
        "a model in memory cannot be written as a GGUF file",
        "use kvant.quantize(model, 'Q4_K_M')",
    ),
    "onnx.tools": ("Quark's tools for graphs are not there", "use kvant.inspect, kvant.convert and kvant.verify"),
    "onnx.quantization.auto_search": ONNX["AutoSearch"],
}
"""Modules below `quark`; those inside them are absent too."""


class _AbsentModuleError(UnsupportedError, ImportError):
    """A module of Quark that Kvant does not have."""


class _Finder(MetaPathFinder):
    """Says why modules are absent, once no other finder has found one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for modules that Quark does not have either.

        Raises:
            UnsupportedError: Kvant does not have the module.
        """
        name = fullname.removeprefix(f"{__package__}.")
        if name == fullname:
            return None
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            known = MODULES.get(".".join(parts[:length]))
            if known is not None:
                raise _AbsentModuleError(f"quark.{name} is absent: {known[0]}", kind="unsupported", remedy=known[1])
        return None


def refuse_modules() -> None:
    """Makes imports of absent modules say why."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


@cache
def _stand_in(name: str, reason: str, remedy: str) -> type:
    def refuse(*_: Any, **__: Any) -> Any:
        raise unsupported(f"{name} is not supported: {reason}", remedy)

    return type(name, (), {"__new__": refuse, "__doc__": f"Not supported: {reason}.", "__module__": __name__})


def stand_ins(reasons: Reasons) -> Callable[[str], Any]:
    """The `__getattr__` of a module: what stands for absent names."""

    def of_name(name: str) -> Any:
        if name not in reasons:
            raise AttributeError(f"Quark's interface has no {name!r} here")
        return _stand_in(name, *reasons[name])

    return of_name


torch_name = stand_ins(TORCH)
onnx_name = stand_ins(ONNX)


def helper_name(name: str) -> Any:
    """The `__getattr__` of a module of Quark's helpers."""
    if name.startswith("_"):
        raise AttributeError(name)
    return _stand_in(name, "Quark's helpers are not there", "use ModelQuantizer, or the package onnx")
