"""Inputs of the float and of the quantized model compared token by token where models choose rows by values."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402
from kvant.torch._routing import RowTracker  # noqa: E402

WIDTH = 16
Send = Callable[["Mixture", Tensor, Tensor], Tensor]


class Mixture(nn.Module):
    """A layer, then experts for each token by the greatest of its first values. With each token its negative is
    there, so that the two experts meet equally many."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ups = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.send = send

    def expert(self, number: int, x: Tensor) -> Tensor:
        return self.downs[number](torch.tanh(self.ups[number](x)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.send(self, x, torch.stack([x[:, 0], -x[:, 0]], dim=-1).topk(1, dim=-1).indices)


def by_place(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    """As Mixtral of transformers 4."""
    made = torch.zeros_like(x)
    for number in range(2):
        token, _ = torch.where(chosen == number)
        made.index_add_(0, token, model.expert(number, x[token]) * 0.5)
    return made


def by_mask(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    for number in range(2):
        mask = (chosen == number).any(dim=-1)
        made[mask] = model.expert(number, x[mask])
    return made


def by_order(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    """As DeepSeek's models: rows are sorted by experts, which get slices of them."""
    order = chosen.view(-1).argsort(stable=True)
    counts = chosen.view(-1).bincount(minlength=2).tolist()
    rows, made, start = x[order], [], 0
    for number, count in enumerate(counts):
        made.append(model.expert(number, rows[start : start + count]))
        start += count
    joined = torch.cat(made)
    back = torch.empty_like(joined)
    back[order] = joined
    return back


def by_list(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    for number in range(2):
        tokens = [token for token, expert in enumerate(chosen.view(-1).tolist()) if expert == number]
        made[tokens] = model.expert(number, x[torch.tensor(tokens)])
    return made


def by_split(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    order = chosen.view(-1).argsort(stable=True)
    parts = x.index_select(0, order).split(chosen.view(-1).bincount(minlength=2).tolist())
    joined = torch.cat([model.expert(number, part) for number, part in enumerate(parts)])
    return torch.zeros_like(x).index_copy_(0, order, joined)


def by_buffer(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    """Rows are written into buffers of the experts, in the order of tokens, after an empty one."""
    made = torch.zeros_like(x)
    for number in range(2):
        tokens = (chosen.view(-1) == number).nonzero().flatten()
        buffer = torch.zeros(len(x), WIDTH)
        buffer[torch.arange(len(tokens))] = x[tokens]
        made[tokens] = model.expert(number, buffer[: len(tokens)])
    return made


def by_product(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    """Rows are chosen by a product with a matrix of zeros and ones."""
    made = torch.zeros_like(x)
    for number in range(2):
        one_hot = nn.functional.one_hot((chosen.view(-1) == number).nonzero().flatten(), len(x)).float()
        made = made + one_hot.T @ model.expert(number, one_hot @ x)
    return made


def batches() -> list[Tensor]:
    torch.manual_seed(0)
    halves = [torch.randn(24, WIDTH) for _ in range(3)]
    return [torch.cat([half, -half]) for half in halves]


def expected_codes(model: Mixture, before: Mixture, algorithm: str, number: int, layer: str) -> Tensor:
    """The codes of a layer of an expert, with rows paired by hand."""
    sums = kvant.Hessian(WIDTH, mismatch=True)
    for batch in batches():
        inputs = []
        for of in (model, before):
            hidden = of.first(batch)
            chosen = (hidden[:, 0] > 0) == (number == 0)
            up = of.ups[number]
            inputs.append((chosen, hidden if layer == "ups" else torch.tanh(up(hidden))))
        (ours, rows), (theirs, float_rows) = inputs
        assert ours.sum() == theirs.sum() == 24 and not torch.equal(ours, theirs), "counts are equal, tokens are not"
        sums.add(rows[ours], torch.where(theirs[:, None], float_rows, rows)[ours])
    weight = getattr(before, layer)[number].weight.detach()
    return kvant.round_tensor(weight, "int3:g16", algorithm, sums).dequantize()


@pytest.mark.parametrize("send", [by_place, by_mask, by_order, by_list, by_split])
@pytest.mark.parametrize("algorithm", ["gptaq", "qronos"])
def test_rows_of_experts_are_paired_by_token(send: Send, algorithm: str) -> None:
    torch.manual_seed(1)
    model = Mixture(send).eval()
    before = copy.deepcopy(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        kt.quantize_(model, "int3:g16", batches(), algorithm=algorithm, overrides={"first": "int2:channel"})
        kt.freeze(model)
        for number in range(2):
            found = model.ups[number].weight
            assert torch.allclose(found, expected_codes(model, before, algorithm, number, "ups"), atol=1e-6)


def assert_expert_is_rounded_as_gptq_rounds_it(send: Send, number: int) -> None:
    """A warning names the layer whose rows are not paired."""
    torch.manual_seed(1)
    model = Mixture(send).eval()
    plain = copy.deepcopy(model)
    given: Any = {"overrides": {"first": "int2:channel"}}
    with pytest.warns(kvant.KvantWarning, match=rf"layer ups\.{number} is rounded as GPTQ"):
        kt.quantize_(model, "int3:g16", batches(), algorithm="gptaq", **given)
    kt.quantize_(plain, "int3:g16", batches(), algorithm="gptq", **given)
    assert torch.equal(model.ups[number].weight, plain.ups[number].weight)


@pytest.mark.parametrize("send", [by_buffer, by_product])
def test_rows_of_experts_are_never_paired_by_place(send: Send) -> None:
    assert_expert_is_rounded_as_gptq_rounds_it(send, 1)


class Residual(nn.Module):
    """Blocks with experts in one tensor whose inputs differ, so that they are no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.experts = nn.Parameter(torch.randn(2, WIDTH, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            chosen = torch.stack([x[:, 0], -x[:, 0]], dim=-1).topk(1, dim=-1).indices.view(-1)
            order = chosen.argsort(stable=True)
            made = torch.einsum("ti,tio->to", x[order], self.experts[chosen[order]])
            x = x + made[order.argsort()].view(len(x), 1, WIDTH).sum(dim=1)
        return x


def test_what_is_added_to_all_tokens_has_their_rows() -> None:
    torch.manual_seed(1)
    model = Residual().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kt.quantize_(model, "int2:channel", batches(), algorithm="gptaq", exclude=["layers.2", "experts"])


def mixing(model: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    """Rows that no token has for itself."""
    token, _ = torch.where(chosen == 0)
    mixed = x[token].cumsum(dim=0)
    return model.expert(1, model.expert(0, mixed))


def test_layers_whose_rows_are_of_unknown_tokens_are_named_and_rounded_as_by_gptq() -> None:
    assert_expert_is_rounded_as_gptq_rounds_it(mixing, 0)


class Dense(nn.Module):
    """Slices, heads and tables, which choose no rows by values."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, WIDTH))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        # The codes of values are rows of a table, but tokens keep their places.
        x = x + self.table[(x @ self.table.T).argmax(dim=-1)]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        rotated = torch.cat([-q[..., WIDTH // 2 :], q[..., : WIDTH // 2]], dim=-1)
        scores = (rotated @ k.transpose(-1, -2)).masked_fill(torch.ones(len(x), len(x)).triu(1) > 0, -1e9)
        return self.out(scores.softmax(dim=-1) @ v)


def test_other_models_are_paired_by_place() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Dense()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kt.quantize_(model, "int3:g16", batches(), algorithm="gptaq")


def test_tokens_are_followed_through_operators() -> None:
    x = torch.randn(6, 4)
    with torch.no_grad(), RowTracker() as tracker:
        chosen = torch.tensor([False, True, True, False, True, False])
        rows = x[chosen]
        assert tracker.of(rows).tokens.tolist() == [1, 2, 4]
        made = torch.relu(nn.functional.linear(rows, torch.randn(3, 4)) * 2).unsqueeze(0)
        assert tracker.of(made).tokens.tolist() == [1, 2, 4]
        assert tracker.of(made.squeeze(0)[1:]).tokens.tolist() == [2, 4]
        assert tracker.of(rows.sum(dim=0)).tokens is None and tracker.of(rows.sum(dim=0)).path
        back = torch.zeros(6, 4).index_add_(0, chosen.nonzero().flatten(), rows)
        assert not tracker.of(back).path and not tracker.of(x).path
