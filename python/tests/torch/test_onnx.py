"""ONNX graphs of quantized models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402


def run(path: Path, **inputs: Any) -> dict[str, Any]:
    """The outputs of a graph, by their names."""
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    made = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return {given.name: torch.from_numpy(array) for given, array in zip(session.get_outputs(), made, strict=True)}


def convolutional() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    return model, torch.randn(2, 3, 8, 8)


def test_static_activations_have_operators_of_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model, x = convolutional()
    kt.freeze(kt.quantize_(model, "int8:channel+int8:tensor!static", [x])).train()
    path = kt.export_onnx(model, x, tmp_path / "deep/net.onnx", input_names=["x"], output_names=["y"])
    assert all(module.training for module in model.modules())
    graph = onnx.load(path).graph
    operators = [node.op_type for node in graph.node]
    assert operators.count("QuantizeLinear") == operators.count("DequantizeLinear") == 2
    with torch.no_grad():
        expected = model.eval()(x)
    assert (run(path, x=x)["y"] - expected).abs().max() <= 0.02 * expected.abs().max()
    assert [file.name for file in path.parent.iterdir()] == ["net.onnx"]
    with pytest.raises(kvant.UsageError, match="exists already"):
        kt.export_onnx(model, x, path)


def test_decoders_run_without_their_caches(llama: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    assert model.config.use_cache
    kt.freeze(kt.quantize_(model, "int4:g32"))
    batch = {"input_ids": torch.arange(5, 37).reshape(1, 32), "attention_mask": torch.ones(1, 32, dtype=torch.int64)}
    path = kt.export_onnx(model, batch, tmp_path / "llama.onnx")
    assert model.config.use_cache, "the setting comes back"
    (made,) = run(path, **batch).values()
    with torch.no_grad():
        assert torch.allclose(made, model(**batch).logits, atol=1e-3)


def test_configurations_of_parts_lose_their_caches_too() -> None:
    class Config:
        use_cache = True

    from kvant.torch._runs import evaluating

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.config, model[1].config = Config(), Config()
    with evaluating(model):
        assert not model.config.use_cache and not model[1].config.use_cache and not model.training
    assert model.config.use_cache and model[1].config.use_cache and model.training


@pytest.mark.parametrize(
    ("scheme", "is_frozen", "error", "text"),
    [
        (None, True, kvant.UsageError, "no layer of the model is quantized"),
        ("int8:channel", False, kvant.UsageError, r"layer 0 is not frozen[\s\S]*kvant.torch.freeze"),
        ("int8:channel+int8:channel!dynamic", True, kvant.UnsupportedError, "layer 0"),
    ],
)
def test_what_has_no_graph_is_refused(tmp_path: Path, scheme: Any, is_frozen: bool, error: Any, text: str) -> None:
    model, x = convolutional()
    if scheme:
        kt.quantize_(model, scheme)
    if is_frozen:
        kt.freeze(model)
    with pytest.raises(error, match=text):
        kt.export_onnx(model, x, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_graphs_that_compute_something_else_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")

    class Otherwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            is_exported = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
            return self.layer(x) * (2 if is_exported else 1)

    model = kt.freeze(kt.quantize_(Otherwise(), "int8:channel"))
    with pytest.raises(kvant.UnsupportedError, match=r"differ from the model's by[\s\S]*kvant.quantize"):
        kt.export_onnx(model, torch.randn(2, 4), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
