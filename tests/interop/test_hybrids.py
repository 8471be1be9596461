"""Hybrids of recurrent mixers and attention: checkpoints load in transformers with no key missing, and compute the
logits of kvant's forward pass."""

import json

import numpy as np
import pytest
import torch
import transformers

import checkpoint
import foreign_layouts
import forward_models
import hybrid_models
from conftest import REPO
from test_eval import TEXT
from test_static_logits import ours

CALIBRATION = ["--num-samples", "8", "--seq-len", "64"]
# Models with state-space layers or short convolutions.
STATES = ("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "mamba", "mamba2", "nemotron_h")
SMALL = ["lm_head", "*mlp.gate", "*shared_expert_gate"]


def all_layers(model):
    """Options that quantize delta nets, attention and experts alike, whatever a family keeps by default."""
    if model in STATES:
        # The class of Mamba reads the float weight of dt_proj.
        return ["--no-keep-defaults", "--exclude", "lm_head", *(["--exclude", "*dt_proj"] if model == "mamba" else [])]
    if model in ("bailing_hybrid", "deepseek_v4", "kimi_linear", "lfm3", "minimax"):
        return []
    if "qwen3_next" in model:
        kept = [*SMALL, "*in_proj_ba"]
    else:
        kept = [*SMALL, "*in_proj_a", "*in_proj_b"]
    keeps_little = "moe" not in model and "next" not in model
    return [] if keeps_little else ["--no-keep-defaults", *(word for glob in [*kept, *["mtp.*"] * ("mtp" in model)] for word in ("--exclude", glob))]


DENSE = {
    "W4A16": ["-s", "W4A16"],
    "FP8_DYNAMIC": ["-s", "FP8_DYNAMIC"],
    "FP8_kv": ["-s", "FP8", "--kv-cache", "fp8"],
    "int8_static": ["-s", "int8:channel+int8:tensor!static", "-f", "compressed-tensors"],
    "quark_int8": ["-s", "int8"],
    "fp8_blocks": ["-s", "FP8_BLOCK", "-f", "compressed-tensors"],
}
# Experts that transformers has decompressed take inputs in floats.
MIXTURES = {"fp8_weights": ["-s", "e4m3:channel", "-f", "compressed-tensors"]}
CASES = [("qwen3_5_text", name) for name in DENSE] + [("qwen3_5-mtp", "FP8_DYNAMIC"), ("qwen3_5-mtp", "W4A16")]
CASES += [(model, name) for model in STATES for name in ("W4A16", "FP8_kv", "int8_static")]
# The classes of Mamba read float weights that packed layers do not have, and it has no cache of keys and values.
CASES = [case for case in CASES if case not in {("mamba", "W4A16"), ("mamba", "FP8_kv"), ("mamba2", "W4A16"), ("mamba2", "FP8_kv")}]
CASES += [(model, name) for model in ("qwen3_next", "qwen3_5_moe_text", "qwen3_5_moe_text-fused") for name in MIXTURES]
CASES += [("qwen3_5_moe-fused-mtp", "fp8_weights")]
# Of architectures that the installed version of transformers may lack.
NEWER = tuple(name for name in ("bailing_hybrid", "kimi_linear", "lfm3") if name in hybrid_models.MODELS)
ALGORITHMS = ("gptq", "awq:ratios=5", "smoothquant,gptq", "gptaq", "qronos", "adaround:num_iterations=20", "awq:ratios=5,gptq")


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory):
    """hybrid(name) -> directory."""
    root = tmp_path_factory.mktemp("hybrids")
    # The class of Nemotron-H mixes types where a quantized checkpoint of bf16 is run in f32.
    return lambda name: hybrid_models.save(name, root / name, REPO, dtype="float32" if name == "nemotron_h" else "bfloat16")


@pytest.fixture(scope="module")
def made(kvant, hybrid, module_path):
    """made(model, name, options) -> a quantized checkpoint, made once."""
    root = module_path("hybrids")
    text = root / "calibration.txt"
    text.write_text(TEXT)

    def run(model, name, options):
        out = root / f"{model}-{name}"
        if not out.exists():
            done = kvant("quantize", hybrid(model), *options, "--calib", text, *CALIBRATION, "-o", out)
            assert done.returncode == 0, done.stderr
        return out

    return run


def load(directory, dtype=torch.float32):
    """The model; every tensor must be used, and none may be missing, but for layers that transformers does not run."""
    auto = hybrid_models.auto_class(directory)
    model, report = auto.from_pretrained(directory, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    problems = {key: sorted(report[key]) for key in ("missing_keys", "mismatched_keys", "unexpected_keys") if report[key]}
    assert not problems, problems
    return model.eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor(tokens)).logits.float().numpy()


def tokens_for(rows=2, length=80):
    return np.random.default_rng(1).integers(3, 2048, (rows, length))


def assert_same_experts(model, directory, kvant, tmp):
    """Decompressing, transformers rounds experts to bf16, which sends tokens of a random model elsewhere: logits are no measure."""
    done = kvant("convert", directory, "--to", "float", "--dtype", "f32", "-o", tmp / "float")
    assert done.returncode == 0, done.stderr
    expected, state = hybrid_models.with_fused_experts(checkpoint.tensors(tmp / "float")), model.state_dict()
    experts = [name for name in expected if ".mlp.experts." in name and not name.startswith("mtp.")]
    assert experts
    for name in experts:
        assert torch.equal(state[name].float(), expected[name].to(torch.bfloat16).float()), name


@pytest.mark.parametrize("model,name", CASES)
def test_logits_of_quantized_checkpoints_match_transformers(model, name, made, hybrid, kvant, tmp_path):
    directory = made(model, name, [*{**DENSE, **MIXTURES}[name], *all_layers(model)])
    tokens = tokens_for()
    theirs, found = logits_of(load(directory), tokens), ours(directory, tokens, tmp_path)
    if name in MIXTURES:
        assert_same_experts(load(directory), directory, kvant, tmp_path)
    elif name == "W4A16":
        assert np.abs(found - theirs).max() < 1e-4 * np.abs(theirs).max()
    else:
        # A last bit decides which code an activation becomes, and the state carries that on.
        clean = logits_of(load(hybrid(model)), tokens)
        assert np.square(found - theirs).mean() < 0.1 * np.square(theirs - clean).mean()
        first = np.abs(found - theirs)[:, 0].max() / np.abs(theirs).max()
        assert first < 1e-4


@pytest.mark.parametrize("model", ["qwen3_5_text", "qwen3_next", "qwen3_5_moe_text-fused", "olmo_hybrid", "minimax", "deepseek_v4", *STATES, *NEWER])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms_keep_the_model_and_fold_what_they_move(model, algorithm, made, hybrid):
    directory = made(model, algorithm.replace(",", "-"), ["-s", "int8:channel", "-a", algorithm, "-f", "fake", *all_layers(model)])
    tokens = tokens_for()
    found, expected = logits_of(load(directory), tokens), logits_of(load(hybrid(model)), tokens)
    # A scale that only one end of a pair has changes everything: the ratio is 2 then.
    assert np.square(found - expected).mean() < 0.15 * np.square(expected).mean()


def test_awq_moves_scales_out_of_the_norm_of_delta_nets(made, hybrid):
    directory = made("qwen3_5_text", "awq", ["-s", "int4:g32", "-a", "awq", "-f", "fake"])
    before, after = load(hybrid("qwen3_5_text")).state_dict(), load(directory).state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert "model.layers.0.linear_attn.norm.weight" in changed and "model.layers.0.input_layernorm.weight" in changed
    assert not [name for name in changed if name.endswith(("conv1d.weight", "A_log", "dt_bias"))]


@pytest.mark.parametrize("scheme", ["int4:g32", "uint4:g32:zp"])
@pytest.mark.parametrize("layout", ["gptq", "awq"])
def test_awq_and_gptq_keep_the_codes_of_delta_nets(layout, scheme, made, kvant, hybrid, tmp_path):
    if (layout, scheme) == ("awq", "int4:g32"):
        pytest.skip("AWQ's codes are unsigned")
    directory = made("qwen3_5_text", f"{layout}-{scheme}", ["-s", scheme, "-f", layout])
    done = kvant("convert", directory, "--to", "float", "--dtype", "f32", "-o", tmp_path / "float")
    assert done.returncode == 0, done.stderr
    state = {n.rpartition(".")[2]: t for n, t in checkpoint.tensors(directory).items() if n.startswith("model.layers.0.linear_attn.in_proj_qkv.")}
    config = checkpoint.config(directory)["quantization_config"]
    decode = foreign_layouts.decode_awq if layout == "awq" else foreign_layouts.decode_gptq
    floats = checkpoint.tensors(tmp_path / "float")
    assert torch.equal(decode(state, config).float(), floats["model.layers.0.linear_attn.in_proj_qkv.weight"])
    theirs, found = logits_of(load(tmp_path / "float"), tokens_for(1, 40)), ours(directory, tokens_for(1, 40), tmp_path)
    assert np.abs(found - theirs).max() < 1e-4 * np.abs(theirs).max()


def test_fused_experts_become_those_that_loaders_look_for(made):
    tensors = checkpoint.tensors(made("qwen3_5_moe_text-fused", "FP8_DYNAMIC", ["-s", "FP8_DYNAMIC", *all_layers("moe")]))
    experts = {name.split(".experts.")[1].split(".", 1)[1] for name in tensors if ".experts." in name}
    assert experts == {f"{role}_proj.{part}" for role in ("gate", "up", "down") for part in ("weight", "weight_scale")}


def test_layers_that_predict_further_tokens_are_quantized_on_request(kvant, hybrid, tmp_path):
    """They are kept by default, and listed as such; what is asked for is quantized like the rest."""
    kept, asked = tmp_path / "kept", tmp_path / "asked"
    for out, more in [(kept, []), (asked, ["--override", "mtp.layers.*=FP8_DYNAMIC"])]:
        done = kvant("quantize", hybrid("qwen3_5-mtp"), "-s", "FP8_DYNAMIC", *more, "-o", out)
        assert done.returncode == 0, done.stderr
    scales = lambda directory: {name for name in checkpoint.tensors(directory) if name.startswith("mtp.") and name.endswith("_scale")}  # noqa: E731
    ignored = lambda directory: {name for name in checkpoint.config(directory)["quantization_config"]["ignore"] if name.startswith("mtp.")}  # noqa: E731
    assert not scales(kept) and len(ignored(kept)) == 8
    assert len(scales(asked)) == 7 and ignored(asked) == {"mtp.fc"}
    load(asked)
    static = "mtp.layers.*=e4m3:tensor+e4m3:tensor!static"
    done = kvant("plan", hybrid("qwen3_5-mtp"), "-s", "FP8_DYNAMIC", "--override", static)
    assert done.returncode != 0 and "is not run" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["qwen3_next", "olmo_hybrid", "longcat_flash", "minimax", "minimax_m3_text", "deepseek_v4", *STATES, *NEWER])
def test_greedy_continuation_equals_generate_of_transformers(name, kvant, hybrid):
    directory = hybrid(name)
    model, tokenizer = load(directory), transformers.AutoTokenizer.from_pretrained(directory)
    prompts = ["The iterator yields every element of", "fn"]
    done = kvant("generate", directory, *[part for prompt in prompts for part in ("--prompt", prompt)], "--max-new-tokens", 16, "--json")
    assert done.returncode == 0, done.stderr
    for found, prompt in zip(json.loads(done.stdout)["prompts"], prompts):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            made = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :].tolist()
        assert found["tokens"] == made[: len(found["tokens"])], prompt


def test_cache_of_delta_nets_is_refused_in_the_layout_that_names_it_by_ends(kvant, tmp_path):
    model = forward_models.save("olmo_hybrid", tmp_path / "model")
    refused = kvant("plan", model, "-s", "fp8", "--kv-cache", "fp8")
    assert refused.returncode == 1 and "linear_attn" in refused.stderr, refused.stderr
    assert kvant("plan", model, "-s", "FP8", "--kv-cache", "fp8").returncode == 0
