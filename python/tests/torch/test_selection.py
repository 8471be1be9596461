"""Which layers are quantized: subclasses, shared layers, computed weights, and what is said of the rest."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402


class Named(nn.Linear):
    """A linear layer with more than torch's."""

    rank = 3

    def doubled(self) -> Tensor:
        return 2 * self.weight


class Scaled(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Padded(nn.Conv2d):
    """A convolution that computes something else behind torch's forward."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input + 1, weight, bias)


class Strided(nn.Conv2d):
    """A convolution that only has a name of its own."""


def test_subclasses_that_compute_as_torch_does_are_quantized() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Strided(1, 16, (1, 1)), nn.Flatten(2), nn.Linear(16, 16), Named(16, 16)).eval()
    plain = nn.Sequential(nn.Conv2d(1, 16, (1, 1)), nn.Flatten(2), nn.Linear(16, 16), nn.Linear(16, 16)).eval()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(3, 1, 4, 4)
    for network in (model, plain):
        kt.quantize_(network, "int8:channel+int8:tensor!static", [x])
    layer = model[3]
    assert isinstance(layer, Named) and isinstance(layer, kt.QuantizedLinear) and layer.rank == 3
    assert torch.equal(layer.doubled(), 2 * layer.weight)
    assert torch.equal(model(x), plain(x))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied[3]) is type(layer) and torch.equal(copied(x), plain(x))
    with pytest.raises(kvant.InvalidError):
        kt.quantize_(nn.Sequential(Named(8, 8)), "int4:g3")


def test_subclasses_of_falcon_are_quantized(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.FalconConfig(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    model = transformers.FalconForCausalLM(config).eval()
    expected = {name for name, module in model.named_modules() if type(module).__name__ == "FalconLinear"}
    ids = torch.arange(20).reshape(2, 10)
    original = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kt.quantize_(model, "int8:channel+int8:tensor!static", [ids])
    assert expected and {name for name, _ in kt.quantized_modules(model)} == expected
    loaded = kt.load(original, kt.export(model, tmp_path / "out"))
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


class Mixed(nn.Module):
    """Layers that are quantized between weights that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 7, 16))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.experts = nn.ModuleList(nn.Module() for _ in range(2))
        for expert in self.experts:
            expert.gate_up_proj = nn.Parameter(torch.randn(4, 16, 32))
        self.scaled, self.padded = Scaled(16, 16), Padded(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.attention(self.layers[0](x), x, x)[0])


def test_weights_that_stay_floats_are_named_with_their_share() -> None:
    with pytest.warns(kvant.KvantWarning, match="stay floats") as caught:
        model = kt.quantize_(Mixed(), "int8:channel")
    (message,) = (str(warning.message) for warning in caught)
    floats = 2 * 4 * 16 * 32 + 3 * 16 * 16 + 16 * 16 + 16 * 16 + 1
    total = sum(weight.numel() for weight in Mixed().parameters() if weight.dim() >= 2)
    assert message.startswith(f"{100 * floats / total:.2g} % of the weights"), message
    for name in ("attention", "attention.out_proj", "experts.*.gate_up_proj", "scaled", "padded"):
        assert name in message
    assert "position" not in message and "layers." not in message
    assert [name for name, _ in kt.quantized_modules(model)] == ["layers.0", "layers.1"]
    x = torch.randn(2, 7, 16)
    assert torch.isfinite(model(x)).all(), "attention of torch reads the weight of its out_proj"


def test_what_is_excluded_or_not_wanted_is_not_warned_of() -> None:
    for options in (
        {"scheme": "int8:channel", "exclude": ["attention*", "experts.*", "scaled", "padded"]},
        {"overrides": {"layers.*": "int8:channel"}},
        {"scheme": "int8:channel", "layer_types": {"Scaled": None, Padded: None}, "exclude": ["att*", "*_proj"]},
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kt.quantize_(Mixed(), **options)


def test_fused_experts_of_transformers_are_named() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    with pytest.warns(kvant.KvantWarning, match=r"model\.layers\.\*\.mlp\.experts\.gate_up_proj"):
        kt.quantize_(model, "int8:channel")


def weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(16, 16))


def bias_pruned() -> nn.Module:
    from torch.nn.utils import prune

    return prune.random_unstructured(nn.Linear(16, 16), "bias", 0.5)


def pruned() -> nn.Module:
    from torch.nn.utils import prune

    return prune.l1_unstructured(nn.Linear(16, 16), "weight", 0.5)


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (weight_norm, "torch.nn.utils.remove_weight_norm"),
        (lambda: nn.utils.spectral_norm(nn.Linear(16, 16)), "torch.nn.utils.remove_spectral_norm"),
        (pruned, "torch.nn.utils.prune.remove"),
        (bias_pruned, "torch.nn.utils.prune.remove"),
        (
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
            "torch.nn.utils.parametrize.remove_parametrizations",
        ),
        (
            lambda: nn.utils.parametrizations.orthogonal(nn.Linear(16, 16)),
            "torch.nn.utils.parametrize.remove_parametrizations",
        ),
    ],
)
def test_weights_that_are_computed_are_refused_with_the_remedy(make: Callable[[], nn.Module], function: str) -> None:
    from torch.nn.utils import parametrize, prune  # noqa: F401

    torch.manual_seed(0)
    model = nn.Sequential(make(), nn.Linear(16, 8)).eval()
    x = torch.randn(3, 16)
    expected = model(x).detach()
    with pytest.raises(kvant.UnsupportedError, match="layer 0: its") as caught:
        kt.quantize_(model, "int8:channel")
    assert function in caught.value.remedy and torch.equal(model(x), expected)
    # The remedy as it is written.
    call = caught.value.remedy.removeprefix("first call ").partition(", or leave")[0]
    eval(call, {"torch": torch, "layer": model[0]})
    kt.freeze(kt.quantize_(model, "int8:channel"))
    assert (model(x) - expected).abs().max() < 0.05


def test_smoothing_leaves_computed_weights_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(), nn.Linear(16, 8)).eval()
    x = torch.randn(3, 16)
    expected = model(x).detach()
    with pytest.warns(kvant.KvantWarning, match="changes nothing"):
        kt.quantize_(model, "int8:channel", [x], algorithm="smoothquant", exclude="0")
    assert (model(x) - expected).abs().max() < 0.05


def test_lazy_layers_are_run_first() -> None:
    model = nn.Sequential(nn.LazyLinear(8))
    with pytest.raises(kvant.UsageError, match="run the model"):
        kt.quantize_(model, "int8:channel")
    model(torch.randn(2, 16))
    kt.quantize_(model, "int8:channel")


class Shared(nn.Module):
    """One layer under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = self.a
        self.inner = nn.Sequential(self.a, nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.relu(self.a(x)) + self.b(x))


def test_any_name_of_a_shared_layer_counts() -> None:
    for name in ("a", "b", "inner.0", "re:inner.0"):
        model = kt.quantize_(Shared(), "int8:channel", exclude=name)
        assert [found for found, _ in kt.quantized_modules(model)] == ["inner.1"], name
    model = kt.quantize_(Shared(), "int8:channel", overrides={"inner.0": "int4:channel"})
    assert {name: module.scheme_text for name, module in kt.quantized_modules(model)} == {
        "a": "int4:channel",
        "inner.1": "int8:channel",
    }


@pytest.mark.parametrize("format", ["quark", "compressed-tensors", "fake"])
def test_shared_layers_are_stored_under_all_names(tmp_path: Path, format: str) -> None:
    torch.manual_seed(0)
    model, x = Shared().eval(), torch.randn(3, 16)
    kt.quantize_(model, "int8:channel+int8:tensor!static", [x])
    output = kt.export(model, tmp_path / "out", format)
    stored = load_file(output / "model.safetensors")
    assert not any("quantizer" in name for name in stored)
    parts = {name.removeprefix("inner.1.") for name in stored if name.startswith("inner.1.")}
    for name in ("a", "b", "inner.0"):
        assert parts == {part.removeprefix(f"{name}.") for part in stored if part.startswith(f"{name}.")}
        assert all(torch.equal(stored[f"{name}.{part}"], stored[f"a.{part}"]) for part in parts)
    torch.manual_seed(1)
    loaded = kt.load(Shared().eval(), output)
    assert loaded.a is loaded.b and torch.equal(loaded(x), model(x))
    kt.save(model, tmp_path / "model.safetensors")
    assert torch.equal(kt.load(Shared().eval(), tmp_path / "model.safetensors")(x), model(x))


def test_smoothing_pairs_may_be_given_by_any_name() -> None:
    torch.manual_seed(0)

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.read = nn.LayerNorm(16), nn.Linear(16, 16)
            self.again = self.read

        def forward(self, x: Tensor) -> Tensor:
            return self.read(self.norm(x))

    model = Normed().eval()
    batch = torch.randn(8, 16) * torch.logspace(-1, 1, 16)
    table = {"norm": ["again"]}
    kt.quantize_(model, "int8:channel", [batch], algorithm="smoothquant", smoothing=table)
    assert not torch.equal(model.norm.weight, torch.ones(16))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.ReLU, "LSTM"])
def test_types_that_cannot_be_quantized_are_refused(kind: Any) -> None:
    with pytest.raises(kvant.UsageError, match="`layer_types` names"):
        kt.quantize_(nn.Sequential(nn.Linear(8, 8)), "int8:channel", layer_types={kind: None})


def test_types_that_other_models_have_are_accepted() -> None:
    kinds: dict[Any, Any] = {nn.Conv2d: None, "Embedding": None, Named: None, nn.Module: "int8:tensor"}
    model = kt.quantize_(nn.Sequential(nn.Linear(8, 8)), "int8:channel", layer_types=kinds)
    assert model[0].scheme_text == "int8:tensor"
