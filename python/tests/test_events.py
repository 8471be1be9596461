"""Warnings, notes, progress, signals and threads."""

from __future__ import annotations

import builtins
import logging
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest

import kvant

CALIBRATED: dict[str, Any] = {"scheme": "int4:g128", "algorithm": "gptq", "seq_len": 128}


def tokens(sequences: int) -> numpy.ndarray:
    return numpy.random.default_rng(0).integers(0, 256, (sequences, 128))


def test_warnings_are_python_warnings_at_the_caller(llama: Path, tmp_path: Path) -> None:
    with pytest.warns(kvant.KvantWarning) as caught:
        kvant.quantize(
            llama, "int8:channel+int8:tensor!static", data=["short"], output=tmp_path / "out", progress=False
        )
    assert all(warning.filename == __file__ for warning in caught)
    assert all("‹" not in str(warning.message) for warning in caught)


def test_warning_as_error_stops_the_run(llama: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", kvant.KvantWarning)
        with pytest.raises(kvant.KvantWarning):
            kvant.quantize(
                llama, "int8:channel+int8:tensor!static", data=["short"], output=tmp_path / "out", progress=False
            )


def test_notes_go_to_the_logger(graph: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kvant"):
        kvant.quantize(graph, "A8W8", data="random", runtime="rten", output=tmp_path / "out.onnx", progress=False)
    assert "made up" in caplog.text
    assert {(record.name, record.levelname) for record in caplog.records} == {("kvant", "INFO")}


def test_progress_uses_tqdm_if_it_is_installed(llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    kvant.quantize(llama, data=tokens(64), output=tmp_path / "out", **CALIBRATED)
    shown = capfd.readouterr().err
    assert "running algorithms" in shown and "tokens" in shown
    kvant.quantize(llama, data=tokens(64), output=tmp_path / "silent", progress=False, **CALIBRATED)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_without_tqdm_is_lines(
    llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = builtins.__import__

    def without_tqdm(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("tqdm"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    monkeypatch.setattr("kvant._events._INTERVAL", 0.0)
    kvant.quantize(llama, data=tokens(64), output=tmp_path / "out", **CALIBRATED)
    lines = capfd.readouterr().err.splitlines()
    assert lines and all("%" in line for line in lines)
    assert any(line.startswith("running algorithms: ") and "tokens" in line for line in lines)


def test_other_threads_run_during_a_call(llama: Path, tmp_path: Path) -> None:
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    begun = time.monotonic()
    kvant.quantize(llama, data=tokens(200), output=tmp_path / "out", progress=False, **CALIBRATED)
    took = time.monotonic() - begun
    done.set()
    thread.join()
    # A thread that is kept waiting counts next to nothing.
    assert counted > 50 * took


def test_ctrl_c_stops_a_run_soon(llama: Path, tmp_path: Path) -> None:
    sent = 0.0

    def send() -> None:
        nonlocal sent
        sent = time.monotonic()
        signal.raise_signal(signal.SIGINT)

    timer = threading.Timer(2, send)
    timer.start()
    with pytest.raises(KeyboardInterrupt, match="same call"):
        kvant.quantize(
            llama, data=tokens(4000), num_samples=4000, output=tmp_path / "out", progress=False, **CALIBRATED
        )
    # The whole run takes several times as long.
    assert time.monotonic() - sent < 15
    assert not (tmp_path / "out").exists()


def test_exception_of_a_signal_handler_is_raised(llama: Path, tmp_path: Path) -> None:
    def expired(*_: Any) -> None:
        raise TimeoutError("no time left")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        with pytest.raises(TimeoutError, match="no time left"):
            kvant.quantize(
                llama, data=tokens(4000), num_samples=4000, output=tmp_path / "out", progress=False, **CALIBRATED
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_call_in_another_thread_works(llama: Path, tmp_path: Path) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(kvant.inspect(llama)))
    thread.start()
    thread.join()
    assert found[0].family
