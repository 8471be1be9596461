"""The package: size, time of its import, signatures, types."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kvant

PYTHON = Path(__file__).parent.parent


def signatures() -> object:
    spec = importlib.util.spec_from_file_location("signatures", PYTHON / "tools/signatures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_follow_from_the_options() -> None:
    made = signatures()
    assert made.TARGET.read_text() == made.source(), "`python tools/signatures.py` writes kvant/_files.py"  # type: ignore[attr-defined]


def test_every_option_has_a_keyword() -> None:
    import inspect

    from kvant._run import parameters

    names = {"quantize": "quantize", "plan": "plan", "convert": "convert", "eval": "evaluate", "verify": "verify"}
    for command, function in names.items():
        keywords = set(inspect.signature(getattr(kvant, function)).parameters)
        for keyword, row in parameters(command).items():
            assert {keyword, *row["aliases"]} <= keywords
            option = (row["option"] or keyword).replace("-", "_")
            assert option in keywords or f"{option}_" in keywords


def test_import_takes_less_than_a_tenth_of_a_second() -> None:
    # Time on the processor: that of the clock says how busy the machine is.
    measure = "import time; begun = time.process_time(); import kvant; print(time.process_time() - begun)"
    run = [sys.executable, "-c", measure]
    times = [float(subprocess.run(run, capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    assert min(times) < 0.1, times


def test_import_loads_neither_numpy_nor_torch() -> None:
    loaded = "import kvant, sys; print(sorted({'numpy', 'torch', 'pandas', 'tqdm'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True).stdout.strip() == "[]"


def test_wheel_is_smaller_than_40_mb() -> None:
    wheel = os.environ.get("KVANT_WHEEL")
    if wheel is None:
        pytest.skip("KVANT_WHEEL does not name the wheel")
    assert Path(wheel).stat().st_size < 40e6


def test_public_names_are_documented() -> None:
    assert (Path(kvant.__file__).parent / "py.typed").exists()
    for name in kvant.__all__:
        assert name.startswith("__") or getattr(kvant, name).__doc__, name


def test_stubs_of_the_extension_are_complete(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    settings = ["--mypy-config-file", str(PYTHON / "pyproject.toml")]
    check = [sys.executable, "-m", "mypy.stubtest", "kvant._kvant", *settings]
    environment = {**os.environ, "MYPYPATH": str(PYTHON)}
    passed = subprocess.run(check, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert passed.returncode == 0, passed.stdout + passed.stderr


def test_script_passes_strict_type_checks(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from pathlib import Path

            import kvant

            report = kvant.quantize(Path("model"), "int4_wo_128", output="out", data=["a", "b"], overrides={"a": "b"})
            bits: float | None = report.bits_per_weight
            passes: bool = kvant.verify("out", for_="vllm").passes
            plan: kvant.PlanReport = kvant.plan("model", "fp8", max_memory="1GB", precision="bf16")
            try:
                kvant.evaluate("model", "text.txt")
            except kvant.KvantError as error:
                remedy: str = error.remedy
            """
        )
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import kvant\n\nkvant.quantize('model', 'fp8', output='out', threads='two')\n")
    environment = {**os.environ, "MYPYPATH": str(PYTHON)}
    settings = ["--strict", "--config-file", str(PYTHON / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    check = [sys.executable, "-m", "mypy", *settings]
    passed = subprocess.run([*check, str(script)], capture_output=True, text=True, env=environment)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert subprocess.run([*check, str(wrong)], capture_output=True, env=environment).returncode == 1


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("kvant.torch", "torch", "torch"),
        ("kvant.torch.pt2e", "torchao", "pt2e"),
        ("kvant.transformers", "transformers", "transformers"),
        ("kvant.lm_eval", "lm_eval", "lm-eval"),
        ("kvant.compat.quark.torch", "torch", "torch"),
    ],
)
def test_missing_packages_name_the_extra(module: str, package: str, extra: str) -> None:
    if package not in ("torch", "lm_eval"):
        pytest.importorskip("torch")
    script = f"""
import sys
sys.modules[{package!r}] = None
try:
    import {module}
except ImportError as error:
    import kvant
    assert isinstance(error, kvant.MissingExtraError)
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert f"needs the package {package}" in run.stdout and f"pip install 'kvant[{extra}]'" in run.stdout
