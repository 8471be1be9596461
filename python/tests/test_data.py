"""Data in memory: the result is that of the same data in a file."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import weights

import kvant

# Scales of activations depend on every token.
STATIC = {"scheme": "int8:channel+int8:tensor!static", "num_samples": 8, "seq_len": 32, "progress": False}


def quantized(model: Path, data: Any, output: Path, **options: Any) -> bytes:
    kvant.quantize(model, data=data, output=output, **{**STATIC, **options})
    return weights(output)


@pytest.fixture
def tokens() -> list[list[int]]:
    random = numpy.random.default_rng(0)
    return random.integers(0, 256, (12, 32)).tolist()


def rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_texts_equal_their_file(llama: Path, texts: list[str], jsonl: Path, tmp_path: Path) -> None:
    in_file = quantized(llama, jsonl, tmp_path / "file")
    assert quantized(llama, texts, tmp_path / "list") == in_file
    assert quantized(llama, iter(texts), tmp_path / "iterator") == in_file
    assert quantized(llama, [str(jsonl)], tmp_path / "files") == in_file
    assert quantized(llama, texts[8:], tmp_path / "others") != in_file
    assert quantized(llama, None, tmp_path / "calib", calib=jsonl) == in_file


def test_conversations_equal_their_file(llama: Path, texts: list[str], tmp_path: Path) -> None:
    conversations = [[{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}] for text in texts]
    file = rows(tmp_path / "chats.jsonl", [{"messages": conversation} for conversation in conversations])
    assert quantized(llama, conversations, tmp_path / "list") == quantized(llama, file, tmp_path / "file")
    with pytest.raises(kvant.UsageError, match=r"data=\[conversation\]"):
        quantized(llama, conversations[0], tmp_path / "one")


def test_tokens_equal_their_file(llama: Path, tokens: list[list[int]], tmp_path: Path) -> None:
    file = rows(tmp_path / "tokens.jsonl", [{"input_ids": row} for row in tokens])
    in_file = quantized(llama, file, tmp_path / "file")
    assert quantized(llama, tokens, tmp_path / "lists") == in_file
    assert quantized(llama, numpy.array(tokens), tmp_path / "array") == in_file
    assert quantized(llama, [numpy.array(row) for row in tokens], tmp_path / "arrays") == in_file
    assert quantized(llama, {"input_ids": tokens}, tmp_path / "dict") == in_file


def test_batches_equal_their_sequences(llama: Path, tokens: list[list[int]], tmp_path: Path) -> None:
    def loader() -> Iterator[dict[str, numpy.ndarray]]:
        for at in range(0, len(tokens), 4):
            # Padded on the left, as generating models need it.
            ids = numpy.pad(numpy.array(tokens[at : at + 4]), ((0, 0), (3, 0)))
            mask = numpy.ones_like(ids)
            mask[:, :3] = 0
            yield {"input_ids": ids, "attention_mask": mask, "labels": ids}

    assert quantized(llama, loader(), tmp_path / "loader") == quantized(llama, tokens, tmp_path / "lists")


def test_torch_loader_equals_arrays(llama: Path, tokens: list[list[int]], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rows = [{"input_ids": torch.tensor(row)} for row in tokens]
    loader = torch.utils.data.DataLoader(rows, batch_size=5)
    in_memory = quantized(llama, tokens, tmp_path / "lists")
    assert quantized(llama, loader, tmp_path / "loader") == in_memory
    assert quantized(llama, torch.tensor(tokens), tmp_path / "tensor") == in_memory


def test_samples_of_a_graph_equal_their_file(graph: Path, samples: dict[str, numpy.ndarray], tmp_path: Path) -> None:
    def made(data: Any, name: str) -> bytes:
        output = tmp_path / f"{name}.onnx"
        kvant.quantize(graph, "A8W8", data=data, num_samples=4, runtime="rten", output=output, progress=False)
        return output.read_bytes()

    (name, array), *_ = samples.items()
    numpy.savez(tmp_path / "data.npz", **{name: array})
    in_file = made(tmp_path / "data.npz", "file")
    assert made({name: array}, "dict") == in_file
    assert made(array, "array") == in_file
    assert made(({name: array[at : at + 1]} for at in range(len(array))), "batches") == in_file
    assert made([array[:3], array[3:]], "arrays") == in_file
    assert made(array[::-1], "others") != in_file


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "empty"),
        ([["a", "b"]], "no whole number"),
        ([[1.5]], "no whole number"),
        (numpy.zeros((2, 3)), "whole numbers"),
        (7, "type int"),
        (["a text", "calib.jsonl"], "texts and files"),
        ([{"pixel_values": b"0"}], "no JSON"),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], "differ in shape"),
    ],
)
def test_useless_data_are_refused_with_a_remedy(llama: Path, tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(kvant.UsageError, match=message) as caught:
        quantized(llama, data, tmp_path / "out")
    assert caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_mistyped_file_is_not_taken_for_a_text(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(kvant.UsageError, match="missing.jsonl"):
        quantized(llama, ["missing.jsonl"], tmp_path / "out")


def test_files_of_data_in_memory_are_removed(
    llama: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    quantized(llama, texts, tmp_path / "out")
    with pytest.raises(kvant.KvantError):
        quantized(llama, texts, tmp_path / "no-such" / "\0")
    assert os.listdir(temporary) == []


def test_name_and_time_of_a_file_follow_from_its_content(graph: Path, samples: dict[str, numpy.ndarray]) -> None:
    from kvant._data import as_files

    def written(data: Any) -> tuple[str, int, str | None]:
        with as_files("quantize", {"model": graph, "data": data}) as (given, identity):
            path = Path(given["data"])
            return path.name, path.stat().st_mtime_ns, identity

    other = {name: array[::-1] for name, array in samples.items()}
    assert written(samples) == written(dict(samples))
    assert all(mine != theirs for mine, theirs in zip(written(samples), written(other), strict=True))


GPTQ = {"algorithm": "gptq", "scheme": "int4:g128", "num_samples": 120, "seq_len": 128}


@pytest.fixture
def many() -> numpy.ndarray:
    """Sequences for which GPTQ takes seconds."""
    return numpy.random.default_rng(0).integers(0, 256, (132, 128))


def interrupted(monkeypatch: pytest.MonkeyPatch, model: Path, data: Any, output: Path) -> None:
    """Starts a run and presses Ctrl-C once its first block is quantized."""
    pressed = False

    class Pressing(kvant._events.Listener):
        def __call__(self, events: list[tuple[Any, ...]]) -> None:
            nonlocal pressed
            in_second_block = any(event[0] == "progress" and "block 2" in event[1] for event in events)
            if in_second_block and not pressed:
                pressed = True
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr("kvant._run.Listener", Pressing)
        with pytest.raises(KeyboardInterrupt, match="same call"):
            quantized(model, data, output, **GPTQ)
    assert pressed and not output.exists()


def test_interrupted_run_resumes_with_data_in_memory(
    llama: Path, many: numpy.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, llama, many, tmp_path / "out")
    with caplog.at_level("INFO", logger="kvant"):
        resumed = quantized(llama, many.copy(), tmp_path / "out", **GPTQ)
    assert "resuming at block" in caplog.text
    assert resumed == quantized(llama, many, tmp_path / "whole", **GPTQ)


def test_interrupted_run_does_not_resume_with_other_data(
    llama: Path, many: numpy.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, llama, many, tmp_path / "out")
    with pytest.raises(kvant.KvantError, match="data") as caught:
        quantized(llama, many[::-1], tmp_path / "out", **GPTQ)
    assert "restart=True" in caught.value.remedy


def test_model_writes_its_own_data_and_files_have_shares(llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The tower stood where the river turns. " * 200)
    quantized(llama, "self", tmp_path / "own")
    quantized(llama, f"self:0.5,{text}:0.5", tmp_path / "mixed")
    record = json.loads((tmp_path / "mixed" / "calibration.json").read_text())["data"]
    assert [(file["name"], file["share"]) for file in record["files"]] == [("self.jsonl", 0.5), ("text.txt", 0.5)]
    assert not list(tmp_path.glob("*.partial*"))
