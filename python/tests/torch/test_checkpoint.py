"""Quantized checkpoints read back into float models."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402


class Network(nn.Module):
    """Layers of the kinds that checkpoints hold, and tensors that are not quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.conv1 = nn.Conv1d(32, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(1, 6, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.up = nn.ConvTranspose2d(6, 6, 2, stride=2)
        self.split = nn.ConvTranspose2d(6, 32, 2, stride=2, groups=2)
        self.mixed = nn.Linear(32, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Any) -> Any:
        x = self.conv1(self.embed(ids).transpose(1, 2)).unsqueeze(1)
        x = self.split(self.up(self.norm(self.conv2(x))))
        return self.head(torch.relu(self.mixed(x.mean(dim=(2, 3)))))


@pytest.fixture
def network() -> Network:
    torch.manual_seed(3)
    network = Network()
    network(torch.randint(0, 20, (4, 10)))
    return network.eval()


@pytest.fixture
def batches() -> list[Any]:
    torch.manual_seed(4)
    return [torch.randint(0, 20, (4, 10)) for _ in range(3)]


def fresh() -> Network:
    """A network with other weights."""
    torch.manual_seed(99)
    return Network().eval()


EMBEDDING = {nn.Embedding: "int8:channel"}
CONVOLUTIONS = ["conv1", "conv2", "up", "split", "embed"]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "scheme",
    [
        "int8:tensor",
        "int8:channel",
        "uint8:channel:zp",
        "int8:channel+int8:tensor!static",
        "int8:channel+uint8:tensor:zp!static",
        "int8:channel+-+int8:tensor!static",
        "int8:channel+int8:tensor!dynamic",
        "e4m3:channel",
        "e5m2:tensor",
        "e4m3:tensor+e4m3:tensor!static",
        "e4m3:channel+e4m3:channel!dynamic",
    ],
)
def test_exported_networks_load_with_the_same_outputs(
    network: Network, batches: list[Any], tmp_path: Path, scheme: str, frozen: bool
) -> None:
    kt.quantize_(network, scheme, batches, layer_types={nn.Embedding: scheme})
    if frozen:
        kt.freeze(network)
    for format in ("quark", "fake"):
        loaded = fresh()
        assert kt.load(loaded, kt.export(network, tmp_path / format, format)) is loaded
        assert torch.equal(loaded(batches[1]), network(batches[1])), format
        ours, theirs = (dict(kt.quantized_modules(model)) for model in (network, loaded))
        assert ours.keys() == theirs.keys() and len(ours) == 7
        for name, module in theirs.items():
            assert type(module) is type(ours[name]) and module.scheme_text == ours[name].scheme_text, name
            assert torch.equal(module.weight, ours[name].quantized_weight()), name
            assert not module.weight_quantizer.enabled
            for side in ("input", "output"):
                found, expected = (getattr(layer, f"{side}_quantizer") for layer in (module, ours[name]))
                assert (found is None) == (expected is None)
                if found is not None:
                    assert (found.scale is None) == (expected.scale is None)
                    assert found.scale is None or torch.equal(found.scale, expected.scale)


@pytest.mark.parametrize(
    "scheme", ["mx6+mx6!dynamic", "bfp16", "int4:g4", "int4:channel+mxint8!dynamic", "e2m1:g16:e4m3:f32"]
)
def test_floats_on_a_grid_hold_every_scheme_of_every_layer(
    network: Network, batches: list[Any], tmp_path: Path, scheme: str
) -> None:
    kt.quantize_(network, scheme, layer_types={nn.Embedding: scheme}, exclude=["conv2", "up", "split"])
    # Codes of four bits have a place but in the head, whose five output channels fill no words.
    with pytest.raises(kvant.UnsupportedError, match="layer head" if scheme.startswith("int4") else "layer embed"):
        kt.export(network, tmp_path / "codes")
    loaded = kt.load(fresh(), kt.export(network, tmp_path / "floats", "fake"))
    assert torch.equal(loaded(batches[0]), network(batches[0]))
    assert {name: module.scheme_text for name, module in kt.quantized_modules(loaded)} == {
        name: module.scheme_text for name, module in kt.quantized_modules(network)
    }


@pytest.mark.parametrize("format", ["quark", "compressed-tensors", "fake"])
@pytest.mark.parametrize(
    "scheme",
    ["int4:g8", "e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic", "W8A8", "fp8", "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local"],
)
def test_linear_layers_load_from_every_format(
    network: Network, batches: list[Any], tmp_path: Path, scheme: str, format: str
) -> None:
    groups = ["mixed", "head"] if scheme == "int4:g8" else ["head"]
    wanted = dict.fromkeys(groups, scheme)
    exclude = CONVOLUTIONS if format == "compressed-tensors" else CONVOLUTIONS[:4]
    if format == "quark" and scheme == "int4:g8":
        # Eight output channels to a word.
        network.head, exclude = nn.Linear(32, 16), CONVOLUTIONS
    target = copy.deepcopy(network)
    kt.quantize_(network, None, batches, overrides=wanted, layer_types={} if "embed" in exclude else EMBEDDING)
    loaded = kt.load(target, kt.export(network, tmp_path / "out", format))
    assert torch.equal(loaded(batches[2]), network(batches[2]))
    assert isinstance(loaded.head, kt.QuantizedLinear) and type(loaded.conv2) is nn.Conv2d


def changed(directory: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """A checkpoint after a change of its tensors and its quantization_config."""
    tensors = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    change(tensors, config["quantization_config"])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def narrowed(tensors: dict[str, Any], name: str) -> None:
    tensors[name] = tensors[name][:-1].contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, c: t.pop("conv2.weight_scale"), "conv2"),
        (lambda t, c: narrowed(t, "conv2.weight_scale"), "conv2.weight_scale: shape"),
        (lambda t, c: narrowed(t, "up.weight_zero_point"), "up.weight_zero_point: shape"),
        (lambda t, c: narrowed(t, "up.weight"), "up.weight: shape"),
        (lambda t, c: narrowed(t, "head.weight"), "head.weight"),
        (lambda t, c: narrowed(t, "norm.running_mean"), "norm.running_mean: shape"),
        (lambda t, c: t.pop("norm.running_mean"), "norm.running_mean is missing"),
        (lambda t, c: t.update({"more.weight": torch.ones(2)}), "no tensor more.weight"),
        (lambda t, c: t["conv2.weight_scale"].fill_(float("nan")), "conv2.weight: .*NaN"),
        (lambda t, c: t["head.weight_scale"].fill_(float("inf")), "head.weight: .*infinite"),
        (lambda t, c: t["conv2.input_scale"].fill_(float("nan")), "conv2"),
        (lambda t, c: t["head.input_scale"].fill_(-1.0), "head"),
        (lambda t, c: t.pop("head.input_scale"), "head.input_scale: is missing"),
        (lambda t, c: t.update({"conv2.weight": t["conv2.weight"].float()}), "conv2.weight is torch.float32"),
        (lambda t, c: c["global_quant_config"]["weight"].update(dtype="int9"), "int9"),
        (lambda t, c: c.update(quant_method="other"), "other"),
    ],
)
def test_damaged_checkpoints_are_refused_and_change_nothing(
    network: Network, batches: list[Any], tmp_path: Path, change: Any, message: str
) -> None:
    kt.quantize_(network, "int8:channel+int8:tensor!static", batches, layer_types=EMBEDDING)
    output = changed(kt.export(network, tmp_path / "out"), change)
    target = fresh()
    state = copy.deepcopy(target.state_dict())
    with pytest.raises((kvant.InvalidError, kvant.UnsupportedError), match=message):
        kt.load(target, output)
    assert not list(kt.quantized_modules(target)) and target.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in target.state_dict().items())


def test_other_models_and_directories_are_refused(network: Network, batches: list[Any], tmp_path: Path) -> None:
    kt.quantize_(network, "int8:channel", layer_types=EMBEDDING)
    output = kt.export(network, tmp_path / "out")
    with pytest.raises(kvant.InvalidError, match="no layer"):
        kt.load(nn.Sequential(nn.Linear(4, 4)), output)
    with pytest.raises(kvant.InvalidError, match="not one to quantize"):
        kt.load(network, output)
    with pytest.raises(kvant.UsageError, match="device meta"), torch.device("meta"):
        kt.load(Network(), output)
    with pytest.raises(kvant.UnsupportedError, match="loaded frozen"):
        kt.export(kt.load(fresh(), output), tmp_path / "again")
    again = kt.export(kt.load(fresh(), output), tmp_path / "floats", "fake")
    assert torch.equal(kt.load(fresh(), again)(batches[0]), network(batches[0]))
    (tmp_path / "floats only").mkdir()
    save_file({"weight": torch.ones(4, 4)}, tmp_path / "floats only" / "model.safetensors")
    with pytest.raises(kvant.UsageError, match="no quantized layers"):
        kt.load(nn.Linear(4, 4), tmp_path / "floats only")
    (tmp_path / "pickle").mkdir()
    torch.save({"weight": torch.ones(4, 4)}, tmp_path / "pickle" / "pytorch_model.bin")
    with pytest.raises(kvant.KvantError, match="pickle"):
        kt.load(nn.Linear(4, 4), tmp_path / "pickle")


def test_damaged_files_are_refused_and_change_nothing(network: Network, tmp_path: Path) -> None:
    kt.quantize_(network, "int8:channel", layer_types=EMBEDDING)
    file = kt.save(network, tmp_path / "saved.safetensors")
    tensors = load_file(file)
    narrowed(tensors, "up.weight")
    described = json.dumps({"up": {"scheme": "int8:channel", "frozen": True}})
    target = fresh()
    for metadata, message in ((described, "up.weight: shape"), ('{"up": {}}', "damaged"), ("{", "damaged")):
        save_file(tensors, tmp_path / "bad.safetensors", metadata={"kvant": metadata})
        with pytest.raises(kvant.InvalidError, match=message):
            kt.load(target, tmp_path / "bad.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:100])
    with pytest.raises(kvant.InvalidError, match="damaged"):
        kt.load(target, tmp_path / "cut.safetensors")
    with pytest.raises(kvant.UsageError, match="not written by"):
        save_file(tensors, tmp_path / "other.safetensors")
        kt.load(target, tmp_path / "other.safetensors")
    assert not list(kt.quantized_modules(target))


@pytest.mark.parametrize("scheme", ["int4:channel", "int4:g8", "int2:g4:zp", "int4:channel+int8:tensor!static"])
def test_convolutions_without_codes_of_bytes_are_floats_on_their_grid(scheme: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    layers = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 16, 2), nn.Flatten(2))
    model = nn.Sequential(layers, nn.Linear(16, 8)).eval()
    fresh, x = copy.deepcopy(model), torch.randn(2, 8, 5, 5)
    kt.quantize_(model, scheme, [x], bias="int8:tensor", exclude=["0.2"] if "static" in scheme else ())
    output = kt.export(model, tmp_path / "out")
    stored = load_file(output / "model.safetensors")
    assert stored["0.0.weight"].dtype == stored["0.0.bias"].dtype == torch.float32
    assert stored["1.weight"].dtype == torch.int32 and stored["1.bias"].dtype == torch.int8
    assert ("0.0._input_scale" in stored) == ("static" in scheme)
    expected = model(x)
    assert kvant.verify(output)
    loaded = kt.load(fresh, output)
    assert torch.equal(loaded(x), expected)
    assert [layer.scheme_text for _, layer in kt.quantized_modules(loaded)] == [
        layer.scheme_text for _, layer in kt.quantized_modules(model)
    ]


def test_mx_blocks_of_convolutions_and_embeddings_are_floats_on_their_grid(tmp_path: Path) -> None:
    torch.manual_seed(2)
    layers = nn.Sequential(nn.Conv2d(32, 64, 3), nn.ConvTranspose2d(64, 16, 2), nn.Flatten(2), nn.Linear(16, 32))
    model = nn.Sequential(nn.Embedding(10, 32), layers).eval()
    fresh = copy.deepcopy(model)
    kt.quantize_(model, "e2m1:g32:e8m0", layer_types={nn.Embedding: "e2m1:g32:e8m0"}, exclude=["1.3"])
    output = kt.export(model, tmp_path / "out")
    stored = load_file(output / "model.safetensors")
    # A row for each place of a kernel, and no zero points.
    assert stored["1.0._weight_scale"].shape == (64 * 9, 1) and "1.0._weight_zero_point" not in stored
    assert kvant.verify(output)
    loaded = kt.load(fresh, output)
    for name, layer in kt.quantized_modules(model):
        again = loaded.get_submodule(name)
        assert torch.equal(again.weight, layer.quantized_weight()) and again.scheme_text == layer.scheme_text


def test_blocks_of_convolutions_are_refused_before_codes_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kt.quantize_(nn.Sequential(nn.Linear(32, 32), nn.Conv2d(32, 8, 1)), "e2m1:g16:e4m3:f32")
    monkeypatch.setattr("kvant.torch._export.codes_of", lambda *_: pytest.fail("a layer was packed"))
    with pytest.raises(kvant.UnsupportedError, match="layer 1: it is a Conv2d, for which quark has no place"):
        kt.export(model, tmp_path / "out")


@pytest.mark.parametrize("bias", ["int8:tensor", "int8:tensor:zp", "uint8:channel", "e4m3:tensor"])
def test_quantized_biases_are_codes_that_are_read_back(
    bias: str, network: Network, batches: list[Any], tmp_path: Path
) -> None:
    fresh = copy.deepcopy(network)
    kt.quantize_(network, "int8:channel+int8:tensor!static", batches, bias=bias)
    expected = network(batches[0])
    for name, model in (("thawed", network), ("frozen", kt.freeze(network))):
        output = kt.export(model, tmp_path / name)
        loaded = kt.load(copy.deepcopy(fresh), output)
        assert torch.equal(loaded(batches[0]), expected), name
        assert {layer.bias_text for _, layer in kt.quantized_modules(loaded)} <= {bias, None}
        assert any(layer.bias_text for _, layer in kt.quantized_modules(loaded))
        assert kvant.verify(output)
    kt.export(network, tmp_path / "fake", "fake")
    assert torch.equal(kt.load(copy.deepcopy(fresh), tmp_path / "fake")(batches[0]), expected)
    kt.save(network, tmp_path / "saved")
    assert torch.equal(kt.load(fresh, tmp_path / "saved")(batches[0]), expected)


def test_biases_without_a_place_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    for format, bias, word in (
        ("quark", "int32:tensor", "eight bits"),
        ("compressed-tensors", "int8:tensor", "no place"),
    ):
        quantized = kt.quantize_(copy.deepcopy(model), "int8:channel", bias=bias)
        with pytest.raises(kvant.UnsupportedError, match=word):
            kt.export(quantized, tmp_path / "out", format)
    with pytest.raises(kvant.UnsupportedError, match="not quantized in int4:g4"):
        kt.quantize_(model, "int8:channel", bias="int4:g4")
    with pytest.raises(kvant.UsageError, match="quantizes activations"):
        kt.quantize_(model, "int8:channel", bias="W8A8")
    with pytest.raises(kvant.UsageError, match="no layer that it is for has one"):
        kt.quantize_(nn.Sequential(nn.Linear(8, 8, bias=False)), "int8:channel", bias="int8:tensor")
    recipe = kt.LayerRecipe("int8:channel", bias="float")
    kt.quantize_(model, None, bias="int8:tensor", overrides={"0": recipe})
    assert model[0].bias_quantizer is None


@pytest.mark.parametrize(
    ("scheme", "format", "text", "remedy"),
    [
        ("mx6", "quark", "layer 0: quark has no place for mx6", '"fake"'),
        ("bfp16", "compressed-tensors", "no place for bfp16", '"fake"'),
        ("int8:channel", "gguf", "gguf is a format of files", "kvant.quantize"),
        ("int8:channel", "onnx", "onnx is a format of files", "export_onnx"),
    ],
)
def test_formats_without_a_place_name_another(scheme: str, format: str, text: str, remedy: str, tmp_path: Path) -> None:
    model = kt.quantize_(nn.Sequential(nn.Linear(32, 8)), scheme)
    with pytest.raises(kvant.UnsupportedError, match=text) as raised:
        kt.export(model, tmp_path / "out", format)
    assert remedy in raised.value.remedy and "GGUF types" not in str(raised.value)


def test_layers_alone_have_no_name_in_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(kvant.UsageError, match="layer itself"):
        kt.export(kt.quantize_(nn.Linear(8, 8), "int8:channel"), tmp_path / "out")


def test_exported_convolutions_are_verified(network: Network, tmp_path: Path) -> None:
    kt.quantize_(network, "int8:channel", layer_types=EMBEDDING)
    output = kt.export(network, tmp_path / "out")
    report = kvant.verify(output)
    assert report and report.to_dict()["quantized_layers"] == 7
    tensors = load_file(output / "model.safetensors")
    tensors["up.weight_scale"] = tensors["up.weight_scale"][:-1].clone()
    save_file(tensors, output / "model.safetensors")
    report = kvant.verify(output)
    assert not report and "up.weight_scale" in str(report)
