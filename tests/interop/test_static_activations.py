"""Static scales of activations: given the ranges that the incumbent's observers saw, kvant's export is the incumbent's, tensor
for tensor and in config.json; and the layouts load, in compressed-tensors too.
"""

import copy
import json
import subprocess

import pytest
import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.utils.llm import preprocess_for_quantization
from transformers import AutoModelForCausalLM

import checkpoint
import quark_oracle
from conftest import example
from loading import load_with_transformers

BATCHES = [quark_oracle.TOKENS + start for start in (0, 100, 200, 300)]
# (scheme, arguments of Quark's template, settings of kvant beside the scheme)
FP8_KV = dict(kv_cache_scheme="fp8")
CASES = {
    "int8": ("int8", {}, {}),
    "fp8": ("fp8", {}, {}),
    "mxfp4_fp8": ("mxfp4_fp8", {}, {}),
    "nvfp4": ("nvfp4", {}, {}),
    "fp8_kv": ("fp8", FP8_KV, dict(kv_cache="fp8")),
    "int4_kv": ("int4_wo_64", dict(FP8_KV, min_kv_scale=0.05), dict(kv_cache="fp8", min_kv_scale=0.05)),
    "fp8_attention": ("fp8", dict(FP8_KV, attention_scheme="fp8"), dict(kv_cache="fp8", queries="fp8", probabilities="fp8")),
    "nvfp4_kv": ("nvfp4", FP8_KV, dict(kv_cache="fp8")),
    "int8_outputs": ("int8", dict(outputs=True), dict(scheme="int8:tensor+int8:tensor!static+int8:tensor!static")),
}
MODELS = [("nano_llama", case) for case in CASES] + [("nano_mixtral", c) for c in ("fp8", "nvfp4", "int8")] + [
    ("nano_opt", "int8"), ("nano_opt", "int8_outputs"), ("nano_mixtral", "int8_outputs"), ("nano_qwen3", "fp8_kv"), ("phi3", "fp8"), ("llama_f32", "int8"), ("llama_f16", "fp8")]  # fmt: skip
# On disk experts have other names than in memory.
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


@pytest.fixture(scope="module")
def calibrated():
    """calibrated(model, settings, ranges, out): kvant's export with observed ranges; returns its report."""
    binary = example("calibrated")

    def run(model, settings, ranges, out):
        out.mkdir(exist_ok=True)
        (out / "recipe.json").write_text(json.dumps({"version": 1, **settings}))
        (out / "ranges.json").write_text(json.dumps(ranges))
        command = [binary, model, out / "recipe.json", out / "ranges.json", out / "made"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return out / "made", json.loads(done.stdout)

    return run


def on_disk(name):
    if ".mlp.experts." not in name:
        return name
    prefix, leaf = name.rsplit(".", 1)
    return f"{prefix.replace('.mlp.', '.block_sparse_moe.')}.{MIXTRAL[leaf]}"


def ends(quantizer):
    """What a static quantizer has seen: its least and greatest value; of two stages the second's."""
    stage = quantizer[-1] if isinstance(quantizer, torch.nn.Sequential) else quantizer
    if stage is None or stage.is_dynamic or not hasattr(stage.observer, "min_val"):
        return None
    low, high = stage.observer.min_val.float(), stage.observer.max_val.float()
    return None if torch.isinf(low).any() else [float(low), float(high)]


def observed(model, rename):
    """The ranges of all places, as kvant names them."""
    found = {}
    for name, module in model.named_modules():
        for side in ("input", "output"):
            quantizer = getattr(module, f"_{side}_quantizer", None)
            if quantizer is not None and (range_ := ends(quantizer)):
                found[f"{side}:{rename(name)}"] = range_
        if getattr(module, "prob_quantizer", None) is not None:
            found[f"probabilities:{name.split('.')[2]}"] = ends(module.prob_quantizer)
    return found


def reference(source, case, out, batches=BATCHES):
    """The incumbent's export and the ranges that it saw."""
    scheme, arguments, _ = CASES[case]
    arguments = dict(arguments)
    outputs = arguments.pop("outputs", False)
    more = dict(attn_implementation="eager") if "attention_scheme" in arguments else {}
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", **more).eval()
    preprocess_for_quantization(model)
    config = quark_oracle.template(model.config.model_type).get_config(scheme=scheme, **arguments)
    if outputs:
        config.global_quant_config.output_tensors = copy.deepcopy(config.global_quant_config.input_tensors)
    model = ModelQuantizer(config).quantize_model(model, batches)
    rename = on_disk if model.config.model_type == "mixtral" else lambda name: name
    ranges = observed(model, rename)
    export_safetensors(ModelQuantizer.freeze(model), str(out))
    return ranges


def assert_same(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    same = lambda a, b: a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.float(), b.float())
    wrong = {n: (ours[n].dtype, theirs[n].dtype, ours[n].shape, theirs[n].shape) for n in theirs if not same(ours[n], theirs[n])}
    assert not wrong, wrong


@pytest.mark.parametrize("model,case", MODELS)
def test_exports_with_quark_ranges_match_quark(model, case, calibrated, model_dir, tmp_path):
    source = model_dir(model)
    ranges = reference(source, case, tmp_path / "theirs")
    assert ranges
    made, report = calibrated(source, {"scheme": CASES[case][0], **CASES[case][2]}, ranges, tmp_path / "ours")
    assert report["not_finite"] == []
    assert_same(checkpoint.tensors(made), checkpoint.tensors(tmp_path / "theirs"))
    ours, theirs = (checkpoint.config(d)["quantization_config"] for d in (made, tmp_path / "theirs"))
    if model == "nano_llama":
        assert ours == theirs
    # Routers and heads under both of their names are kvant's; the rest is Quark's.
    assert {**ours, "exclude": []} == {**theirs, "exclude": []}


@pytest.mark.parametrize("case", CASES)
def test_quark_logits_match_its_own_export(case, calibrated, model_dir, tmp_path):
    source = model_dir("nano_llama")
    ranges = reference(source, case, tmp_path / "theirs")
    made, _ = calibrated(source, {"scheme": CASES[case][0], **CASES[case][2]}, ranges, tmp_path / "ours")
    ours, theirs = (quark_oracle.load(d)(quark_oracle.TOKENS).logits for d in (made, tmp_path / "theirs"))
    assert torch.equal(ours, theirs) and ours.isfinite().all()


@pytest.mark.parametrize("case", ("int8", "fp8", "mxfp4_fp8", "fp8_kv"))
def test_transformers_loads_static_checkpoints(case, calibrated, model_dir, tmp_path):
    source = model_dir("nano_llama")
    ranges = reference(source, case, tmp_path / "theirs")
    made, _ = calibrated(source, {"scheme": CASES[case][0], **CASES[case][2]}, ranges, tmp_path / "ours")
    assert load_with_transformers(made)(quark_oracle.TOKENS).logits.isfinite().all()


def test_unseen_experts_use_the_scale_of_the_others(calibrated, model_dir, tmp_path):
    source = model_dir("nano_mixtral")
    ranges = reference(source, "fp8", tmp_path / "theirs")
    experts = sorted(name for name in ranges if ".layers.0." in name and name.endswith("experts.1.w1"))
    for name in experts:
        del ranges[name]
    made, report = calibrated(source, {"scheme": "fp8"}, ranges, tmp_path / "ours")
    assert [filled["site"] for filled in report["filled"]] == experts and report["filled"][0]["from"] > 0
    tensors = checkpoint.tensors(made)
    scales = {n: float(t) for n, t in tensors.items() if ".layers.0.mlp.experts." in n and n.endswith(("gate_proj.input_scale", "up_proj.input_scale"))}
    assert scales["model.layers.0.mlp.experts.1.gate_proj.input_scale"] == max(scales.values()) > 0


# The layouts of compressed-tensors: the same ranges, other tensors.
COMPRESSED = {
    "FP8": ("fp8", dict(scheme="FP8")),
    "NVFP4": ("nvfp4", dict(scheme="NVFP4")),
    "int8": ("int8", dict(scheme="int8:channel+int8:tensor!static", format="compressed-tensors")),
    "FP8_KV": ("fp8_kv", dict(scheme="FP8", kv_cache="fp8", kv_cache_post_rope=False)),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors_loads_static_checkpoints(name, calibrated, model_dir, tmp_path):
    case, settings = COMPRESSED[name]
    source = model_dir("nano_llama")
    ranges = reference(source, case, tmp_path / "theirs")
    made, _ = calibrated(source, settings, ranges, tmp_path / "ours")
    tensors = checkpoint.raw_tensors(made)
    up = "model.layers.0.mlp.up_proj"
    amax = max(map(abs, ranges[f"input:{up}"]))
    if name == "NVFP4":
        scale = tensors[f"{up}.input_global_scale"]
        assert scale.dtype == torch.float32 and scale.shape == (1,) and float(scale) == pytest.approx(448 * 6 / amax, rel=1e-6)
    else:
        scale, steps = tensors[f"{up}.input_scale"], 127.5 if name == "int8" else 448
        assert scale.dtype == torch.bfloat16 and scale.shape == (1,) and float(scale) == pytest.approx(amax / steps, rel=1 / 256)
    loaded = load_with_transformers(made)
    plain = AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
    with torch.no_grad():
        ours, float_ = (m(quark_oracle.TOKENS).logits.float() for m in (loaded, plain))
    assert ours.isfinite().all()
    # Quantized, and still the same model.
    assert torch.nn.functional.cosine_similarity(ours.flatten(), float_.flatten(), dim=0) > 0.9
    if name == "FP8_KV":
        keys = [n for n in tensors if n.endswith(("k_scale", "v_scale"))]
        assert len(keys) == 2 * plain.config.num_hidden_layers and all(tensors[n].shape == (1,) for n in keys)
        assert checkpoint.config(made)["quantization_config"]["kv_cache_scheme"]["num_bits"] == 8
