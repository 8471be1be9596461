"""Quantize PyTorch models in place.

* `quantize_` turns layers of any model into quantized ones: weights, inputs, outputs; static, dynamic or weight-only.
* `freeze` rounds their weights for good, `save` and `load` keep a quantized model, `export` writes a checkpoint,
  `export_onnx` an ONNX graph.
* `capture_statistics` writes statistics of layers' inputs, with which `kvant.quantize` finds static scales.
* `fake_quantize` is the operator underneath: `torch.ops.kvant.fake_quantize`, for torch.compile, torch.export and
  training (straight-through).

Schemes are those of the command line (`kvant list schemes`), for example `int4:g128`, `W8A8` or
`int8:tensor+int8:tensor!static`.
"""

from __future__ import annotations

from kvant._errors import missing_extra

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_extra(error, "kvant.torch", "torch") from error

from kvant.torch._algorithms import LayerRecipe, Observing
from kvant.torch._export import export, load, save
from kvant.torch._modules import (
    QuantizedConv1d,
    QuantizedConv2d,
    QuantizedConv3d,
    QuantizedConvTranspose2d,
    QuantizedEmbedding,
    QuantizedEmbeddingBag,
    QuantizedLinear,
    QuantizedModule,
    TensorQuantizer,
    quantized_modules,
)
from kvant.torch._onnx import export_onnx
from kvant.torch._ops import fake_quantize
from kvant.torch._quantize import freeze, quantize_
from kvant.torch._statistics import capture_statistics

__all__ = [
    "LayerRecipe",
    "Observing",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedConv3d",
    "QuantizedConvTranspose2d",
    "QuantizedEmbedding",
    "QuantizedEmbeddingBag",
    "QuantizedLinear",
    "QuantizedModule",
    "TensorQuantizer",
    "capture_statistics",
    "export",
    "export_onnx",
    "fake_quantize",
    "freeze",
    "load",
    "quantize_",
    "quantized_modules",
    "save",
]
