"""Quantization when transformers loads a model."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvant

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("scheme", ["W4A16", "int4:g32:zp"])
def test_weights_are_those_of_a_quantized_checkpoint(scheme: str, llama: Path, tmp_path: Path) -> None:
    from kvant.transformers import KvantConfig

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


def test_modules_are_excluded_and_overridden(llama: Path) -> None:
    from kvant.transformers import KvantConfig

    config = KvantConfig("int4:g32", exclude=["*.down_proj", "lm_head"], overrides={"*.up_proj": "int2:g32"})
    load = transformers.AutoModelForCausalLM.from_pretrained
    found, original = load(llama, quantization_config=config).state_dict(), load(llama).state_dict()
    layer = "model.layers.1.mlp.{}_proj.weight"
    assert torch.equal(found[layer.format("down")], original[layer.format("down")])
    assert torch.equal(found["lm_head.weight"], original["lm_head.weight"])
    errors = [(found[layer.format(n)] - original[layer.format(n)]).norm().item() for n in ("gate", "up")]
    assert 0 < 2 * errors[0] < errors[1]


def test_quantized_checkpoints_are_refused(llama: Path, tmp_path: Path) -> None:
    from kvant.transformers import KvantConfig, KvantQuantizer

    with pytest.raises(kvant.UnsupportedError, match="quantized already"):
        KvantQuantizer(KvantConfig("W4A16"), pre_quantized=True).validate_environment()
