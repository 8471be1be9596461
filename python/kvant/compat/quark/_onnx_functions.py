"""`quantize_static` and `quantize_dynamic` of Quark, which `ModelQuantizer` calls there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvant._types import StrPath
from kvant.compat.onnxruntime._types import CalibrationMethod, QuantFormat, QuantType
from kvant.compat.quark._onnx import ModelQuantizer
from kvant.compat.quark._onnx_configuration import Config, QuantizationConfig

if TYPE_CHECKING:
    import onnx

_FIELDS = QuantizationConfig.__dataclass_fields__


def _configured(given: dict[str, Any]) -> ModelQuantizer:
    """The quantizer of those arguments that configurations have; None stands for the default."""
    known = {name: value for name, value in given.items() if name in _FIELDS and value is not None}
    return ModelQuantizer(Config(QuantizationConfig(**known)))


def quantize_static(
    model_input: StrPath | onnx.ModelProto,
    model_output: StrPath | None = None,
    calibration_data_reader: Any = None,
    calibration_data_path: str | None = None,
    quant_format: Any = QuantFormat.QDQ,
    calibrate_method: Any = CalibrationMethod.MinMax,
    input_nodes: list[str] | None = None,
    output_nodes: list[str] | None = None,
    op_types_to_quantize: list[str] | None = None,
    extra_op_types_to_quantize: list[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
    subgraphs_to_exclude: list[Any] | None = None,
    optimize_model: bool = True,
    use_external_data_format: bool = False,
    execution_providers: list[str] | None = None,
    enable_dpu: bool = False,
    enable_npu_cnn: bool = False,
    enable_npu_transformer: bool = False,
    specific_tensor_precision: bool = False,
    convert_fp16_to_fp32: bool = False,
    convert_nchw_to_nhwc: bool = False,
    debug_mode: bool = False,
    crypto_mode: bool = False,
    include_cle: bool = True,
    include_sq: bool = False,
    include_rotation: bool = False,
    include_fast_ft: bool = False,
    include_auto_mp: bool = False,
    print_summary: bool = True,
    extra_options: dict[str, Any] | None = None,
) -> onnx.ModelProto | None:
    """Quantizes a graph: as `ModelQuantizer` with the fields of an older configuration.

    `enable_dpu` is the older name of `enable_npu_cnn`.

    Raises:
        As `ModelQuantizer.quantize_model`.
    """
    given = {**locals(), "enable_npu_cnn": enable_npu_cnn or enable_dpu}
    return _configured(given).quantize_model(model_input, model_output, calibration_data_reader, calibration_data_path)


def quantize_dynamic(
    model_input: StrPath | onnx.ModelProto,
    model_output: StrPath | None = None,
    op_types_to_quantize: list[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
    subgraphs_to_exclude: list[Any] | None = None,
    use_external_data_format: bool = False,
    debug_mode: bool = False,
    crypto_mode: bool = False,
    extra_options: dict[str, Any] | None = None,
) -> onnx.ModelProto | None:
    """Quantizes a graph with scales of activations that are found while it runs.

    Raises:
        As `ModelQuantizer.quantize_model`.
    """
    return _configured({**locals(), "use_dynamic_quant": True}).quantize_model(model_input, model_output)
