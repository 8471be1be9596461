"""Statistics that are captured from a model give its checkpoint static scales and weighted searches."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402

STATIC = ["int8:channel+int8:tensor!static", "e4m3:channel+e4m3:tensor!static"]


class Net(nn.Module):
    """A convolution, and linear layers whose inputs differ much from channel to channel."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.scale = nn.Parameter(torch.linspace(0.01, 4, 32))
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, image):
        rows = self.conv(image).flatten(2).transpose(1, 2) * self.scale
        return self.down(torch.relu(self.up(rows)))


def images(seed=1):
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def net(tmp_path):
    """The model, and its checkpoint, of an architecture that nobody has described."""
    model = Net().eval()
    folder = tmp_path / "net"
    folder.mkdir()
    save_file(dict(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"architectures": ["Net"], "model_type": "net"}))
    return model, folder


def distance(first, second):
    return ((first - second).square().sum() / second.square().sum()).item()


def test_ranges_and_squares_are_those_of_the_inputs(net, tmp_path):
    model, _ = net
    read = {}
    model.down.register_forward_pre_hook(lambda _, args: read.setdefault("rows", []).append(args[0].reshape(-1, 64)))
    path = tmp_path / "statistics.safetensors"
    kt.capture_statistics(model, lambda: [model(images(1)), model(images(2))], path, hessians=True)
    found = load_file(path)
    rows = torch.cat(read["rows"])
    assert torch.equal(found["down.input_min"], rows.amin(0)) and torch.equal(found["down.input_max"], rows.amax(0))
    torch.testing.assert_close(found["down.input_mean_square"], rows.square().mean(0))
    torch.testing.assert_close(found["down.hessian"], rows.t() @ rows / len(rows))
    assert found["conv.input_min"].shape == (3,) and "conv.hessian" not in found
    components = tmp_path / "components.safetensors"
    kt.capture_statistics({"net": model}, lambda: model(images()), components)
    assert "net.up.input_max" in load_file(components)


def test_inputs_without_numbers_are_refused(net, tmp_path):
    model, _ = net
    with pytest.raises(kvant.InvalidError, match="inputs of the layer conv"):
        kt.capture_statistics(model, lambda: model(images() / 0), tmp_path / "s.safetensors")
    with pytest.raises(kvant.UsageError, match="no linear layer"):
        kt.capture_statistics(model, lambda: None, tmp_path / "s.safetensors")
    assert not list(tmp_path.glob("s.*"))


def test_files_are_not_replaced_and_folders_must_exist(net, tmp_path):
    model, _ = net
    taken = tmp_path / "taken.safetensors"
    taken.write_text("precious")
    runs = []
    for path, message in [
        (taken, "exists already"),
        (tmp_path / "none" / "s.safetensors", "is not a folder"),
        (taken / "s.safetensors", "is not a folder"),
    ]:
        with pytest.raises(kvant.UsageError, match=message):
            kt.capture_statistics(model, lambda: runs.append(model(images())), path)
    assert not runs and taken.read_text() == "precious"
    late = tmp_path / "late.safetensors"
    with pytest.raises(kvant.UsageError, match="exists already"):
        kt.capture_statistics(model, lambda: (model(images()), late.write_text("precious")), late)
    assert late.read_text() == "precious" and sorted(tmp_path.glob("*.unfinished")) == []


def test_autocast_changes_no_statistic_of_what_layers_read(tmp_path):
    plain, cast = tmp_path / "plain.safetensors", tmp_path / "cast.safetensors"
    rows = torch.randn(64, 32, generator=torch.Generator().manual_seed(3))
    layers = nn.Sequential(nn.Linear(32, 8))
    kt.capture_statistics(layers, lambda: layers(rows), plain, hessians=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kt.capture_statistics(layers, lambda: layers(rows), cast, hessians=True)
    expected, found = load_file(plain), load_file(cast)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("scheme", STATIC)
@pytest.mark.parametrize("format", ["quark", "fake"])
def test_static_scales_follow_from_the_ranges(net, tmp_path, scheme, format):
    model, folder = net
    path, out = tmp_path / "statistics.safetensors", tmp_path / "out"
    kt.capture_statistics(model, lambda: model(images()), path)
    kvant.quantize(folder, scheme, statistics=path, format=format, output=out)
    assert json.loads((out / "calibration.json").read_text())["statistics"]["name"] == path.name
    quantized = kt.load(Net().eval(), out)
    found, largest = load_file(path), 127 if scheme.startswith("int8") else 448
    for name in ("up", "down"):
        ends = torch.stack([found[f"{name}.input_min"], found[f"{name}.input_max"]])
        scale = quantized.get_submodule(name).input_quantizer.scale
        torch.testing.assert_close(scale.reshape(()), ends.abs().max() / largest, rtol=0.02, atol=0)
    expected = model(images(3))
    assert 0 < distance(quantized(images(3)), expected) < 1e-2


def test_convolutions_get_static_scales_too(net, tmp_path):
    model, folder = net
    path, out = tmp_path / "statistics.safetensors", tmp_path / "out"
    kt.capture_statistics(model, lambda: model(images()), path)
    scheme = STATIC[0]
    kvant.quantize(folder, scheme, layer_type=f"conv2d={scheme}", statistics=path, format="fake", output=out)
    quantized = kt.load(Net().eval(), out)
    assert quantized.conv.input_quantizer.scale is not None
    assert 0 < distance(quantized(images(3)), model(images(3))) < 1e-2


def test_searched_scales_lose_less_where_inputs_count(net, tmp_path):
    model, folder = net
    path = tmp_path / "statistics.safetensors"
    kt.capture_statistics(model, lambda: model(images()), path)
    squares, weights = load_file(path), model.state_dict()
    errors = {}
    for name, given in {"plain": {}, "weighed": {"statistics": path}}.items():
        out = tmp_path / name
        line = {"layer_type": "conv2d=int3:channel", "scales": "search", "format": "fake"}
        kvant.quantize(folder, "int3:g32", output=out, **line, **given)
        quantized = load_file(out / "model.safetensors")
        for layer in ("conv", "up", "down"):
            error = (quantized[f"{layer}.weight"] - weights[f"{layer}.weight"]).square().transpose(1, -1)
            errors[name, layer] = (error * squares[f"{layer}.input_mean_square"]).sum().item()
    # The images of the test have channels that are alike.
    assert errors["weighed", "conv"] < errors["plain", "conv"], errors
    assert errors["weighed", "up"] < 0.9 * errors["plain", "up"], errors
    assert errors["weighed", "down"] < errors["plain", "down"], errors


def test_missing_and_damaged_statistics_are_named(net, tmp_path):
    model, folder = net
    path = tmp_path / "statistics.safetensors"
    kt.capture_statistics(model, lambda: model(images()), path)
    found = load_file(path)
    for change, message in [
        ({"down.input_min": None, "down.input_max": None}, r"lacks `down.input_min`"),
        ({"down.input_max": found["down.input_max"] * float("nan")}, r"`down.input_max` .*not a finite number"),
        (
            {"down.input_min": found["down.input_min"][:5], "down.input_max": found["down.input_max"][:5]},
            r"of 5 channels",
        ),
        ({"up.input_mean_square": -found["up.input_mean_square"]}, r"no square is negative"),
    ]:
        changed = {name: value for name, value in (found | change).items() if value is not None}
        save_file(changed, path)
        with pytest.raises(kvant.InvalidError, match=message):
            kvant.quantize(folder, STATIC[0], statistics=path, format="quark", output=tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_gptq_takes_hessians_layer_by_layer(net, tmp_path):
    model, folder = net
    path = tmp_path / "statistics.safetensors"
    kt.capture_statistics(model, lambda: model(images()), path, hessians=True)
    errors = {}
    for name, given in {"rtn": {}, "gptq": {"algorithm": "gptq", "statistics": path}}.items():
        out = tmp_path / name
        kvant.quantize(folder, "int3:g32", format="fake", output=out, **given)
        quantized = Net().eval()
        quantized.load_state_dict(load_file(out / "model.safetensors"))
        errors[name] = distance(quantized(images(3)), model(images(3)))
    assert errors["gptq"] < 0.8 * errors["rtn"], errors
    without = tmp_path / "without.safetensors"
    kt.capture_statistics(model, lambda: model(images()), without)
    with pytest.raises(kvant.InvalidError, match=r"lacks `down.hessian`, `up.hessian`"):
        kvant.quantize(
            folder, "int3:g32", algorithm="gptq", statistics=without, format="fake", output=tmp_path / "none"
        )
