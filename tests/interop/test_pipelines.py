"""Diffusers loads quantized pipelines, and torchao's format loads in transformers with the codes that Kvant chose."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = ROOT / "target" / "extras"
HERE = Path(__file__).parent
PIPELINES = ["flux", "sd", "sdxl", "sd3", "pixart", "qwen_image", "wan"]

pytestmark = pytest.mark.skipif(
    not (EXTRAS / "diffusers").is_dir() or not (EXTRAS / "torchao").is_dir(), reason="without diffusers and torchao"
)


@pytest.fixture(scope="module")
def python():
    """python(script, *arguments) -> what its `run` returns, in a process with diffusers and torchao in its path."""
    path = os.pathsep.join(filter(None, [str(EXTRAS), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, str(HERE / "extras_worker.py")], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:

        def ask(script, *arguments):
            worker.stdin.write(json.dumps([script, *map(str, arguments)]) + "\n")
            worker.stdin.flush()
            answer = json.loads(worker.stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["result"]

        yield ask
        worker.stdin.close()


def run(kvant, *args, check=True):
    """Runs the command line."""
    done = kvant(*args)
    assert done.returncode == 0 or not check, done.stderr
    return done


@pytest.fixture(scope="module")
def pipelines(python, tmp_path_factory):
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("pipelines") / name
            python("diffusers_pipelines", "make", name, made[name])
        return made[name]

    return of


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_load_with_the_codes_that_were_chosen(kvant, python, name, pipelines, tmp_path):
    source = pipelines(name)
    denoiser = "unet" if name in ("sd", "sdxl") else "transformer"
    # Scales in f32, as torchao's format has them, so that `fake` has the same codes.
    for scheme in ("e4m3:channel:f32", "int8:channel:f32"):
        out, fake = tmp_path / f"{scheme[:4]}", tmp_path / f"{scheme[:4]}-fake"
        report = json.loads(run(kvant, "quantize", source, "--component", f"{denoiser}={scheme}", "--json", "-o", out).stdout)
        run(kvant, "quantize", source, "--component", f"{denoiser}={scheme}", "--format", "fake", "-o", fake)
        run(kvant, "verify", out)
        found = python("diffusers_pipelines", "load", source, out, fake)
        made = {component["name"]: component for component in report["components"]}
        assert found[denoiser]["codes"] == made[denoiser]["quantized_layers"] > 0
        # The floats of `fake` are rounded to bf16.
        assert all(component["weights"] <= 2**-8 for component in found.values()), found
        assert found[denoiser]["cosine"] > 0.99, found
        assert all(component["codes"] == 0 for other, component in found.items() if other != denoiser)


def test_large_components_are_quantized_by_default(kvant, python, pipelines, tmp_path):
    source, out = pipelines("flux"), tmp_path / "out"
    report = json.loads(run(kvant, "quantize", source, "--scheme", "int8:channel", "--json", "-o", out).stdout)
    reasons = {component["name"]: component["reason"] for component in report["components"]}
    assert reasons["transformer"] is None and "AutoencoderKL" in reasons["vae"]
    found = python("diffusers_pipelines", "load", source, out)
    assert found["transformer"]["codes"] > 0 and found["vae"]["codes"] == 0
    # Text encoders load through transformers.
    quantized = {name for name, reason in reasons.items() if reason is None}
    assert quantized == {name for name, component in found.items() if component["codes"] > 0}


def test_schemes_without_a_layout_become_floats(kvant, python, pipelines, tmp_path):
    source, out = pipelines("wan"), tmp_path / "out"
    report = json.loads(run(kvant, "quantize", source, "--scheme", "int4:g16", "--json", "-o", out).stdout)
    assert [component["format"] for component in report["components"]] == ["fake"]
    assert python("diffusers_pipelines", "load", source, out)["transformer"]["cosine"] > 0.9


def captured(python, source, name, path):
    """A file of statistics; skips where the environment has no kvant package, or one that does not capture any."""
    pytest.importorskip("kvant.torch", exc_type=ImportError)
    python("diffusers_pipelines", "capture", source, name, path)
    return path


@pytest.mark.parametrize(("pipeline", "name"), [("flux", "transformer"), ("pixart", "transformer"), ("sd", "unet")])
def test_captured_statistics_give_static_scales(kvant, python, pipelines, pipeline, name, tmp_path):
    source = pipelines(pipeline)
    statistics = captured(python, source, name, tmp_path / "statistics.safetensors")
    for scheme in ("int8:channel+int8:tensor!static", "e4m3:channel+e4m3:tensor!static"):
        out = tmp_path / scheme[:4]
        line = ["quantize", source, "--component", f"{name}={scheme}", "--json", "-o", out]
        refused = run(kvant, *line, check=False)
        assert refused.returncode == 1 and "--statistics" in refused.stderr, refused.stderr
        report = json.loads(run(kvant, *line, "--statistics", statistics).stdout)
        layers = {component["name"]: component["quantized_layers"] for component in report["components"]}[name]
        record = json.loads((out / name / "calibration.json").read_text())
        assert record["statistics"]["component"] == name and len(record["statistics"]["xxh3_128"]) == 32
        found = python("diffusers_pipelines", "static", source, name, out)
        assert found["layers"] == found["static"] == layers > 0, found
        assert 0 < found["error"] < 0.02, found


@pytest.mark.parametrize("pipeline", ["flux", "pixart"])
def test_searched_scales_weighed_by_inputs_lose_less(kvant, python, pipelines, pipeline, tmp_path):
    source = pipelines(pipeline)
    statistics = captured(python, source, "transformer", tmp_path / "statistics.safetensors")
    errors = {}
    for name, given in {"plain": [], "weighed": ["--statistics", statistics]}.items():
        out = tmp_path / name
        run(kvant, "quantize", source, "--component", "transformer=int3:g16", "--scales", "search", "--format", "fake",
            *given, "-o", out)  # fmt: skip
        errors[name] = python("diffusers_pipelines", "load", source, out)["transformer"]["error"]
    assert errors["weighed"] < errors["plain"], errors


SCHEMES = [
    "int8:channel",
    "int8:tensor",
    "W8A8",
    "e4m3:channel",
    "e4m3:tensor",
    "FP8_DYNAMIC",
    "MXFP8",
    "MXFP4",
    "NVFP4A16",
]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_transformers_reads_torchao_as_it_was_written(kvant, python, scheme, tmp_path):
    source = ROOT / "tests" / "models" / "nano_llama"
    out, back = tmp_path / "out", tmp_path / "back"
    shards = ["--max-shard-size", "1MB"] if scheme == "int8:channel" else []
    run(kvant, "quantize", source, "--scheme", scheme, "--format", "torchao", *shards, "-o", out)
    run(kvant, "verify", out, "--for", "transformers")
    # Kvant reads it back, to floats in bf16.
    run(kvant, "convert", out, "--to", "float", "-o", back)
    found = python("torchao_load", out, back)
    assert found["codes"] == 28 and found["difference"] <= 2**-8, found
    floats = python("torchao_load", back, source)
    assert floats["codes"] == 0 and 0 < floats["difference"] < 0.3, floats


def test_torchaos_own_checkpoints_are_read(kvant, python, tmp_path):
    source = ROOT / "tests" / "models" / "nano_llama"
    for name in ("int8", "fp8", "nvfp4"):
        python("torchao_load", "make", name, source, tmp_path / name)
        read = run(kvant, "convert", tmp_path / name, "--to", "float", "-o", tmp_path / f"{name}-float", check=False)
        if name == "nvfp4":
            assert read.returncode == 1 and "order of a GPU's kernels" in read.stderr, read.stderr
            continue
        assert read.returncode == 0, read.stderr
        found = python("torchao_load", tmp_path / name, tmp_path / f"{name}-float")
        assert found["codes"] == 28 and found["difference"] <= 2**-8, found
