"""Quantization-aware training: gradients of weights and scales, and what is rounded in the end."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402
from kvant.torch._ops import learned_fake_quantize  # noqa: E402

SCHEME = "int4:channel+int8:tensor!static"


def lsq(x: Tensor, scale: Tensor, least: int, greatest: int, shared: int) -> Tensor:
    """Learned step sizes as the paper writes them, for a scale for each row."""
    gradient = 1 / (shared * greatest) ** 0.5
    step = scale * gradient + (scale - scale * gradient).detach()
    codes = (x / step).clamp(least, greatest)
    return (codes + (codes.round() - codes).detach()) * step


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.5])
def test_gradients_are_those_of_learned_step_sizes(scale: float) -> None:
    torch.manual_seed(0)
    values, weights = torch.randn(5, 32), torch.randn(5, 32)
    results = []
    for compute in (
        lambda x, s: learned_fake_quantize(x, "int4:channel", s, None),
        lambda x, s: lsq(x, s.reshape(-1, 1), -8, 7, 32),
    ):
        x = values.clone().requires_grad_()
        s = torch.full((5,), scale).requires_grad_()
        made = compute(x, s)
        (made * weights).sum().backward()
        results.append((made.detach(), x.grad, s.grad))
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_scales_of_activations_are_learned_by_feature_and_for_the_tensor() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 4)
    for scheme, shape in (("int8:tensor!static", ()), ("int8:channel@1!static", (4,))):
        scale = torch.full(shape, 0.01).requires_grad_()
        learned_fake_quantize(x, scheme, scale, None).square().sum().backward()
        assert scale.grad is not None and scale.grad.shape == shape and bool((scale.grad != 0).all())


class Network(nn.Module):
    """A classifier of points by their quadrant."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 8, 2)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(torch.relu(self.convolution(x.unsqueeze(1)).flatten(1)))


def points(count: int = 256) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 2)
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def train(model: nn.Module, steps: int, rate: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(steps):
        x, labels = points()
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def accuracy(model: nn.Module) -> float:
    torch.manual_seed(9)
    x, labels = points(2000)
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == labels).float().mean())


@pytest.fixture(scope="module")
def trained() -> Network:
    torch.manual_seed(5)
    model = Network()
    train(model, 300, 1e-2)
    assert accuracy(model) > 0.97
    return model


@pytest.mark.parametrize("steps", ["learned", "fixed"])
def test_training_regains_what_rounding_lost(trained: Network, tmp_path: Path, steps: Any) -> None:
    scheme = "int2:channel+int6:tensor!static"
    data = [points()[0]]
    before = accuracy(kt.quantize_(copy.deepcopy(trained), scheme, data))
    model = kt.quantize_(copy.deepcopy(trained), scheme, data, trainable=True, steps=steps)
    quantizer = model.layers[0].weight_quantizer
    assert (quantizer.log_change is not None) == (steps == "learned")
    train(model, 300, 1e-2)
    after = accuracy(model)
    assert after > before + 0.02
    if steps == "learned":
        assert quantizer.log_change.abs().max() > 1e-3

    x = torch.randn(20, 2)
    expected = model(x).detach()
    kept, frozen = copy.deepcopy(model), kt.freeze(model)
    assert torch.allclose(frozen(x), expected, atol=1e-5), "the scales of training are those of the codes"
    assert not any("scale" in name for name, _ in frozen.named_parameters())
    kt.save(frozen, tmp_path / "frozen.safetensors")
    assert torch.equal(kt.load(copy.deepcopy(trained), tmp_path / "frozen.safetensors")(x), frozen(x))
    kt.save(kept, tmp_path / "trained.safetensors")
    assert torch.allclose(kt.load(copy.deepcopy(trained), tmp_path / "trained.safetensors")(x), expected, atol=1e-5)


def test_exported_codes_are_those_of_trained_scales(trained: Network, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = kt.quantize_(copy.deepcopy(trained), "int8:channel", trainable=True)
    train(model, 20, 1e-2)
    scale = model.layers[0].weight_quantizer.current_scale
    stored = load_file(kt.export(model, tmp_path / "out") / "model.safetensors")
    assert torch.equal(stored["layers.0.weight_scale"].reshape(-1), scale.reshape(-1))
    values = stored["layers.0.weight"].float() * scale.reshape(-1, 1)
    assert torch.equal(values, kt.freeze(model).layers[0].weight)


def test_chosen_codes_are_forgotten_once_weights_are_trained(trained: Network) -> None:
    torch.manual_seed(1)
    model = kt.quantize_(copy.deepcopy(trained), "int4:channel", [points()[0]], algorithm="gptq", trainable=True)
    chosen = model.layers[0].chosen.dequantize().clone()
    train(model, 50, 1e-2)
    assert not torch.equal(kt.freeze(model).layers[0].weight, chosen)


def test_scales_that_follow_from_the_values_are_not_learned(trained: Network) -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    with pytest.raises(kvant.UnsupportedError, match='steps="fixed"'):
        kt.quantize_(model, "mxfp4", trainable=True)
    assert type(model[0]) is nn.Linear
    kt.quantize_(model, "mxfp4", trainable=True, steps="fixed")
    model(torch.randn(3, 32)).sum().backward()
    assert model[0].weight.grad is not None


def test_the_trainer_of_transformers_trains_quantized_models(llama: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    kt.quantize_(model, "int4:g32", trainable=True)
    torch.manual_seed(0)
    ids = torch.randint(0, 2000, (8, 16))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, learning_rate=2e-3, report_to=[], save_strategy="no", use_cpu=True
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    losses = [trainer.evaluate(data)["eval_loss"]]
    trainer.train()
    losses.append(trainer.evaluate(data)["eval_loss"])
    assert losses[1] < losses[0] - 0.1


def test_scales_are_those_of_rounding_until_they_are_trained(trained: Network) -> None:
    x = torch.randn(20, 2)
    plain = kt.quantize_(copy.deepcopy(trained), "int4:channel")
    model = kt.quantize_(copy.deepcopy(trained), "int4:channel", trainable=True)
    assert torch.equal(model(x), plain(x)) and torch.equal(kt.freeze(copy.deepcopy(model))(x), plain(x))
    train(model, 5, 1e-2)
    quantizer = model.layers[0].weight_quantizer
    scale = quantizer.current_scale.clone()
    model.to(torch.bfloat16)
    assert torch.equal(quantizer.current_scale, scale.bfloat16().float()), "as checkpoints of this type have it"
    model.to(torch.float32)
    assert torch.equal(quantizer.current_scale, scale), "parameters are kept in float32"


@pytest.mark.parametrize("scheme", [SCHEME, "uint4:channel:zp+uint8:tensor:zp!static", "int4:channel:f32"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frozen_outputs_of_models_of_16_bits_are_those_of_training(
    trained: Network, tmp_path: Path, scheme: str, dtype: torch.dtype
) -> None:
    x = points()[0].to(dtype)
    original = copy.deepcopy(trained).to(dtype)
    model = kt.quantize_(copy.deepcopy(original), scheme, [x], trainable=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        nn.functional.cross_entropy(model(x).float(), points()[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    quantizer = model.layers[0].weight_quantizer
    assert quantizer.log_change.dtype == torch.float32 and bool(quantizer.log_change.abs().max() > 0)
    expected = model(x).detach()
    kt.save(model, tmp_path / "trained.safetensors")
    assert torch.equal(kt.load(copy.deepcopy(original), tmp_path / "trained.safetensors")(x), expected)
    assert torch.equal(kt.freeze(model)(x), expected)


def test_weights_that_are_changed_through_their_data_are_rounded_as_they_are_computed_with(trained: Network) -> None:
    for algorithm in (None, "gptq"):
        model = kt.quantize_(copy.deepcopy(trained), "int4:channel", [points()[0]], algorithm=algorithm)
        weight = model.layers[0].weight
        version = weight._version
        weight.data.mul_(0.9)
        weight.data = weight.data + 0.01
        assert weight._version == version
        x = torch.randn(20, 2)
        expected = model(x).detach()
        assert torch.equal(kt.freeze(model)(x), expected)


@pytest.mark.parametrize("options", [{"sparse": True}, {"max_norm": 1.0}])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_need_more_than_gradients_are_not_trained(kind: Any, options: Any) -> None:
    model = nn.Sequential(kind(10, 16, **options), nn.Linear(16, 4))
    with pytest.raises(kvant.UnsupportedError, match=f"layer 0: an embedding with {next(iter(options))}"):
        kt.quantize_(model, layer_types={kind: "int8:channel"}, trainable=True, steps="fixed")
    kt.quantize_(model, layer_types={kind: "int8:channel"})


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("is_adapted_first", [False, True])
def test_adapters_of_peft_are_trained_on_quantized_layers(
    tmp_path: Path, trainable: bool, is_adapted_first: bool
) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    original = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, **sizes)).eval()
    model, ids = copy.deepcopy(original), torch.randint(0, 96, (4, 20))
    targets = ["q_proj", "up_proj"]
    config = peft.LoraConfig(r=4, target_modules=targets, modules_to_save=["down_proj"], task_type="CAUSAL_LM")
    if is_adapted_first:
        model = peft.get_peft_model(model, config)
        # Trained copies and their originals are layers of their own.
        kt.quantize_(model, "int4:g32", exclude="*lora_*", trainable=trainable)
    else:
        kt.quantize_(model, "int4:g32", trainable=trainable)
        model = peft.get_peft_model(model, config)
    losses = []
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    for _ in range(12):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.3
    merged = model.merge_and_unload().eval()
    assert len(list(kt.quantized_modules(merged))) == 14
    with torch.no_grad():
        expected = merged(ids).logits
        assert torch.equal(kt.freeze(merged)(ids).logits, expected)
        assert torch.equal(kt.load(original, kt.export(merged, tmp_path / "out"))(ids).logits, expected)
