"""The notebooks of the documentation run, and their results are those that they are about."""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

NOTEBOOKS = ROOT / "docs/notebooks"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the code of a notebook in the directory of the notebooks, and returns its variables."""

    def run(name: str) -> dict[str, Any]:
        monkeypatch.chdir(NOTEBOOKS)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
        variables: dict[str, Any] = {"__name__": "__main__"}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                run_cell("".join(cell["source"]), f"{name}.ipynb, cell {cell['id']}", variables)
        return variables

    return run


def run_cell(source: str, name: str, variables: dict[str, Any]) -> None:
    """Runs a cell and represents the value that it ends with, as Jupyter does."""
    statements = ast.parse(source, name)
    last = statements.body[-1]
    shown = ast.Expression(statements.body.pop().value) if isinstance(last, ast.Expr) else None
    exec(compile(statements, name, "exec"), variables)
    if shown is not None:
        value = eval(compile(shown, name, "eval"), variables)
        assert value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


def test_language_model(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    variables = run("language-model")
    assert variables["plan"].quantized_layers == variables["report"].quantized_layers == 28
    assert 4 < variables["report"].bits_per_weight < 4.5
    assert variables["gptq"].kl_mean < 0.7 * variables["nearest"].kl_mean < 0.02
    printed = capsys.readouterr().out
    assert "KL divergence, GPTQ:" in printed and "use std::collections::HashMap;" in printed


def test_onnx_network(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    variables = run("onnx-network")
    assert variables["float_accuracy"] > 0.85
    assert variables["int8_accuracy"] > variables["float_accuracy"] - 0.02
    assert variables["evaluation"].outputs[0]["sqnr_db"] > 28
    assert variables["int4"]["adaround"] > variables["int4"]["nearest"] + 2
    assert "int4, adaround: accuracy" in capsys.readouterr().out


def test_vision_network(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    variables = run("vision-network")
    assert variables["float_accuracy"] > 0.85
    assert variables["quantized_accuracy"] > variables["float_accuracy"] - 0.05
    accuracies = variables["accuracies"]
    assert accuracies[2, "gptq"] > accuracies[2, None] + 0.05
    assert variables["after_training"] > variables["before_training"] + 0.1
    assert "accuracy with int4 weights and int8 activations:" in capsys.readouterr().out
