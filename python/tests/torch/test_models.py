"""Models of transformers quantized in place, and checkpoints of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402


def llama_model(path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def tokens() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    return [{"input_ids": torch.randint(0, 2000, (2, 64))} for _ in range(2)]


@pytest.mark.parametrize(
    ("scheme", "format"),
    [
        ("int4:g32", "quark"),
        ("int4:g32", "compressed-tensors"),
        ("uint4:g32:zp", "awq"),
        ("W8A8", "compressed-tensors"),
    ],
)
def test_exported_checkpoints_are_those_of_the_file_flow(llama: Path, tmp_path: Path, scheme: str, format: str) -> None:
    from safetensors.torch import load_file

    model = kt.quantize_(llama_model(llama), scheme)
    output = kt.export(model, tmp_path / "torch", format)
    kvant.quantize(llama, scheme, format=format, output=tmp_path / "files", progress=False)
    ours, expected = (load_file(path / "model.safetensors") for path in (output, tmp_path / "files"))
    assert not ours.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name
    assert kvant.verify(output)
    with pytest.raises(kvant.UsageError, match="exists already"):
        kt.export(model, output)


def test_static_activations_are_exported(llama: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = kt.quantize_(llama_model(llama), "fp8", tokens())
    output = kt.export(model, tmp_path / "out", "quark")
    scale = load_file(output / "model.safetensors")["model.layers.0.mlp.up_proj.input_scale"]
    assert float(scale) == pytest.approx(float(model.model.layers[0].mlp.up_proj.input_quantizer.scale), rel=0.01)
    assert kvant.verify(output)


def test_exported_models_load_in_transformers(llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    model = kt.quantize_(llama_model(llama), "int4:g32")
    output = kt.export(model, tmp_path / "out", "compressed-tensors")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(output, dtype=torch.bfloat16).eval()
    batch = tokens()[0]
    with torch.no_grad():
        ours, theirs = model(**batch).logits.float(), loaded(**batch).logits.float()
    assert (ours - theirs).abs().max() < 0.05 * ours.abs().max()


def randomized(model: Any) -> Any:
    """The model with other weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.mark.parametrize(
    ("scheme", "format"),
    [
        ("int4:g32", "quark"),
        ("mxfp4", "quark"),
        ("fp8", "quark"),
        ("nvfp4", "quark"),
        ("int8:channel+-+int8:tensor!static", "quark"),
        ("int4:g32", "compressed-tensors"),
        ("FP8", "compressed-tensors"),
        ("W8A8", "compressed-tensors"),
        ("mx6", "fake"),
        ("int8", "fake"),
    ],
)
def test_exported_decoders_load_with_the_same_outputs(llama: Path, tmp_path: Path, scheme: str, format: str) -> None:
    model = kt.quantize_(llama_model(llama), scheme, tokens())
    output = kt.export(model, tmp_path / "out", format)
    loaded = kt.load(randomized(llama_model(llama)), output)
    with torch.no_grad():
        for batch in tokens():
            assert torch.equal(loaded(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize(
    ("scheme", "format", "stored"),
    [
        ("int4:g32", "quark", None),
        ("mxfp4", "quark", None),
        ("W8A8", "compressed-tensors", None),
        # Scales of these have a type of their own, whatever the model's is.
        ("uint4:g32:zp", "awq", "uint4:g32:f16:zp"),
        ("int4:g32", "gptq", "int4:g32:f16"),
        ("FP8_BLOCK", "fp8", "e4m3:b128x128:f32+e4m3:g128:f32!dynamic"),
        ("W8A8", "tensors", None),
        ("mx9", "fake", None),
    ],
)
def test_checkpoints_of_the_file_flow_load(
    llama: Path, tmp_path: Path, scheme: str, format: str, stored: str | None
) -> None:
    kvant.quantize(llama, scheme, format=format, output=tmp_path / "files", progress=False)
    model = kt.quantize_(llama_model(llama), stored or scheme)
    loaded = kt.load(randomized(llama_model(llama)), tmp_path / "files")
    batch = tokens()[0]
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def gpt2_model(**more: Any) -> Any:
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, **more)
    return transformers.GPT2LMHeadModel(config).eval()


def test_weights_with_inputs_first_load(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = gpt2_model()
    model.save_pretrained(tmp_path / "gpt2")
    kvant.quantize(tmp_path / "gpt2", "W8A8", format="fake", output=tmp_path / "out", progress=False)
    loaded = kt.load(gpt2_model(), tmp_path / "out")
    kt.quantize_(model, "W8A8")
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert type(loaded.transformer.h[0].attn.c_attn).__name__ == "QuantizedConv1D"


def test_heads_tied_to_quantized_embeddings_keep_their_values(tmp_path: Path) -> None:
    torch.manual_seed(6)
    model = kt.freeze(kt.quantize_(gpt2_model(), overrides={"transformer.wte": "int8:channel"}))
    loaded = kt.load(gpt2_model(), kt.export(model, tmp_path / "out"))
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_quantized_caches_are_refused(llama: Path, texts: list[str], tmp_path: Path) -> None:
    given = {"format": "compressed-tensors", "output": tmp_path / "out", "progress": False}
    kvant.quantize(llama, "int4:g32", kv_cache="fp8", data=texts, seq_len=64, **given)
    with pytest.raises(kvant.UnsupportedError, match="keys, values"):
        kt.load(llama_model(llama), tmp_path / "out")


def vit() -> tuple[Any, list[Any]]:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    base = torch.randn(48, 3, 4, 4)
    images = nn.functional.interpolate(base, size=32, mode="bilinear")
    return transformers.ViTForImageClassification(config), [{"pixel_values": part} for part in images.split(16)]


def whisper() -> tuple[Any, list[Any]]:
    config = transformers.WhisperConfig(
        vocab_size=100,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=20,
        num_mel_bins=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    sound = torch.randn(24, 16, 25).repeat_interleave(4, dim=2)
    ids = torch.randint(3, 100, (24, 12))
    return transformers.WhisperForConditionalGeneration(config), [
        {"input_features": sound[i : i + 8], "decoder_input_ids": ids[i : i + 8]} for i in (0, 8, 16)
    ]


def distance(expected: Any, made: Any) -> float:
    noise = (expected - made).double().square().sum()
    return float(10 * torch.log10(expected.double().square().sum() / noise))


@pytest.mark.parametrize(("make", "others"), [(vit, "*projection"), (whisper, "*conv?")])
def test_gptq_beats_rounding_to_nearest_on_vision_and_speech(make: Any, others: str) -> None:
    torch.manual_seed(1)
    model, batches = make()
    model.eval()
    state = model.state_dict()
    with torch.no_grad():
        expected = model(**batches[-1]).logits
        made = {}
        for algorithm in (None, "gptq"):
            fresh = make()[0].eval()
            fresh.load_state_dict(state)
            kt.quantize_(fresh, "int3:g32", batches[:-1], algorithm=algorithm, exclude=[others])
            made[algorithm] = distance(expected, fresh(**batches[-1]).logits)
    assert made["gptq"] > made[None] + 0.5, made


def test_diffusion_transformers_run_with_their_timesteps() -> None:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(2)
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8, patch_size=2
    ).eval()
    batches = [
        {
            "hidden_states": torch.randn(2, 4, 8, 8),
            "timestep": torch.tensor([t, t + 1]),
            "class_labels": torch.tensor([1, 2]),
        }
        for t in (10, 500)
    ]
    with torch.no_grad():
        expected = model(**batches[0]).sample
        kt.quantize_(model, "int8:channel+int8:tensor!static", batches)
        assert distance(expected, model(**batches[0]).sample) > 15


def test_offloaded_layers_are_quantized_as_they_come(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    x = torch.randn(5, 32)
    expected = model(x)
    offloaded = accelerate.disk_offload(model, str(tmp_path), execution_device="cpu")
    assert offloaded[0].weight.device.type == "meta"
    kt.quantize_(offloaded, "int8:channel+int8:tensor!static", [x])
    assert 20 < distance(expected.detach(), offloaded(x).detach()) < 60
    with pytest.raises(kvant.UsageError, match="quantized already"):
        kt.quantize_(offloaded, "int8:channel")
