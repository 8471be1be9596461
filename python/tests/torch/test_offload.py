"""Layers that accelerate offloads: algorithms give them the codes that they give layers in memory."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from safetensors.torch import load_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402


class Block(nn.Module):
    """A norm and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.out = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(torch.relu(self.up(self.norm(x))))


class Network(nn.Module):
    """Blocks between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, 32), nn.Linear(32, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def network_and_data() -> tuple[Network, list[Tensor]]:
    torch.manual_seed(0)
    return Network().eval(), [torch.randn(4, 6, 16) for _ in range(3)]


def offloaded(model: nn.Module, how: str, directory: Path) -> Any:
    """A copy whose parameters accelerate offloads, but for one block."""
    model = copy.deepcopy(model)
    if how == "disk":
        return accelerate.disk_offload(model, str(directory / "offloaded"), execution_device="cpu")
    if how == "cpu":
        return accelerate.cpu_offload(model, execution_device="cpu")
    places = {"embed": "cpu", "blocks.0": "cpu", "blocks.1": "disk", "blocks.2": "disk", "head": "disk"}
    return accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=str(directory / "offloaded"))


CASES = [
    ("disk", "gptq", "int4:g16"),
    ("disk", "gptaq", "int4:g16"),
    ("disk", "smoothquant,gptq", "int4:g16+int8:tensor!static"),
    ("disk", "awq", "int4:g16:zp"),
    ("disk", None, "int8:channel"),
    ("cpu", "gptq", "e2m1:g16:e8m0"),
    ("cpu", "hqq", "int4:g16:zp"),
    ("some", "qronos", "int4:g16"),
    ("some", "gptq,bias-correction", "int4:g16"),
]


@pytest.mark.parametrize(("how", "algorithm", "scheme"), CASES)
def test_offloaded_layers_get_the_codes_of_layers_in_memory(
    how: str, algorithm: str | None, scheme: str, tmp_path: Path
) -> None:
    model, data = network_and_data()
    given = {"algorithm": algorithm, "bias": "int8:tensor"}
    moved = kt.quantize_(offloaded(model, how, tmp_path), scheme, data, **given)
    quantized = kt.quantize_(model, scheme, data, **given)
    assert torch.equal(moved(data[0]), quantized(data[0]))
    layers = [layer for _, layer in kt.quantized_modules(moved) if layer.weight.device.type == "meta"]
    assert len(layers) >= 5
    # Neither weights nor codes stay in memory.
    assert all(layer.chosen is None for layer in layers)
    kt.freeze(moved)
    kt.freeze(quantized)
    assert torch.equal(moved(data[0]), quantized(data[0]))
    kt.save(moved, tmp_path / "saved")
    assert torch.equal(kt.load(Network().eval(), tmp_path / "saved")(data[0]), quantized(data[0]))
    format = "fake" if "e2m1" in scheme else "quark"
    kt.export(moved, tmp_path / "moved", format)
    kt.export(quantized, tmp_path / "plain", format)
    ours, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("moved", "plain"))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in ours)


def test_a_run_that_fails_leaves_an_offloaded_model_as_it_was(tmp_path: Path) -> None:
    model, data = network_and_data()
    moved = offloaded(model, "disk", tmp_path)
    expected, files = moved(data[0]), set(os.listdir(tmp_path / "offloaded"))

    def forward(model: nn.Module, batch: Tensor) -> Any:
        if any(layer.weight_quantizer.scale is not None for _, layer in kt.quantized_modules(model)):
            raise ValueError("in the middle")
        return model(batch)

    with pytest.raises(ValueError, match="in the middle"):
        kt.quantize_(moved, "int4:g16+int8:tensor!static", data, algorithm="gptq", forward=forward)
    assert torch.equal(moved(data[0]), expected)
    left = set(os.listdir(tmp_path / "offloaded")) - files
    assert not any(os.listdir(tmp_path / "offloaded" / name) for name in left)


def test_the_files_of_changed_weights_are_removed_with_the_model(tmp_path: Path) -> None:
    model, data = network_and_data()
    moved = kt.quantize_(offloaded(model, "disk", tmp_path), "int4:g16", data, algorithm="gptq")
    own = [name for name in os.listdir(tmp_path / "offloaded") if name.startswith("kvant-")]
    assert len(os.listdir(tmp_path / "offloaded" / own[0])) == 8
    del moved
    import gc

    gc.collect()
    assert not os.path.exists(tmp_path / "offloaded" / own[0])


def test_weights_without_values_are_refused_by_algorithms() -> None:
    model, data = network_and_data()
    with pytest.raises(kvant.UsageError, match="device meta"):
        kt.quantize_(model.to("meta"), "int4:g16", algorithm="hqq", data=data)
