"""Models and data of the tests."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]

# Commands that a shell starts in the background ignore Ctrl-C, and so would the tests of it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def llama() -> Path:
    """A small trained Llama."""
    return ROOT / "tests/models/nano_llama"


@pytest.fixture
def graph() -> Path:
    """A small convolutional network with one input."""
    return ROOT / "tests/golden/onnx/tinycnn.float.onnx"


@pytest.fixture
def samples() -> dict[str, numpy.ndarray]:
    """Samples of the graph by its input."""
    with numpy.load(ROOT / "tests/golden/onnx/tinycnn.calib.npz") as file:
        return dict(file)


@pytest.fixture
def texts() -> list[str]:
    """Texts of which each is longer than a sequence of the tests."""
    return [f"Document {n}: " + "the quick brown fox jumps over the lazy dog. " * 8 for n in range(24)]


@pytest.fixture
def jsonl(texts: list[str], tmp_path: Path) -> Path:
    """The same texts in a file."""
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def weights(output: Path) -> bytes:
    """The weights of a checkpoint."""
    return (output / "model.safetensors").read_bytes()
