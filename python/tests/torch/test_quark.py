"""Codes and outputs against AMD Quark's, where it is installed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("quark.torch")

from quark_configs import quark_biases, quark_schemes  # noqa: E402
from torch import nn  # noqa: E402

import kvant.torch as kt  # noqa: E402

SCHEMES = ("int8", "int8 channel", "int8 static", "int8 dynamic", "fp8", "fp8 static", "int4", "mxfp4")

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
@pytest.mark.parametrize("name", SCHEMES)
def test_frozen_weights_and_outputs_equal_quarks(kind: str, name: str) -> None:
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import QConfig, QLayerConfig

    is_lookup = kind.startswith("Embedding")
    scheme, weight, given = quark_schemes(1 if kind == "ConvTranspose2d" else 0, 4)[name]
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


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("Linear", "float32"), ("Conv2d", "float32"), ("ConvTranspose2d", "float32"), ("Linear", "bfloat16")],
)
@pytest.mark.parametrize("bias", quark_biases())
def test_frozen_biases_and_outputs_equal_quarks(bias: str, kind: str, dtype: str) -> None:
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import QConfig, QLayerConfig

    scheme, weight, given = quark_schemes(0, 4)["int8 static"]
    torch.manual_seed(5)
    make, sample = LAYERS[kind]
    model = Wrapped(make()).eval().to(getattr(torch, dtype))
    model.layer.bias.data.normal_(0, 2)
    batches = [sample().to(model.layer.weight.dtype) for _ in range(2)]
    theirs, before = copy.deepcopy(model), model.layer.bias.detach().clone()
    config = QConfig(QLayerConfig(weight=weight, input_tensors=given, bias=quark_biases()[bias]))
    quantizer = ModelQuantizer(config)
    theirs = quantizer.freeze(quantizer.quantize_model(theirs, batches))
    ours = kt.quantize_(model, scheme, batches, bias=bias)
    x = sample().to(before.dtype)
    thawed = ours(x)
    kt.freeze(ours)
    assert torch.equal(ours.layer.bias, theirs.layer.bias), "biases"
    if bias.startswith(("int8:tensor", "int4")):
        assert not torch.equal(ours.layer.bias, before)
    assert torch.equal(ours(x), theirs(x)), "outputs"
    assert torch.equal(ours(x), thawed)


@pytest.mark.parametrize("name", SCHEMES)
def test_exports_of_quark_load_with_its_outputs(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization.config.config import QConfig, QLayerConfig

    def llama(seed: int) -> Any:
        torch.manual_seed(seed)
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, **sizes)).eval()

    batch = {"input_ids": torch.arange(60).reshape(2, 30)}
    _, weight, given = quark_schemes(0, 4)[name]
    config = QConfig(global_quant_config=QLayerConfig(weight=weight, input_tensors=given), exclude=["lm_head"])
    quantizer = ModelQuantizer(config)
    theirs = quantizer.freeze(quantizer.quantize_model(llama(1), [batch]))
    expected = theirs(**batch).logits.detach()
    export_safetensors(theirs, str(tmp_path / "out"))
    ours = kt.load(llama(2), tmp_path / "out")
    assert torch.equal(ours(**batch).logits, expected)
