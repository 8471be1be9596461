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


def quarks_export(model: Any, config: Any, batch: dict[str, Any], directory: Path) -> Any:
    """The outputs of a model that AMD Quark has quantized and exported."""
    from quark.torch import ModelQuantizer, export_safetensors

    quantizer = ModelQuantizer(config)
    theirs = quantizer.freeze(quantizer.quantize_model(model, [batch]))
    with torch.no_grad():
        expected = theirs(**batch).logits
    export_safetensors(theirs, str(directory))
    return expected


def opt(seed: int) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.OPTConfig(vocab_size=64, max_position_embeddings=32, word_embed_proj_dim=32, **sizes)
    model = transformers.OPTForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_()
    return model


@pytest.mark.parametrize("bias", ["int8:tensor", "int8:tensor:zp", "int8:channel", "e4m3:tensor"])
def test_exported_biases_equal_quarks(bias: str, tmp_path: Path) -> None:
    from quark.torch.quantization.config.config import QConfig, QLayerConfig
    from safetensors.torch import load_file

    import kvant

    batch = {"input_ids": torch.arange(32).reshape(2, 16)}
    _, weight, _ = quark_schemes(0, 4)["int8"]
    config = QConfig(QLayerConfig(weight=weight, bias=quark_biases()[bias]), exclude=["lm_head"])
    expected = quarks_export(opt(1), config, batch, tmp_path / "theirs")
    ours = kt.quantize_(opt(1), "int8:tensor", bias=bias)
    kt.export(ours, tmp_path / "ours")
    made, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    layers = [name for name in theirs if ".layers.0." in name and "norm" not in name]
    assert any(name.endswith(".bias_scale") for name in layers)
    for name in layers:
        assert made[name].dtype == theirs[name].dtype, name
        assert torch.equal(made[name].float(), theirs[name].float()), name
    for name in ("ours", "theirs"):
        assert torch.equal(kt.load(opt(2), tmp_path / name)(**batch).logits, expected), name
    # The same for loaders that read floats.
    kvant.convert(tmp_path / "theirs", "float", output=tmp_path / "float", progress=False)
    floats = load_file(tmp_path / "float" / "model.safetensors")
    name = "model.decoder.layers.0.fc1.bias"
    assert torch.equal(floats[name].float(), kt.load(opt(2), tmp_path / "theirs").get_parameter(name).detach())


def test_quark_imports_exported_biases(tmp_path: Path) -> None:
    from quark.torch import import_model_from_safetensors

    batch = {"input_ids": torch.arange(32).reshape(2, 16)}
    model = kt.quantize_(opt(1), "int8:tensor", bias="int8:tensor")
    kt.export(model, tmp_path / "out")
    theirs = import_model_from_safetensors(opt(2), str(tmp_path / "out"))
    with torch.no_grad():
        assert torch.allclose(theirs(**batch).logits, model(**batch).logits, atol=1e-5)


@pytest.mark.parametrize("name", ["int4 channel", "int4", "int4 static", "mxfp4", "mxfp4 static"])
def test_exported_convolutions_and_embeddings_equal_quarks(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from quark.torch.quantization.config.config import QConfig, QLayerConfig
    from safetensors.torch import load_file

    # Blocks of MX have 32 values.
    width = 32 if name.startswith("mx") else 8

    def resnet(seed: int) -> Any:
        torch.manual_seed(seed)
        config = transformers.ResNetConfig(
            num_channels=width,
            embedding_size=width,
            hidden_sizes=[width, 2 * width],
            depths=[1, 1],
            layer_type="basic",
            num_labels=width,
        )
        return transformers.ResNetForImageClassification(config).eval()

    torch.manual_seed(3)
    batch = {"pixel_values": torch.randn(1, width, 32, 32)}
    scheme, weight, given = quark_schemes(0, 8)[name]
    config = QConfig(QLayerConfig(weight=weight, input_tensors=given))
    expected = quarks_export(resnet(1), config, batch, tmp_path / "theirs")
    ours = kt.quantize_(resnet(1), scheme, [batch], channels_last=False)
    kt.export(ours, tmp_path / "ours")
    made, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert made.keys() == theirs.keys()
    for tensor in theirs:
        assert torch.equal(made[tensor].float(), theirs[tensor].float()), tensor
        assert made[tensor].dtype == theirs[tensor].dtype, tensor
    for directory in ("ours", "theirs"):
        with torch.no_grad():
            assert torch.equal(kt.load(resnet(2), tmp_path / directory)(**batch).logits, expected), directory


def test_exported_embeddings_of_quark_load(tmp_path: Path) -> None:
    from quark.torch.quantization.config.config import QConfig, QLayerConfig
    from safetensors.torch import load_file

    batch = {"input_ids": torch.arange(32).reshape(2, 16)}
    scheme, weight, _ = quark_schemes(0, 16)["int4"]
    layer = QLayerConfig(weight=weight)
    config = QConfig(layer, layer_type_quant_config={nn.Embedding: layer}, exclude=["lm_head"])
    expected = quarks_export(opt(1), config, batch, tmp_path / "theirs")
    ours = kt.quantize_(opt(1), scheme, layer_types={nn.Embedding: scheme}, exclude=["*embed_positions"])
    kt.export(ours, tmp_path / "ours")
    made, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    for tensor in (name for name in theirs if "embed_tokens" in name):
        assert torch.equal(made[tensor], theirs[tensor]), tensor
    loaded = kt.load(opt(2), tmp_path / "theirs")
    assert torch.equal(loaded(**batch).logits, expected)
    assert loaded.model.decoder.embed_tokens.scheme_text == scheme
