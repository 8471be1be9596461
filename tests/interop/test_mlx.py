"""What Kvant writes for MLX, loaded and run by mlx-lm on MLX's CPU backend, beside what `kvant verify --for mlx-lm` says of it and the logits
of Kvant's own forward pass; and what mlx-lm writes, read by Kvant.

`.ci/mlx` makes the environment; $KVANT_MLX names the folder of its packages.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

import forward_models
import test_vllm
from conftest import HERE, example
from test_vllm import OF_KIND, assert_families_are_asked, compared

SCHEMES = [*(f"int{bits}:g{size}" for bits in (2, 3, 4, 5, 6, 8) for size in (32, 64)), "int4:g128:zp", "int3:g32:zp", "int8:g32:zp", "uint4:g64:zp",
           "mxfp4_weight_only", "e4m3:g32:e8m0"]  # fmt: skip
OPTIONS = [("--override", "*.down_proj=int8:g64"), ("--exclude", "*.layers.1.*"), ("--override", "*.v_proj=e2m1:g32:e8m0")]
FAMILIES = [(name, "int4:g32:zp", "--format", "mlx") for name in sorted(OF_KIND.values())]
CASES = [
    *(("nano_llama", scheme, "--format", "mlx") for scheme in SCHEMES),
    *(("nano_llama", "int4:g64", *options, "--format", "mlx") for options in OPTIONS),
    *((model, "int4:g64", "--format", "mlx") for model in ("nano_mixtral", "nano_opt", "nano_qwen3", "nano_gemma2")),
    *FAMILIES,
]


@pytest.fixture(scope="module")
def answers(kvant, module_path):
    packages = os.environ.get("KVANT_MLX") or pytest.skip("$KVANT_MLX does not name a folder with mlx and mlx-lm")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
    return compared("mlx-lm", sys.executable, CASES, {}, kvant, module_path("mlx"))


def own_logits(checkpoint, tmp_path):
    np.random.default_rng(1).integers(0, 512, (1, 48)).astype("<u4").tofile(tmp_path / "tokens")
    done = subprocess.run([example("logits"), checkpoint, "48", tmp_path / "tokens", tmp_path / "logits"], capture_output=True, text=True, timeout=300)
    return np.fromfile(tmp_path / "logits", dtype="<f4").reshape(1, 48, -1) if done.returncode == 0 else pytest.skip(done.stderr)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_mlx_loads_what_kvant_lists_and_computes_the_same(case, answers, tmp_path):
    mlx, ours = answers.get(case) or pytest.skip("Kvant refuses to write it, or the model is not at hand")
    assert mlx["ok"] == (ours["loads"] == "yes"), (mlx, ours)
    if mlx["ok"]:
        theirs, own = np.load(mlx["checkpoint"] + ".npy"), own_logits(mlx["checkpoint"], tmp_path)
        assert np.abs(theirs - own).max() < 1e-3 * max(1, np.abs(own).max()), case
