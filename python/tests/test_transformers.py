"""Quantization when transformers loads a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvant

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvant.torch as kt  # noqa: E402
from kvant.transformers import KvantConfig, KvantQuantizer, reload_config  # noqa: E402


@pytest.mark.parametrize("scheme", ["W4A16", "int4:g32:zp"])
def test_weights_are_those_of_a_quantized_checkpoint(scheme: str, llama: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, scheme, output=tmp_path / "quantized", progress=False)
    kvant.convert(tmp_path / "quantized", "float", output=tmp_path / "float", progress=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    found = load(llama, quantization_config=KvantConfig(scheme), dtype=torch.bfloat16)
    expected = load(tmp_path / "float", dtype=torch.bfloat16).state_dict()
    original = load(llama, dtype=torch.bfloat16).state_dict()
    layer = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(found.state_dict()[layer], original[layer])
    for name, value in found.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert found.is_quantized and found.config.quantization_config.scheme == scheme
    with pytest.raises(ValueError, match="not serializable"), pytest.warns(kvant.KvantWarning, match="kvant.quantize"):
        found.save_pretrained(tmp_path / "again")


def test_modules_are_excluded_and_overridden(llama: Path) -> None:
    config = KvantConfig("int4:g32", exclude=["*.down_proj", "lm_head"], overrides={"*.up_proj": "int2:g32"})
    load = transformers.AutoModelForCausalLM.from_pretrained
    found, original = load(llama, quantization_config=config).state_dict(), load(llama).state_dict()
    layer = "model.layers.1.mlp.{}_proj.weight"
    assert torch.equal(found[layer.format("down")], original[layer.format("down")])
    assert torch.equal(found["lm_head.weight"], original["lm_head.weight"])
    errors = [(found[layer.format(n)] - original[layer.format(n)]).norm().item() for n in ("gate", "up")]
    assert 0 < 2 * errors[0] < errors[1]


def test_quantized_checkpoints_are_refused(llama: Path) -> None:
    with pytest.raises(kvant.UsageError, match="no quantized layers"):
        transformers.AutoModelForCausalLM.from_pretrained(llama, quantization_config=KvantConfig())
    with pytest.raises(kvant.UnsupportedError, match="quantized already"):
        KvantQuantizer(KvantConfig("W4A16"), pre_quantized=True).validate_environment()


def same_outputs(one: Any, other: Any, **inputs: Any) -> bool:
    with torch.no_grad():
        return torch.equal(one(**inputs)[0], other(**inputs)[0])


TOKENS = {"input_ids": torch.arange(5, 69).reshape(2, 32)}


@pytest.mark.parametrize(
    ("scheme", "format"),
    [
        ("mx6", "fake"),
        ("mx9", "fake"),
        ("bfp16", "fake"),
        ("mxint8+mxint8!dynamic", "fake"),
        ("int4:g32+int8:channel!dynamic", "fake"),
        ("mxfp4", "quark"),
        ("int4:g32", "quark"),
        ("W8A8", "compressed-tensors"),
        ("int4:g32", "compressed-tensors"),
    ],
)
def test_checkpoints_are_restored(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: str, format: str
) -> None:
    kvant.quantize(llama, scheme, format=format, output=tmp_path / "out", progress=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    expected = kt.quantize_(load(llama, dtype=torch.bfloat16), scheme)
    caplog.clear()
    found = load(tmp_path / "out", config=reload_config(tmp_path / "out"), dtype=torch.bfloat16)
    assert "weight" not in caplog.text, "nothing is reported as missing or unexpected"
    assert same_outputs(found, expected, **TOKENS)
    schemes = {name: module.scheme_text for name, module in kt.quantized_modules(expected)}
    assert {name: module.scheme_text for name, module in kt.quantized_modules(found)} == schemes
    with pytest.raises(ValueError, match="not serializable"), pytest.warns(kvant.KvantWarning, match="torch.export"):
        found.save_pretrained(tmp_path / "again")


def test_activations_are_restored_where_floats_would_load(llama: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, "mx6", output=tmp_path / "out", progress=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    found = load(tmp_path / "out", quantization_config=KvantConfig())
    plain = load(tmp_path / "out")
    assert torch.equal(found.lm_head.weight, plain.lm_head.weight)
    assert torch.equal(found.model.layers[0].mlp.up_proj.weight, plain.model.layers[0].mlp.up_proj.weight)
    assert not same_outputs(found, plain, **TOKENS)
    base = transformers.AutoModel.from_pretrained(tmp_path / "out", quantization_config=KvantConfig())
    assert same_outputs(base, found.model, **TOKENS)


def test_restored_models_are_exported_to_floats(llama: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, "int4:g32+int8:channel!dynamic", output=tmp_path / "out", progress=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    found = load(tmp_path / "out", config=reload_config(tmp_path / "out"))
    again = kt.export(found, tmp_path / "again", "fake")
    assert same_outputs(load(again, config=reload_config(again)), found, **TOKENS)
    assert torch.equal(load(again).model.layers[0].mlp.up_proj.weight, found.model.layers[0].mlp.up_proj.weight)


def test_checkpoints_that_only_kvant_reads_load_by_themselves(llama: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, "W8A8", format="tensors", output=tmp_path / "out", progress=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    expected = kt.quantize_(load(llama, dtype=torch.bfloat16), "W8A8")
    assert same_outputs(load(tmp_path / "out", dtype=torch.bfloat16), expected, **TOKENS)


def images() -> list[dict[str, Any]]:
    torch.manual_seed(1)
    return [{"pixel_values": torch.randn(2, 3, 32, 32)} for _ in range(2)]


@pytest.mark.parametrize("format", ["quark", "fake"])
@pytest.mark.parametrize(
    "scheme", ["int8:channel", "int8:channel+int8:tensor!static", "e4m3:channel+e4m3:tensor!dynamic"]
)
def test_convolutions_are_restored(tmp_path: Path, scheme: str, format: str) -> None:
    torch.manual_seed(2)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = kt.quantize_(transformers.ResNetForImageClassification(config).eval(), scheme, images())
    output = kt.export(model, tmp_path / "out", format)
    found = transformers.AutoModelForImageClassification.from_pretrained(output, config=reload_config(output))
    assert same_outputs(found, model, **images()[1])
    assert any(isinstance(module, kt.QuantizedConv2d) for module in found.modules())


def test_embeddings_and_their_untied_heads_are_restored(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    kt.freeze(kt.quantize_(model, overrides={"transformer.wte": "int8:channel"}))
    output = kt.export(model, tmp_path / "out")
    found = transformers.AutoModelForCausalLM.from_pretrained(output, config=reload_config(output))
    assert same_outputs(found, model, **TOKENS)
    assert isinstance(found.transformer.wte, kt.QuantizedEmbedding)


def test_other_models_are_refused(llama: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, "mx6", output=tmp_path / "out", progress=False)
    config = reload_config(tmp_path / "out")
    config.num_hidden_layers = 2
    with pytest.raises(kvant.InvalidError, match="no layer model.layers.2"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", config=config)
