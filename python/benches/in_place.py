"""Time and memory of static int8 quantization of a ResNet-50 in place with 32 pictures, beside amd-quark's.


OMP_NUM_THREADS=2 python benches/in_place.py
"""

from typing import Any

import torch
import transformers
from peers import compare, measured


def network() -> torch.nn.Module:
    """A ResNet-50 of random weights."""
    torch.manual_seed(0)
    return transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()


def kvant_s(model: torch.nn.Module, pictures: list[torch.Tensor]) -> None:
    """Quantizes with Kvant."""
    import kvant.torch

    kvant.torch.quantize_(model, "int8:tensor+int8:tensor!static", pictures)
    kvant.torch.freeze(model)


def quark_s(model: torch.nn.Module, pictures: list[torch.Tensor]) -> None:
    """The same with amd-quark."""
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import QConfig, QLayerConfig, QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from quark.torch.quantization.observer import PerTensorMinMaxObserver

    spec = QTensorConfig(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        symmetric=True,
        is_dynamic=False,
        round_method=RoundType.half_even,
        scale_type=ScaleType.float,
    )
    quantizer = ModelQuantizer(QConfig(global_quant_config=QLayerConfig(weight=spec, input_tensors=spec)))
    quantizer.freeze(quantizer.quantize_model(model, pictures))


def measure(name: str) -> dict[str, Any]:
    """Measures a tool."""
    tool = {"kvant": kvant_s, "quark": quark_s}[name]
    model = network()
    pictures = [torch.randn(4, 3, 224, 224) for _ in range(8)]
    with torch.no_grad():
        model(pictures[0])
    # What the first use of either imports and compiles does not count.
    small = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    tool(small, [picture[:1, :, :8, :8] for picture in pictures])
    return measured(lambda: tool(model, pictures))


if __name__ == "__main__":
    compare(__file__, measure, ("kvant", "quark"), rounds=3)
