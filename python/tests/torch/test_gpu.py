"""Models on a GPU: the codes that the CPU computes, and nothing moves.

With `$KVANT_TEST_DEVICE` set to `cpu` the tests themselves can be tried where there is no GPU.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402

DEVICE = os.environ.get("KVANT_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU that torch can use"
)

# Computed in torch, and by the CPU.
IN_TORCH = ["int8:tensor", "int8:channel", "int4:g32", "uint4:g32:zp", "int2:g32", "e4m3:channel", "e5m2:tensor"]
IN_TORCH += ["e2m1:g32:e8m0", "e2m3:g32:e8m0", "e3m2:g32:e8m0", "e4m3:g32:e8m0", "e2m1:g16:e4m3:f32"]
IN_TORCH += ["uint4:g32:fzp", "int8:channel:f16", "uint8:tensor:zp!dynamic", "e4m3:channel!dynamic"]
IN_TORCH += ["e2m1:g16:e4m3:f32!dynamic"]
BY_CPU = ["mx6", "bfp16", "e4m3:b16x16"]
WEIGHTS = ["int8:channel", "int4:g32", "uint4:g32:zp", "e4m3:channel", "e2m1:g32:e8m0", "e2m1:g16:e4m3:f32"]


class Block(nn.Module):
    """A gated block behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Network(nn.Module):
    """A convolution, blocks and a head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


@pytest.fixture
def network() -> Network:
    torch.manual_seed(1)
    model = Network().eval()
    with torch.no_grad():
        for block in model.blocks:
            # Channels as unlike as those of language models.
            block.norm.weight.copy_(torch.logspace(-1, 1, 64))
    return model


@pytest.fixture
def images() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(8, 3, 16, 16) for _ in range(4)]


def sqnr(reference: Tensor, found: Tensor) -> float:
    reference, found = reference.detach().cpu().double(), found.detach().cpu().double()
    return float(10 * torch.log10(reference.square().sum() / (reference - found).square().sum().clamp(min=1e-30)))


def places(model: nn.Module) -> set[str]:
    return {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scheme", [*IN_TORCH, *BY_CPU])
def test_operator_computes_the_bits_of_the_cpu(scheme: str, dtype: Any) -> None:
    torch.manual_seed(3)
    x = (torch.randn(48, 128) * torch.logspace(-3, 2, 48).reshape(-1, 1)).to(dtype)
    x[0], x[1, :5] = 0, 0
    made = kt.fake_quantize(x.to(DEVICE), scheme)
    assert made.device.type == DEVICE and made.dtype == dtype
    assert torch.equal(made.cpu(), kt.fake_quantize(x, scheme))


@pytest.mark.parametrize("scheme", ["int8:tensor", "uint4:g32:zp", "int8:channel", "e4m3:channel", "e2m1:g32:e8m0"])
def test_operator_takes_stored_scales(scheme: str) -> None:
    torch.manual_seed(4)
    x = torch.randn(16, 64)
    made = kvant.quantize_tensor(x, scheme)
    zero = None if made.zero_point is None else torch.as_tensor(made.zero_point).to(DEVICE)
    found = kt.fake_quantize(x.to(DEVICE), scheme, torch.as_tensor(made.scale).to(DEVICE), zero)
    assert torch.equal(found.cpu(), torch.as_tensor(made.dequantize()))


@pytest.mark.parametrize("scheme", WEIGHTS)
def test_weights_have_the_codes_of_the_cpu(network: Network, images: list[Tensor], scheme: str, tmp_path: Path) -> None:
    there = copy.deepcopy(network).to(DEVICE)
    for model in (network, there):
        kt.quantize_(model, scheme, exclude=["first"])
    assert places(there) == {DEVICE}
    expected = {name: module.quantized_weight() for name, module in kt.quantized_modules(network)}
    found = {name: module.quantized_weight() for name, module in kt.quantized_modules(there)}
    assert expected.keys() == found.keys() and len(found) == 10
    for name, weight in found.items():
        assert torch.equal(weight.cpu(), expected[name]), name
    assert sqnr(network(images[0]), there(images[0].to(DEVICE))) > 60
    made = [tmp_path / name for name in ("here.safetensors", "there.safetensors")]
    for model, file in zip((network, there), made, strict=True):
        kt.freeze(model)
        kt.save(model, file)
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize("scheme", ["int8:channel+int8:tensor!static", "W8A8", "fp8"])
def test_activations_are_quantized_there(network: Network, images: list[Tensor], scheme: str) -> None:
    there = copy.deepcopy(network).to(DEVICE)
    expected = network(images[0]).detach()
    kt.quantize_(network, scheme, images)
    kt.quantize_(there, scheme, [batch.to(DEVICE) for batch in images])
    assert places(there) == {DEVICE}
    for (name, here), (_, other) in zip(kt.quantized_modules(network), kt.quantized_modules(there), strict=True):
        scales = [module.input_quantizer.scale for module in (here, other)]
        if scales[0] is not None:
            assert torch.allclose(scales[0], scales[1].cpu(), rtol=1e-4), name
    made = there(images[0].to(DEVICE))
    assert sqnr(expected, made) > 15
    # A value beside a boundary between two codes may fall to the other one.
    assert sqnr(network(images[0]), made) > 30


@pytest.mark.parametrize("algorithm", ["gptq", "gptaq", "qronos", "adaround", "awq,gptq", "smoothquant"])
def test_algorithms_beat_rounding_to_nearest_there(network: Network, images: list[Tensor], algorithm: str) -> None:
    scheme = "int8:tensor+int8:tensor!static" if algorithm == "smoothquant" else "int3:g32"
    given = [batch.to(DEVICE) for batch in images]
    there = network.to(DEVICE)
    expected = torch.cat([there(batch) for batch in given]).detach()
    nearest = copy.deepcopy(there)
    kt.quantize_(nearest, scheme, given, exclude=["first"])
    kt.quantize_(there, scheme, given, algorithm=algorithm, exclude=["first"])
    assert places(there) == {DEVICE}
    found = [sqnr(expected, torch.cat([model(batch) for batch in given])) for model in (nearest, there)]
    assert found[1] > found[0], found


def test_training_there_lowers_the_loss_and_moves_scales(network: Network, images: list[Tensor]) -> None:
    there = network.to(DEVICE)
    given = [batch.to(DEVICE) for batch in images]
    targets = [there(batch).detach() for batch in given]
    kt.quantize_(there, "int3:channel+int8:tensor!static", given, trainable=True, steps="learned")
    optimizer = torch.optim.Adam(there.parameters(), lr=1e-3)
    losses = []
    for step in range(30):
        loss = nn.functional.mse_loss(there(given[step % 4]), targets[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4]), losses
    kt.freeze(there)
    assert places(there) == {DEVICE}


@pytest.mark.skipif(DEVICE == "cpu", reason="compiles for a GPU")
def test_compiled_models_compute_the_same(network: Network, images: list[Tensor]) -> None:
    there, batch = network.to(DEVICE), images[0].to(DEVICE)
    kt.quantize_(there, "int8:channel+int8:tensor!dynamic")
    expected = there(batch)
    assert sqnr(expected, torch.compile(there)(batch)) > 40
