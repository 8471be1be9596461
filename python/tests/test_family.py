"""Architectures that a file describes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kvant


def test_described_architecture_is_evaluated(llama: Path, texts: list[str], tmp_path: Path) -> None:
    model, text = tmp_path / "model", tmp_path / "text.txt"
    shutil.copytree(llama, model)
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace("LlamaForCausalLM", "Unheard").replace('"llama"', '"unheard"'))
    text.write_text("\n".join(texts))
    with pytest.raises(kvant.UnsupportedError):
        kvant.evaluate(model, data=text, seq_len=64)
    description = tmp_path / "unheard.toml"
    description.write_text('name = "unheard"\nlike = "llama"\nmodel_types = ["unheard"]\n')
    assert kvant.add_family(description) == kvant.add_family(description) == "unheard"
    described, known = kvant.evaluate(model, data=text, seq_len=64), kvant.evaluate(llama, data=text, seq_len=64)
    assert described.perplexity == known.perplexity


def test_mistakes_are_named(tmp_path: Path) -> None:
    description = tmp_path / "wrong.toml"
    description.write_text('name = "wrong"\nmodel_types = ["wrong"]\nmpl = []\n')
    with pytest.raises(kvant.UsageError, match="line 3: unknown field `mpl`"):
        kvant.add_family(description)
    with pytest.raises(kvant.UsageError, match="cannot be read"):
        kvant.add_family(tmp_path / "nowhere.toml")
