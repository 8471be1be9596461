"""Algorithms in place: transforms, roundings on data, bias correction, and the order in which layers are rounded."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402
from kvant.torch._blocks import Walk  # noqa: E402
from kvant.torch._modules import quantized_modules  # noqa: E402
from kvant.torch._runs import Calibration  # noqa: E402
from kvant.torch._smoothing import find_pairs  # noqa: E402


class Block(nn.Module):
    """A gated block between norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm2 = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        y = nn.functional.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y), attn_mask=mask)
        x = x + self.out(y)
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(self.norm(x))


class Outliers(nn.Module):
    """A model whose input channels differ by orders of magnitude, as those of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 8)
        with torch.no_grad():
            self.norm.weight.copy_(torch.logspace(-2, 2, 64))
            self.first.weight /= self.norm.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.relu(self.first(self.norm(x))))


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(1)
    return Decoder().eval()


@pytest.fixture
def tokens() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randint(0, 50, (4, 24)) for _ in range(4)]


def sqnr(model: nn.Module, float_model: nn.Module, batches: list[Any]) -> float:
    with torch.no_grad():
        expected = torch.cat([float_model(batch).flatten() for batch in batches])
        found = torch.cat([model(batch).flatten() for batch in batches])
    return float(10 * torch.log10(expected.square().sum() / (expected - found).square().sum()))


def test_blocks_are_rounded_one_by_one_on_the_outputs_of_those_before(decoder: Decoder, tokens: list[Tensor]) -> None:
    calibration = Calibration(decoder, tokens, None)
    names = [name for name, module in decoder.named_modules() if isinstance(module, nn.Linear)]
    runs: list[str] = []
    decoder.embed.register_forward_hook(lambda *_: runs.append("model"))
    with calibration.evaluating():
        walk = Walk(calibration, names)
        assert [stage.layers[0] for stage in walk.stages] == [*(f"blocks.{i}.query" for i in range(3)), "head"]
        assert [stage.position for stage in walk.stages[:3]] == [0, 1, 2] and walk.stages[3].chain is None
        for stage in walk.stages:
            seen: dict[str, list[Tensor]] = {}
            walk.collect(stage, lambda name, x, _, seen=seen: seen.setdefault(name, []).append(x))
            walk.leave(stage)
            for name in stage.layers:
                expected: list[Tensor] = []
                handle = decoder.get_submodule(name).register_forward_pre_hook(
                    lambda _, args, expected=expected: expected.append(args[0])
                )
                for batch in tokens:
                    decoder(batch)
                handle.remove()
                assert all(torch.equal(x, y) for x, y in zip(seen[name], expected, strict=True)), name
    checks = len(names) * len(tokens)
    assert len(runs) == checks + 1 + 2 * len(tokens), "a trace of one, once up to the first block, once up to the head"


def test_layers_that_only_later_batches_call_are_calibrated() -> None:
    """Routing by values, among batches of one structure."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.even, self.odd = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, choice: Tensor) -> Tensor:
            return x + (self.odd if int(choice) % 2 else self.even)(x)

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: Tensor, choice: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x, choice)
            return x

    torch.manual_seed(4)
    batches = [(torch.randn(20, 8), torch.tensor(choice)) for choice in (0, 0, 1, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = kt.quantize_(Routed(), "int4:g8", batches, algorithm="gptq")
    assert all(module.chosen is not None for _, module in quantized_modules(model))


class Branches(nn.Module):
    """Two layers that read the same tensor in the first batch, and others where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor, is_apart: Tensor) -> Tensor:
        return self.one(x) + self.two(x.flip(0) * 3 if bool(is_apart) else x)


def test_layers_that_begin_in_different_batches_share_no_sums() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x: Tensor, is_late: Tensor) -> Tensor:
            return self.one(x) + self.two(x) if bool(is_late) else self.one(x)

    torch.manual_seed(3)
    batches = [(torch.randn(40, 16) * scale, torch.tensor(scale == 1)) for scale in (100.0, 1.0)]
    float_model = Late()
    model = copy.deepcopy(float_model)
    kt.quantize_(model, "int4:g16", batches, algorithm="gptq")
    sums = kvant.Hessian(16)
    sums.add(batches[1][0])
    expected = kvant.gptq(float_model.two.weight.detach(), sums, "int4:g16").dequantize()
    assert torch.equal(model.two.weight, expected)


def test_inputs_that_track_no_versions_are_taken() -> None:
    with torch.inference_mode():
        batches = [torch.randn(40, 16)]
    model = nn.Sequential(nn.Linear(16, 4))
    kt.quantize_(model, "int4:g16", batches, algorithm="gptq")
    assert model[0].chosen is not None


@pytest.mark.parametrize("last", [False, True])
def test_layers_share_the_sums_of_inputs_that_they_share(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    batches = [(torch.randn(40, 16), torch.tensor(False)), (torch.randn(40, 16), torch.tensor(last))]
    float_model = Branches()
    model = copy.deepcopy(float_model)
    added: list[Tensor] = []

    class Counted(kvant.Hessian):
        def add(self, rows: Any, expected: Any = None) -> None:
            added.append(rows)
            super().add(rows, expected)

    with monkeypatch.context() as patch:
        patch.setattr(kvant, "Hessian", Counted)
        kt.quantize_(model, "int4:g16", batches, algorithm="gptq")
    # Where they turn out to read different ones, each has its own, of all batches.
    assert len(added) == (2 + 4 if last else 2)
    for name, inputs in (
        ("one", [x for x, _ in batches]),
        ("two", [x.flip(0) * 3 if bool(is_apart) else x for x, is_apart in batches]),
    ):
        sums = kvant.Hessian(16)
        for x in inputs:
            sums.add(x)
        expected = kvant.gptq(float_model.get_submodule(name).weight.detach(), sums, "int4:g16").dequantize()
        assert torch.equal(model.get_submodule(name).weight, expected), name


def test_lists_whose_blocks_are_not_a_chain_run_from_the_beginning(tokens: list[Tensor]) -> None:
    class Doubling(Decoder):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for block in self.blocks:
                x = 2 * block(x)
            return self.head(x)

    model = Doubling().eval()
    calibration = Calibration(model, tokens, None)
    with calibration.evaluating():
        walk = Walk(calibration, ["blocks.0.out", "blocks.1.out", "head"])
        assert all(stage.chain is None for stage in walk.stages) and len(walk.stages) == 3
    before = copy.deepcopy(model)
    kt.quantize_(model, "int4:g32", tokens, algorithm="gptq")
    assert sqnr(model, before, tokens) > 5


@pytest.mark.parametrize(
    "algorithm", ["gptq", "gptaq", "qronos", "adaround", "bias-correction", "gptq,bias-correction"]
)
def test_roundings_on_data_beat_the_nearest_codes(decoder: Decoder, tokens: list[Tensor], algorithm: str) -> None:
    plain, better = copy.deepcopy(decoder), copy.deepcopy(decoder)
    kt.quantize_(plain, "int3:g32", exclude="head")
    kt.quantize_(better, "int3:g32", tokens, algorithm=algorithm, exclude="head")
    least = 0.02 if algorithm == "bias-correction" else 0.5
    assert sqnr(better, decoder, tokens) > sqnr(plain, decoder, tokens) + least
    bias = better.blocks[0].out.bias
    assert torch.equal(bias, decoder.blocks[0].out.bias) == ("bias-correction" not in algorithm)


def test_smoothing_pairs_are_found(decoder: Decoder, tokens: list[Tensor]) -> None:
    with torch.no_grad():
        found = {pair.source: pair.layers for pair in find_pairs(Calibration(decoder, tokens, None))}
    assert found["blocks.0.norm"] == ("blocks.0.query", "blocks.0.key", "blocks.0.value")
    assert found["blocks.2.norm2"] == ("blocks.2.gate", "blocks.2.up")
    assert found["blocks.1.up"] == ("blocks.1.down",) and found["norm"] == ("head",)
    assert not {"blocks.0.gate", "blocks.0.value", "blocks.0.out", "blocks.0.down"} & found.keys()


def test_smoothing_changes_no_function_and_helps_dynamic_activations() -> None:
    torch.manual_seed(3)
    model = Outliers().eval()
    batches = [torch.randn(32, 64) for _ in range(4)]
    scheme = "int8:channel+int8:tensor!static"
    plain, smooth = copy.deepcopy(model), copy.deepcopy(model)
    kt.quantize_(plain, scheme, batches)
    kt.quantize_(smooth, scheme, batches, algorithm="smoothquant")
    assert sqnr(smooth, model, batches) > sqnr(plain, model, batches) + 6
    for module in smooth.modules():
        if isinstance(module, kt.TensorQuantizer):
            module.enabled = False
    assert sqnr(smooth, model, batches) > 100, "the float model is the same function"
    assert not torch.equal(smooth.norm.weight, model.norm.weight)


def test_awq_lowers_the_error_of_outputs() -> None:
    torch.manual_seed(3)
    model = Outliers().eval()
    with torch.no_grad():
        model.first.weight *= model.norm.weight
    batches = [torch.randn(64, 64) for _ in range(4)]
    errors = {}
    for algorithm in (None, "awq:clip=off", "awq", "awq,gptq"):
        quantized = kt.quantize_(copy.deepcopy(model), "int3:g32", batches, algorithm=algorithm)
        errors[algorithm] = sqnr(quantized, model, batches)
    assert errors["awq:clip=off"] > errors[None] + 0.5
    assert errors["awq"] > errors[None] + 0.5 and errors["awq,gptq"] > errors["awq"]


def test_pairs_may_be_given() -> None:
    torch.manual_seed(3)
    model, batches = Outliers().eval(), [torch.randn(32, 64)]
    given = kt.quantize_(
        copy.deepcopy(model), "int8:channel", batches, algorithm="smoothquant", smoothing={"norm": ["first"]}
    )
    assert not torch.equal(given.norm.weight, model.norm.weight)
    for table, message in [
        ({"nrm": ["first"]}, "does not have"),
        ({"norm": ["norm"]}, "not a linear layer"),
    ]:
        with pytest.raises(kvant.UsageError, match=message):
            kt.quantize_(copy.deepcopy(model), "int8:channel", batches, algorithm="smoothquant", smoothing=table)


def test_an_error_leaves_the_model_as_it_was(decoder: Decoder, tokens: list[Tensor]) -> None:
    before = copy.deepcopy(decoder)
    calls = 0

    def forward(model: nn.Module, batch: Tensor) -> Any:
        nonlocal calls
        calls += 1
        if calls > 9:
            raise RuntimeError("enough")
        return model(batch)

    with pytest.raises(RuntimeError, match="enough"):
        kt.quantize_(decoder, "int4:g32", tokens, algorithm="smoothquant,gptq", forward=forward)
    assert type(decoder.head) is nn.Linear
    for (name, ours), (_, theirs) in zip(decoder.state_dict().items(), before.state_dict().items(), strict=True):
        assert torch.equal(ours, theirs), name


def test_mistakes_in_algorithms_are_named(decoder: Decoder, tokens: list[Tensor]) -> None:
    for algorithm, message in [("gptp", "gptp"), ("gptq,awq", "before it"), ("gptq", "calibration data")]:
        with pytest.raises(kvant.UsageError, match=message):
            kt.quantize_(decoder, "int4:g32", None if algorithm == "gptq" else tokens, algorithm=algorithm)


def test_decoders_of_transformers_run_block_by_block(llama: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    torch.manual_seed(0)
    batches = [{"input_ids": torch.randint(0, 2000, (2, 48))} for _ in range(2)]
    calibration = Calibration(model, batches, None)
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and "lm_head" not in name]
    with calibration.evaluating():
        stages = Walk(calibration, names).stages
        assert stages and all(stage.chain is not None for stage in stages)
        sources = {pair.source.rpartition(".")[2] for pair in find_pairs(calibration)}
    assert {"input_layernorm", "post_attention_layernorm", "up_proj"} <= sources
    assert model.config.use_cache


class Readers(nn.Module):
    """Norms of uneven weights before layers that read them in a way of their own."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(32, 16)
        self.read = read
        with torch.no_grad():
            self.norm.weight.copy_(torch.logspace(-1, 1, 16))
            self.norm2.weight.copy_(torch.logspace(1, -1, 16))

    def forward(self, x: Tensor) -> Any:
        return self.read(self, x)


@pytest.mark.parametrize(
    "read",
    [
        lambda s, x: s.a(s.norm(x)) + s.b(torch.cat([s.norm(x), x], -1)),
        lambda s, x: (lambda y: s.a(y) + s.b(torch.cat([y, x], -1)))(s.norm(x)),
        lambda s, x: (lambda y: (s.a(y), y))(s.norm(x)),
        lambda s, x: {"made": (lambda y: [s.a(y), y])(s.norm(x))},
        lambda s, x: s.a(s.norm(x)) + s.a(x),
        lambda s, x: s.a(s.norm(x)) + s.a(s.norm2(x)),
        lambda s, x: (lambda y: s.a(y) + y.data)(s.norm(x)),
        lambda s, x: (lambda y: s.a(input=y) + (y if x.shape[0] == 7 else 0))(s.norm(x)),
    ],
)
def test_smoothing_changes_no_function_whoever_reads_a_norm(read: Any) -> None:
    torch.manual_seed(0)
    model = Readers(read).eval()
    batches = [torch.randn(4, 5, 16), torch.randn(7, 5, 16)]
    smooth = kt.quantize_(copy.deepcopy(model), "int8:channel", batches, algorithm="smoothquant")
    for module in smooth.modules():
        if isinstance(module, kt.TensorQuantizer):
            module.enabled = False

    def outputs(of: nn.Module) -> Tensor:
        from kvant.torch._runs import tensors_of

        with torch.no_grad():
            return torch.cat([tensor.flatten() for batch in batches for tensor in tensors_of(of(batch))])

    expected, found = outputs(model), outputs(smooth)
    assert (expected - found).norm() < 1e-4 * expected.norm()


class Chained(nn.Module):
    """Blocks with something between them."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            self.between(x)
        return x


def test_changes_in_place_between_blocks_are_seen() -> None:
    torch.manual_seed(0)
    model = Chained(lambda x: x.relu_().mul_(torch.logspace(1.2, -1.2, 32))).eval()
    batches = [torch.randn(64, 32) for _ in range(4)]
    plain = kt.quantize_(copy.deepcopy(model), "int3:g16")
    better = kt.quantize_(copy.deepcopy(model), "int3:g16", batches, algorithm="gptq")
    assert sqnr(better, model, batches) > sqnr(plain, model, batches) + 2


class Switched(nn.Module):
    """Layers in lists whose entries are not called, and one that not every batch reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)]) for _ in range(2))
        self.rare = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        for first, second in self.layers:
            x = second(torch.relu(first(input=x))) + x
        return self.rare(x) if x.shape[0] > 8 else x


@pytest.mark.parametrize("algorithm", ["gptq", "gptaq", "qronos,bias-correction", "awq"])
def test_layers_are_rounded_however_they_are_called(algorithm: str) -> None:
    torch.manual_seed(0)
    model = Switched().eval()
    batches = [torch.randn(8, 32), torch.randn(0, 32), torch.randn(64, 32), torch.randn(80, 32)]
    plain = kt.quantize_(copy.deepcopy(model), "int3:g16")
    better = kt.quantize_(copy.deepcopy(model), "int3:g16", batches, algorithm=algorithm)
    gained = sqnr(better, model, batches[2:]) - sqnr(plain, model, batches[2:])
    assert gained > (0.5 if algorithm != "awq" else -1)


def test_encoder_layers_of_torch_leave_their_fast_path() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(4, 7, 32)
    with torch.no_grad():
        before = model(x)
        kt.quantize_(model, "int2:channel+int8:tensor!static", [x])
        assert (model(x) - before).abs().max() > 0.05


@pytest.mark.parametrize(
    ("scheme", "algorithm"),
    [
        ("int8:channel+int8:tensor!static", None),
        ("int8:channel+int8:tensor:mse!static", None),
        ("int8:channel+int8:channel@1!static", None),
        ("int4:g32", "smoothquant"),
        ("int4:g32", "awq:clip=off"),
        ("int4:g32", "bias-correction"),
        ("int4:g32", "gptq"),
        ("int4:g32", "gptaq"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_data_that_are_not_finite_are_named(scheme: str, algorithm: str | None, value: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).eval()
    batches = [torch.randn(4, 32) for _ in range(3)]
    batches[1][2, 3] = value
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(kvant.InvalidError, match="layer 1: inputs are NaN or infinite in batch 1 of the data"):
        kt.quantize_(model, scheme, batches, algorithm=algorithm)
    assert type(model[1]) is nn.Linear and all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("algorithm", ["gptaq,bias-correction", "qronos,bias-correction"])
def test_the_float_model_keeps_its_biases(algorithm: str) -> None:
    torch.manual_seed(0)

    class Apart(nn.Module):
        """Layers that are no chain, and one after them."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)]), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a[0](x)) + self.a[1](x)

    model = Apart().eval()
    before = copy.deepcopy(model)
    batches = [torch.randn(64, 32) + 3 for _ in range(2)]
    kt.quantize_(model, "int2:g16", batches, algorithm=algorithm)
    first = kt.freeze(copy.deepcopy(model)).a[0]
    assert not torch.equal(first.bias, before.a[0].bias)
    sums = kvant.Hessian(32, mismatch=True)
    with torch.no_grad():
        for batch in batches:
            sums.add(first(batch), before.a[0](batch))
        codes = kvant.round_tensor(before.b.weight.detach(), "int2:g16", algorithm.split(",")[0], sums)
    assert torch.equal(codes.dequantize(), model.b.weight)


def test_caches_in_batches_stay_as_they_are(llama: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    ids = torch.arange(12).reshape(1, 12)

    def batch() -> dict[str, Any]:
        with torch.no_grad():
            cache = model(ids[:, :8], use_cache=True).past_key_values
        return {"input_ids": ids[:, 8:], "past_key_values": cache}

    for algorithm, scheme in [("gptq", "int4:g32"), (None, "int8:channel+int8:tensor!static")]:
        given, other = batch(), batch()
        model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
        kt.quantize_(model, scheme, [given, given], algorithm=algorithm)
        assert given["past_key_values"].get_seq_length() == 8
        alone = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
        kt.quantize_(alone, scheme, [other], algorithm=algorithm)
        assert all(torch.equal(x, y) for x, y in zip(model.parameters(), alone.parameters(), strict=True))


def test_a_cache_with_gradients_is_refused(llama: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    ids = torch.arange(12).reshape(1, 12)
    batch = {"input_ids": ids[:, 8:], "past_key_values": model(ids[:, :8], use_cache=True).past_key_values}
    with pytest.raises(kvant.UsageError, match="no_grad"):
        kt.quantize_(model, "int4:g32", [batch], algorithm="gptq")


def test_entries_of_a_sequential_model_are_rounded_one_by_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 32), nn.Tanh()), nn.Linear(32, 8))
    model.eval()
    batches = [torch.randn(40, 32) for _ in range(2)]
    with torch.no_grad():
        stages = Walk(Calibration(model, batches, None), ["0", "2.0", "3"]).stages
        assert [stage.layers for stage in stages] == [["0"], ["2.0"], ["3"]]
        assert all(stage.chain is not None for stage in stages)
        backbone = nn.Sequential(nn.Linear(32, 32), Decoder().blocks[0], nn.Linear(32, 8)).eval()
        nested = nn.Sequential(nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)))
        names = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
        assert len(Walk(Calibration(backbone, [batches[0][None]], None), names).stages) == 3
        assert len(Walk(Calibration(nested, batches, None), ["0", "1.0", "1.1"]).stages) == 3
    second, sums = model[2][0].weight.detach().clone(), kvant.Hessian(32)
    kt.quantize_(model, "int2:g16", batches, algorithm="gptq")
    with torch.no_grad():
        for batch in batches:
            sums.add(torch.relu(kt.freeze(copy.deepcopy(model[0]))(batch)))
    assert torch.equal(kvant.round_tensor(second, "int2:g16", "gptq", sums).dequantize(), model[2][0].weight)
