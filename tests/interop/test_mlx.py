"""What Kvant writes for MLX, loaded and run by mlx-lm on MLX's CPU backend, beside what `kvant verify --for mlx-lm` says of it and the logits
of Kvant's own forward pass; and what mlx-lm writes, read by Kvant.

`.ci/mlx` makes the environment; $KVANT_MLX names the folder of its packages.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import models
import test_vllm
from conftest import HERE, REPO, example
from test_vllm import OF_KIND, assert_families_are_asked, compared

SCHEMES = ["int2:g64", "int3:g64", "int4:g32", "int5:g32", "int6:g64", "int8:g64", "int4:g128:zp", "int3:g32:zp", "int8:g32:zp", "uint4:g64:zp",
           "mxfp4_weight_only", "e4m3:g32:e8m0"]  # fmt: skip
OPTIONS = [("--override", "*.down_proj=int8:g64"), ("--exclude", "*.layers.1.*"), ("--override", "*.o_proj=e2m1:g32:e8m0"), ("--override", "*.v_proj=int6:g64")]
# Families that are left out, and why. The rules of the loader must not say that it loads them.
LEFT_OUT_FAMILIES = {
    "keys that mlx-lm wants in config.json have not been found out, or it fails over the small model": {
        "bailing_hybrid", "bitnet", "dbrx", "deepseek_v4", "exaone4", "exaone_moe", "falcon_h1", "gemma3n", "gemma4", "gpt_bigcode", "gpt_neox", "granitemoehybrid", "kimi_k25", "kimi_linear", "kolibri1", "lfm2", "lfm3",
        "longcat_flash", "minimax", "minimax_m3", "minimax_m3_text",
        "mamba2", "mimo_v2_flash", "nanochat", "olmo", "olmo3", "olmo_hybrid", "phimoe", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl_moe", "solar_open"},
    "no group fits the small model, or no layout but GGUF holds it": {"falcon_mamba", "gpt2", "mamba"},
    "there is no small model of it": test_vllm.NO_MODEL,
    "mlx-lm has decoders only": test_vllm.ENCODERS | test_vllm.ENCODER_DECODERS | {"whisper"},
}  # fmt: skip
UNASKED = set().union(*LEFT_OUT_FAMILIES.values())
# mlx-lm knows no bias of this head, which published models do not have.
CHANGES = dict(test_vllm.CHANGES, ernie4_5_moe=dict(use_bias=False, tie_word_embeddings=True))
# mlx-lm computes something else with floats too: it has no windows, turns other components, or leaves biases of routers out.
DIFFERING = {"dots1", "ernie4_5_moe", "gemma2", "glm", "jamba", "mistral", "mixtral", "phi3", "starcoder2"}
# mlx-lm loads codes of these and computes with others, to which it rounds the codes of a layer.
REQUANTIZED = {"mistral4"}
FAMILIES = [name for kind, name in sorted(OF_KIND.items()) if not {kind, name} & UNASKED and name not in test_vllm.OTHER_NAMES]
CASES = [
    *(("nano_llama", scheme, "--format", "mlx") for scheme in SCHEMES),
    *(("nano_llama", "int4:g64", *options, "--format", "mlx") for options in OPTIONS),
    *((model, "int4:g64", "--format", "mlx") for model in ("nano_mixtral", "nano_opt", "nano_qwen3")),
    *((name, "int4:g32:zp", "--format", "mlx") for name in FAMILIES),
    # Experts of a block in one tensor, others than the rest.
    *((name, "int4:g32", "--override", "*.experts.*=int3:g32", "--format", "mlx") for name in ("nano_mixtral", "qwen3_moe", "olmoe_heads")),
    *((name, "int4:g32", *options, "--format", "mlx") for name, down in (("nano_mixtral", "w2"), ("qwen3_moe", "down_proj"))
      for options in (("--override", f"*.{down}=int8:g32"), ("--exclude", "*.experts.*"), ("--no-keep-defaults",))),
    # Plain floats, beside which those that differ are judged.
    *((name, "int4:g32:zp", "--format", "fake") for name in ("nano_llama", *sorted(DIFFERING))),
]


@pytest.fixture(scope="module")
def answers(kvant, module_path):
    packages = os.environ.get("KVANT_MLX") or pytest.skip("$KVANT_MLX does not name a folder with mlx and mlx-lm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")])))
        yield compared("mlx-lm", sys.executable, CASES, CHANGES, kvant, module_path("mlx"))


def own_logits(checkpoint, folder):
    np.random.default_rng(1).integers(0, 512, (1, 48)).astype("<u4").tofile(folder / "tokens")
    done = subprocess.run([example("logits"), checkpoint, "48", folder / "tokens", folder / "logits"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return np.fromfile(folder / "logits", dtype="<f4").reshape(1, 48, -1)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_mlx_loads_what_kvant_lists_and_computes_the_same(case, answers, tmp_path):
    mlx, ours = answers.get(case) or pytest.skip("Kvant refuses to write it, or the model is not at hand")
    assert mlx["ok"] == (ours["loads"] == "yes" or case[0] in REQUANTIZED), (mlx, ours)
    if case[0] in REQUANTIZED:
        assert ours["loads"] == "no" and np.abs(np.load(mlx["checkpoint"] + ".npy") - own_logits(mlx["checkpoint"], tmp_path)).max() > 0.1
        return
    if not mlx["ok"]:
        return
    found, tolerance = np.load(mlx["checkpoint"] + ".npy"), 1e-3
    if case[0] in DIFFERING:
        floats, _ = answers[(*case[:-1], "fake")]
        # Their floats, and biases here, are rounded to bfloat16.
        expected, tolerance = np.load(floats["checkpoint"] + ".npy"), 5e-2
    else:
        expected = own_logits(mlx["checkpoint"], tmp_path)
    assert np.abs(found - expected).max() < tolerance * max(1, np.abs(expected).max())


def test_every_family_is_asked_or_left_out_with_a_reason(kvant):
    assert_families_are_asked(kvant, "mlx-lm", CASES, UNASKED)


def test_every_class_of_mlx_lm_is_known(answers):
    """`MODEL_TYPES` of crates/formats/src/format/mlx.rs: others are refused."""
    source = (REPO / "crates/formats/src/format/mlx.rs").read_text().split("const MODEL_TYPES", 1)[1].split("];", 1)[0]
    known = set(re.findall(r'"([^"]+)"', source))
    folder = pathlib.Path(os.environ["KVANT_MLX"]) / "mlx_lm"
    classes = {path.stem for path in (folder / "models").glob("*.py") if re.search(r"class Model\b|import .*\bModel\b", path.read_text())}
    mapped = re.findall(r'"([^"]+)": "[^"]+"', (folder / "utils.py").read_text().split("MODEL_REMAPPING = {", 1)[1].split("}", 1)[0])
    assert known == classes - {"__init__"} | set(mapped)


# Embeddings and the head are codes too.
@pytest.mark.parametrize(("bits", "size"), [(4, 64), (3, 32), (8, 64), (6, 128)])
def test_checkpoints_of_mlx_are_read(bits, size, kvant, answers, tmp_path):
    model, out = models.find_shared("nano_llama", REPO, os.environ.get("KVANT_MODELS")), tmp_path / "theirs"
    convert = f"from mlx_lm import convert; convert({str(model)!r}, {str(out)!r}, quantize=True, q_bits={bits}, q_group_size={size})"
    done = subprocess.run([sys.executable, "-c", convert], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, HERE / "mlx-lm_load.py", out], capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout.splitlines()[-1])["ok"], done.stdout
    theirs, ours = np.load(f"{out}.npy"), own_logits(out, tmp_path)
    assert np.abs(theirs - ours).max() < 1e-3 * np.abs(ours).max()
    assert kvant("verify", out).returncode == 0
    done = kvant("convert", out, "--to", "float", "-o", tmp_path / "float")
    assert done.returncode == 0, done.stderr
