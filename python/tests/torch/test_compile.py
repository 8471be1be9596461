"""Models that are quantized in place compute in torch.compile as in eager mode, without breaks of their graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import kvant.torch as kt  # noqa: E402

SCHEMES = (
    "int4:g16",
    "int8:channel+int8:tensor!static",
    "int8:channel+uint8:tensor:zp!static+int8:tensor!static",
    "e4m3:channel+e4m3:channel!dynamic",
    "mxfp4",
    "nvfp4",
    "mx6",
    "int4_fp8",
)


class Net(nn.Module):
    """An embedding, a convolution, and a block of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(11, 32), nn.LayerNorm(32)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        y = self.conv(self.embed(x).transpose(1, 2)).transpose(1, 2)
        return y + self.down(torch.relu(self.up(self.norm(y))))


def compared(scheme: str, backend: str, is_frozen: bool) -> tuple[Any, Any]:
    """The outputs of a compiled model and of eager mode."""
    model, batches = Net().eval(), [torch.randint(0, 11, (2, 9)) for _ in range(2)]
    x = torch.randint(0, 11, (3, 9))
    whole = model(x)
    kt.quantize_(model, scheme, batches, layer_types={nn.Embedding: "int8:channel"})
    if is_frozen:
        kt.freeze(model)
    torch.compiler.reset()
    with torch.no_grad():
        expected = model(x)
        made = torch.compile(model, backend=backend, fullgraph=True)(x)
    assert not torch.equal(expected, whole)
    return made, expected


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_compiled_models_give_the_values_of_eager_mode(scheme: str, is_frozen: bool) -> None:
    made, expected = compared(scheme, "aot_eager", is_frozen)
    assert torch.equal(made, expected)


@pytest.mark.parametrize("scheme", SCHEMES[:2])
def test_code_of_inductor_gives_them_up_to_the_order_of_sums(scheme: str) -> None:
    made, expected = compared(scheme, "inductor", False)
    assert torch.allclose(made, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
