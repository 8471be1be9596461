"""The command line of the wheel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

MODULE = [sys.executable, "-m", "kvant"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MODULE, *map(str, arguments)], capture_output=True, text=True)


def test_exit_codes_are_those_of_the_command(llama: Path, tmp_path: Path) -> None:
    assert run("inspect", llama).returncode == 0
    damaged = tmp_path / "a.safetensors"
    damaged.write_bytes(b"\xff" * 64)
    assert run("inspect", damaged).returncode == 1
    assert run("quantize", llama, "--scheme", "nonsense", "-o", tmp_path / "out").returncode == 2
    assert run("--no-such-option").returncode == 2
    assert "error:" in run("inspect", damaged).stderr


def test_script_is_the_same_command() -> None:
    script = shutil.which("kvant", path=os.path.dirname(sys.executable))
    if script is None:
        pytest.skip("the package is not installed")
    shown = subprocess.run([script, "--help"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, run("--help").stdout)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_the_command_with_130_and_it_resumes(llama: Path, tmp_path: Path) -> None:
    numpy.save(tmp_path / "tokens.npy", numpy.random.default_rng(0).integers(0, 256, (330, 128)))
    options = ["--scheme", "int4:g128", "--algorithm", "gptq", "--calib", tmp_path / "tokens.npy", "--seq-len", 128]
    command = [*MODULE, "quantize", llama, *options, "--num-samples", 300, "-o", tmp_path / "out"]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("*.partial*")) and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Interrupted" in stderr and "Traceback" not in stderr
    assert subprocess.run([*map(str, command)], capture_output=True).returncode == 0


def test_graph_is_opened_by_a_process_of_the_package(
    graph: Path, samples: dict[str, numpy.ndarray], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    numpy.savez(tmp_path / "data.npz", **samples)
    made = run(
        "quantize", graph, "--preset", "A8W8", "--data", tmp_path / "data.npz", "-o", tmp_path / "out.onnx", "--json"
    )
    assert made.returncode == 0, made.stderr
    assert '"opens":true' in made.stdout
