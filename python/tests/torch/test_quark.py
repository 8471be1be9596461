"""Codes and outputs against AMD Quark's, where it is installed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("quark.torch")

from torch import nn  # noqa: E402

import kvant.torch as kt  # noqa: E402


def tensor_config(**more: Any) -> Any:
    """A tensor's configuration in Quark."""
    from quark.torch.quantization.config.config import QTensorConfig
    from quark.torch.quantization.config.type import RoundType, ScaleType

    return QTensorConfig(round_method=RoundType.half_even, scale_type=ScaleType.float, **more)


def quark_schemes(axis: int) -> dict[str, tuple[str, Any, Any]]:
    """Our scheme, and Quark's configurations of weight and input."""
    from quark.torch.quantization.config.type import Dtype, QSchemeType
    from quark.torch.quantization.observer import (
        PerBlockMXObserver,
        PerChannelMinMaxObserver,
        PerGroupMinMaxObserver,
        PerTensorMinMaxObserver,
    )

    whole = {"qscheme": QSchemeType.per_tensor, "observer_cls": PerTensorMinMaxObserver, "symmetric": True}
    int8 = tensor_config(dtype=Dtype.int8, is_dynamic=False, **whole)
    int8_dynamic = tensor_config(dtype=Dtype.int8, is_dynamic=True, **whole)
    fp8 = tensor_config(dtype=Dtype.fp8_e4m3, is_dynamic=False, **whole)
    channel = tensor_config(
        dtype=Dtype.int8,
        is_dynamic=False,
        qscheme=QSchemeType.per_channel,
        observer_cls=PerChannelMinMaxObserver,
        symmetric=True,
        ch_axis=axis,
    )
    int4 = tensor_config(
        dtype=Dtype.int4,
        is_dynamic=False,
        qscheme=QSchemeType.per_group,
        observer_cls=PerGroupMinMaxObserver,
        symmetric=True,
        ch_axis=1 - axis if axis else 1,
        group_size=4,
    )
    mxfp4 = tensor_config(
        dtype=Dtype.fp4,
        is_dynamic=False,
        qscheme=QSchemeType.per_group,
        observer_cls=PerBlockMXObserver,
        scale_format="e8m0",
        scale_calculation_mode="even",
        ch_axis=1 - axis if axis else 1,
        group_size=32,
    )
    return {
        "int8": ("int8:tensor", int8, None),
        "int8 channel": ("int8:channel", channel, None),
        "int8 static": ("int8:tensor+int8:tensor!static", int8, int8),
        "int8 dynamic": ("int8:tensor+int8:tensor!dynamic", int8, int8_dynamic),
        "fp8": ("e4m3:tensor", fp8, None),
        "fp8 static": ("e4m3:tensor+e4m3:tensor!static", fp8, fp8),
        "int4 groups": ("int4:g4", int4, None),
        "mxfp4": ("e2m1:g32:e8m0", mxfp4, None),
    }


LAYERS: dict[str, tuple[Any, Any]] = {
    "Linear": (lambda: nn.Linear(64, 13), lambda: torch.randn(3, 7, 64)),
    "Conv2d": (lambda: nn.Conv2d(32, 5, (3, 2), padding=1), lambda: torch.randn(2, 32, 7, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(32, 6, 3, stride=2), lambda: torch.randn(2, 32, 4, 3)),
    "Embedding": (lambda: nn.Embedding(11, 64), lambda: torch.randint(0, 11, (3, 5))),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(11, 64), lambda: torch.randint(0, 11, (3, 5))),
}


class Wrapped(nn.Module):
    """A layer in a model."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", list(quark_schemes(0)))
def test_frozen_weights_and_outputs_equal_quarks(kind: str, name: str) -> None:
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import QConfig, QLayerConfig

    is_lookup = kind.startswith("Embedding")
    scheme, weight, given = quark_schemes(1 if kind == "ConvTranspose2d" else 0)[name]
    if is_lookup and given is not None:
        pytest.skip("indices are not quantized")
    torch.manual_seed(11)
    make, sample = LAYERS[kind]
    model = Wrapped(make()).eval()
    batches = [sample() for _ in range(2)]
    theirs, before = copy.deepcopy(model), model.layer.weight.detach().clone()
    layer = QLayerConfig(weight=weight, input_tensors=given)
    of_type = {type(model.layer): layer}
    config = QConfig(global_quant_config=layer, layer_type_quant_config=of_type)
    quantizer = ModelQuantizer(config)
    theirs = quantizer.quantize_model(theirs, batches)
    theirs = quantizer.freeze(theirs)
    ours = kt.quantize_(model, scheme, batches, layer_types={kind: scheme} if is_lookup else None)
    kt.freeze(ours)
    assert torch.equal(ours.layer.weight, theirs.layer.weight), "weights"
    assert not torch.equal(ours.layer.weight, before)
    x = sample()
    assert torch.equal(ours(x), theirs(x)), "outputs"
