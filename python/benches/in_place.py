"""Time and memory of static int8 quantization of a ResNet-50 in place with 32 pictures, beside amd-quark's.

Ranges of activations are found by minimum and maximum, and as a percentile of a histogram.


OMP_NUM_THREADS=2 python benches/in_place.py
"""

import dataclasses
from typing import Any

import torch
import transformers
from peers import compare, measured


def network() -> torch.nn.Module:
    """A ResNet-50 of random weights."""
    torch.manual_seed(0)
    return transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()


def kvant_s(model: torch.nn.Module, pictures: list[torch.Tensor], ranges: str) -> None:
    """Quantizes with Kvant."""
    import kvant.torch

    observer = {"minmax": "", "percentile": ":percentile"}[ranges]
    kvant.torch.quantize_(model, f"int8:tensor+int8:tensor{observer}!static", pictures)
    kvant.torch.freeze(model)


def quark_s(model: torch.nn.Module, pictures: list[torch.Tensor], ranges: str) -> None:
    """The same with amd-quark."""
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import QConfig, QLayerConfig, QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from quark.torch.quantization.observer import PerTensorMinMaxObserver, PerTensorPercentileObserver

    weight = QTensorConfig(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        symmetric=True,
        is_dynamic=False,
        round_method=RoundType.half_even,
        scale_type=ScaleType.float,
    )
    observer = {"minmax": PerTensorMinMaxObserver, "percentile": PerTensorPercentileObserver}[ranges]
    activation = dataclasses.replace(weight, observer_cls=observer)
    quantizer = ModelQuantizer(QConfig(global_quant_config=QLayerConfig(weight=weight, input_tensors=activation)))
    quantizer.freeze(quantizer.quantize_model(model, pictures))


def measure(name: str) -> dict[str, Any]:
    """Measures a tool."""
    tool, ranges = name.split(" ")
    quantize = {"kvant": kvant_s, "quark": quark_s}[tool]
    model = network()
    pictures = [torch.randn(4, 3, 224, 224) for _ in range(8)]
    with torch.no_grad():
        model(pictures[0])
    # What the first use of either imports and compiles does not count.
    small = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    quantize(small, [picture[:1, :, :8, :8] for picture in pictures], ranges)
    return measured(lambda: quantize(model, pictures, ranges))


if __name__ == "__main__":
    names = tuple(f"{tool} {ranges}" for ranges in ("minmax", "percentile") for tool in ("kvant", "quark"))
    compare(__file__, measure, names, rounds=3)
