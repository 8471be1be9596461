"""What Kvant writes, loaded by vLLM, beside what `kvant verify --for vllm` says of it.

vLLM's loaders are run and its kernels are not: see vllm_load.py. `.ci/vllm` makes the environment, $KVANT_VLLM names its Python. Importing
vLLM takes longer than all loads, so one process loads all checkpoints.
"""

import json
import os
import subprocess
import tomllib

import numpy as np
import pytest

import forward_models
import models
from conftest import HERE, REPO
from schemes import COMPRESSED_TENSORS, DATA_FREE, MORE_COMPRESSED_TENSORS, STATIC

STATIC_ACTIVATIONS = (*STATIC, "FP8", "NVFP4")
TEXT = "The iterator yields every element of the slice, in order, and the borrow ends with it. " * 200

# (model, scheme, options): every named scheme in its own layout, then what the other layouts hold.
NAMED = [("nano_llama", scheme) for scheme in (*DATA_FREE, *STATIC_ACTIVATIONS, *COMPRESSED_TENSORS, *MORE_COMPRESSED_TENSORS)]
OTHER_LAYOUTS = [("nano_llama", scheme, "--format", layout) for layout, schemes in {
    "awq": ("int4:g32", "uint4:g128:zp"),
    "gptq": ("int4:g32", "uint4:g128:zp", "int4:channel", "int8:g32", "int8:channel", "int2:g32"),
    "gptq_v2": ("int4:g128", "int3:g32"),
    "fp8": ("e4m3:tensor", "e4m3:tensor+e4m3:tensor!static", "e4m3:tensor+e4m3:tensor!dynamic", "e4m3:b64x64", "e4m3:b32x32+e4m3:g32!dynamic"),
    "quark": ("int3:channel", "int8:channel", "int8:channel+int8:channel!dynamic", "e4m3:tensor", "e4m3:channel", "e4m3:g32:e8m0",
              "e4m3:tensor+e4m3:channel!dynamic", "e4m3:b128x128+e4m3:g128!dynamic", "e2m1:g16:e4m3:f32", "e2m1:g32:e8m0+e4m3:g32:e8m0!dynamic"),
    "compressed-tensors": ("int8:g32:zp", "int4:tensor", "int8:tensor+int8:tensor!static", "e4m3:tensor", "e4m3:channel", "e4m3:b128x128",
                           "e5m2:channel", "int4:g32+int4:channel!dynamic", "int8:channel:zp", "e3m2:g32:e8m0"),
    "fake": ("int4:g32",),
}.items() for scheme in schemes]  # fmt: skip
CACHES = [("nano_llama", scheme, "--kv-cache", cache, "--format", layout)
          for scheme in ("fp8", "int4:g32") for cache in ("fp8", "int8") for layout in ("quark", "compressed-tensors")]  # fmt: skip
# Classes differ in whether they read scales of a cache.
CACHES += [(name, "FP8", "--kv-cache", "fp8", "--format", "compressed-tensors") for name in ("gptj", "olmo2", "phi", "qwen2_moe", "starcoder2")]
MIXED = [("nano_llama", "int4:g32", "--override", f"*.{layer}=int8:channel", "--format", layout)
         for layer in ("down_proj", "q_proj") for layout in ("quark", "compressed-tensors", "gptq")]  # fmt: skip
EXCLUDED = [("nano_llama", "int4:g32", "--exclude", pattern, "--format", layout)
            for pattern in ("*.layers.1.*", "*.mlp.*") for layout in ("quark", "compressed-tensors", "awq", "gptq")]  # fmt: skip
# Classes that do not say which layers they fuse.
EXCLUDED += [(name, scheme, "-x", "*.0.*attn*") for name in ("falcon_h1", "gptj", "stablelm") for scheme in ("ptpc_fp8", "FP8_DYNAMIC")]
# Mixers that vLLM looks for under other names, and experts in floats.
EXCLUDED += [("granitemoehybrid", "int4:g32", "--format", layout, "-x", pattern)
             for layout in ("quark", "compressed-tensors", "awq") for pattern in ("*.mamba.in_proj", "*.layers.1.block_sparse_moe.*")]  # fmt: skip
SECOND = [("falcon_h1", "int4:g32", "--format", "compressed-tensors", "--override", "*.1.*=int8:channel")]
# One of each layout and kind of kernel.
FEW = [("int4:g32", "--format", "quark"), ("ptpc_fp8",), ("mxfp4",), ("int4:g32", "--format", "compressed-tensors"), ("W8A8",), ("FP8_DYNAMIC",),
       ("NVFP4A16",), ("MXFP4A16",), ("int4:g32", "--format", "awq"), ("int4:g32", "--format", "gptq")]  # fmt: skip
TRAINED = [(model, *case) for model in models.SHARED if model != "nano_llama" for case in FEW]
# One model of each family, in the layouts where names matter.
OF_KIND = {forward_models.MODELS[name][0]: name for name in reversed(forward_models.MODELS)}
# Families that are left out, and why. The rules of the loader must not say that it loads them.
NEW = {"axk1", "bailing_hybrid", "dbrx", "deepseek_v4", "kimi_linear", "kolibri1", "laguna", "lfm3", "longcat_flash", "minimax", "minimax_m3", "minimax_m3_text", "qwen3_omni_moe",
       "whisper", "xglm"}  # fmt: skip
# Models of such families under other names.
OTHER_NAMES = {"lfm2_vl", "longcat", "minimax_m3_vl", "mllama_text"}
ENCODERS = {"bert", "clip_text", "clip_vision", "deberta_v2", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "distilbert", "electra", "esm", "hubert", "modernbert", "mpnet",
            "roberta", "siglip_text", "siglip_vision", "vit", "wav2vec2"}  # fmt: skip
ENCODER_DECODERS = {"bart", "marian", "mbart", "mt5", "pegasus", "t5", "t5_encoder", "umt5", "umt5_encoder"}
NO_MODEL = {"kimi_k2", "minimax_m2"}
LEFT_OUT_FAMILIES = {
    "vLLM reads keys of config.json that published models have and transformers does not write": {"mimo_v2_flash"},
    "vLLM wants a GPU when it is made": {"deepseek_v32", "glm_moe_dsa"},
    "vLLM wants a configuration of images": {"kimi_k25", "mllama"},
    "vLLM has floats where Kvant has codes": {"gemma3n"},
    "there is no small model of it": NO_MODEL,
    "nobody has tried": NEW,
    "encoders are loaded as poolers, which vllm_load.py does not make": ENCODERS,
    "it has no class for them": ENCODER_DECODERS,
}  # fmt: skip
UNASKED = set().union(*LEFT_OUT_FAMILIES.values())
FAMILIES = [(name, *case) for name in sorted({*OF_KIND.values(), "gemma4_layer_inputs", "gemma4_moe"} - UNASKED - OTHER_NAMES)
            for case in (("int4:g32", "--format", "quark"), ("int4:g32", "--format", "compressed-tensors"), ("ptpc_fp8",),
                         ("int4:g32", "--format", "gptq"), ("uint4:g32:zp", "--format", "awq"))]  # fmt: skip
# Rotations of inputs, which are computed for linear layers alone, and in one layout.
ROTATED = [("nano_llama", scheme, "--algorithm", rotation, "--format", "compressed-tensors")
           for scheme in ("W4A16", "FP8_DYNAMIC", "NVFP4A16") for rotation in ("rotate:down=on", "rotate:down=on:size=32")]  # fmt: skip
ROTATED += [("nano_llama", "ptpc_fp8", "--algorithm", "rotate:down=on", "--format", "quark"),
            ("nano_mixtral", "W4A16", "--algorithm", "rotate:down=on", "--format", "compressed-tensors")]  # fmt: skip
# Where q, k and v, experts or the layers of a mixer are cut or renamed.
FAMILIES += [(name, *case) for name in ("bloom", "deepseek_v3", "falcon", "falcon_h1", "gemma4_moe", "gpt_oss", "granitemoe", "granitemoehybrid", "llama4", "mistral4", "qwen3_vl_moe")
             for case in (("FP8",), ("int8:tensor+int8:tensor!static", "--format", "quark"), ("e4m3:b32x32+e4m3:g32!dynamic", "--format", "fp8"), ("NVFP4A16",))]  # fmt: skip
FAMILIES += [("gpt_oss", "mxfp4_weight_only", "--format", "mxfp4"), ("qwen3_moe", "int8:channel+int8:tensor!static", "--format", "compressed-tensors")]
# vLLM has attention for heads of these sizes alone, and windows in all layers alone; it cuts the packed columns of in_proj_qkv into
# queries, keys and values.
LATENT = dict(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
CHANGES = {"deepseek_v2": LATENT, "deepseek_v3": dict(LATENT, topk_method="noaux_tc"), "glm4_moe_lite": LATENT, "mistral4": LATENT, "qwen2": dict(use_sliding_window=False),
           "ernie4_5_moe": dict(use_bias=False), "qwen3_5": dict(linear_key_head_dim=32)}  # fmt: skip
# Numbers of rows that Quark's layout packs and that vLLM cuts.
CHANGES["granitemoehybrid"] = dict(mamba_n_heads=8, mamba_n_groups=1, mamba_d_state=16, mamba_expand=2)
# Keys of published models that transformers does not write.
CHANGES |= {"afmoe": dict(score_func="sigmoid", n_group=1, topk_group=1, route_norm=True), "lfm2": dict(conv_dim=128, conv_dim_out=128, block_dim=128),
            "hy_v3": dict(first_k_dense_replace=1, expert_hidden_dim=64, route_norm=True, qk_norm=True),
            "qwen3_vl_moe": dict(text_config=dict(forward_models.MODELS["qwen3_vl_moe"][1]["text_config"], norm_topk_prob=True))}  # fmt: skip
# What loads although Kvant does not say so: it has no rule that tells these from what does not.
UNSAID = [("gpt_oss", "ptpc_fp8"),
          *(case for case in EXCLUDED if case[0] == "granitemoehybrid" and "moe" in case[-1]),
          ("mistral4", "e4m3:b32x32+e4m3:g32!dynamic", "--format", "fp8"),
          # Not in a process that has loaded no other model of the class.
          ("qwen3_vl_moe", "int4:g32", "--format", "gptq"), ("qwen2_moe", "int4:g32", "--format", "gptq"), ("qwen3_moe", "int4:g32", "--format", "gptq"),
          ("qwen3_moe_whole", "ptpc_fp8", "--override", "*.experts.*.down_proj=e4m3:tensor+e4m3:tensor!dynamic", "--format", "quark"),
          ("qwen3_moe_whole", "FP8_DYNAMIC", "--override", "*.experts.1.*=int8:channel+int8:channel!dynamic", "--format", "compressed-tensors")]
# Experts of one block that differ, and blocks that do; of one layout also the layers of each expert.
EXPERT_RULES = (("--exclude", "*.experts.1.*"), ("--exclude", "*.layers.1.mlp.experts.*"), ("--override", "*.experts.1.*={other}"),
                ("--override", "*.experts.*.down_proj={other}"), ("--override", "*.layers.1.mlp.experts.*={other}"))  # fmt: skip
EXPERTS = [("qwen3_moe_whole", scheme, option, rule.format(other=other), "--format", layout)
           for layout, scheme, other in (("quark", "int4:g32", "int4:g64"), ("quark", "ptpc_fp8", "e4m3:tensor+e4m3:tensor!dynamic"),
                                         ("compressed-tensors", "int4:g32", "int8:g32"), ("compressed-tensors", "FP8_DYNAMIC", "int8:channel+int8:channel!dynamic"),
                                         ("awq", "int4:g32", "int8:g32"), ("gptq", "int4:g32", "int8:g32"),
                                         ("fp8", "e4m3:b32x32+e4m3:g32!dynamic", "e4m3:tensor+e4m3:tensor!dynamic"))
           for option, rule in EXPERT_RULES]  # fmt: skip
# Heads, also those that share the embeddings.
HEADS = [(name, "int4:g32", "--override", "lm_head=int8:g32", "--format", "compressed-tensors")
         for name in ("afmoe", "cohere", "exaone_moe", "gemma3", "llama_tied", "mamba2", "nano_gemma2", "nano_opt", "nano_qwen3", "phi_tied", "phimoe", "qwen3_next",
                      "starcoder2")]  # fmt: skip
CASES = [tuple(case) for case in dict.fromkeys([*NAMED, *HEADS, *OTHER_LAYOUTS, *CACHES, *MIXED, *EXCLUDED, *ROTATED, *SECOND, *TRAINED, *FAMILIES, *EXPERTS])]


def source(name, root, changes):
    if name in models.SHARED:
        return models.find_shared(name, REPO, os.environ.get("KVANT_MODELS"))
    return forward_models.save(name, root / name, **changes.get(name, {}))


def compared(loader, python, cases, changes, kvant, root):
    """case -> (what the loader says, what Kvant says of the loader), for what Kvant writes of the models that are at hand."""
    (root / "text.txt").write_text(TEXT)
    # For models without a tokenizer.
    np.save(root / "tokens.npy", np.arange(4 * 32, dtype=np.int64).reshape(4, 32) % 64)
    written = {}
    for number, (name, scheme, *options) in enumerate(cases):
        model, out = source(name, root, changes), root / f"out-{number}"
        static = scheme in STATIC_ACTIVATIONS or "!static" in scheme or "--kv-cache" in options
        text = root / ("text.txt" if name in models.SHARED else "tokens.npy")
        data = ["--calib", text, "--num-samples", "4", "--seq-len", "32"] if static else []
        if model and kvant("quantize", model, "--scheme", scheme, *options, *data, "--no-verify", "-o", out).returncode == 0:
            written[cases[number]] = out
    done = subprocess.run([python, HERE / f"{loader}_load.py", *written.values()], capture_output=True, text=True, timeout=900)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(written), done.stderr[-4000:]
    said = {line["checkpoint"]: line for line in lines}

    def ours(out):
        report = json.loads(kvant("verify", out, "--for", loader, "--json").stdout)
        return next(row for row in report["loaders"] if row["id"] == loader)

    return {case: (said[str(out)], ours(out)) for case, out in written.items()}


def assert_families_are_asked(kvant, loader, cases, left_out):
    """Every family has a case, or is left out and not claimed to load."""
    rows = json.loads(kvant("list", "families", "--json").stdout)["rows"]
    of_type = {kind: row["name"] for row in rows for kind in row["model_types"]}
    kinds = {forward_models.MODELS[name][0] for name, *_ in cases if name in forward_models.MODELS and name not in OTHER_NAMES}
    asked = {of_type[kind] for kind in kinds}
    assert {row["name"] for row in rows} - asked == left_out, "left out without a reason, or listed although there are cases"
    rules = tomllib.loads((REPO / "crates/formats/src/loader_rules/loader_rules.toml").read_text())["loader"]
    [rules] = [rules for rules in rules if rules["id"] == loader]
    refused = {family for rule in rules["refuse"] for family in rule["when"].get("family", [])}
    assert left_out <= {*rules["untried"], *refused}


def test_every_family_is_asked_or_left_out_with_a_reason(kvant):
    assert_families_are_asked(kvant, "vllm", CASES, UNASKED)


@pytest.fixture(scope="module")
def answers(kvant, module_path):
    python = os.environ.get("KVANT_VLLM") or pytest.skip("$KVANT_VLLM does not name the Python of an environment with vLLM")
    return compared("vllm", python, CASES, CHANGES, kvant, module_path("vllm"))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_vllm_loads_what_kvant_lists(case, answers):
    vllm, kvant = answers.get(case) or pytest.skip("Kvant refuses to write it, or the model is not at hand")
    assert vllm["ok"] == (kvant["loads"] == "yes" or case in UNSAID), (vllm, kvant)


def test_most_load_and_some_do_not(answers):
    loaded = [vllm["ok"] for vllm, _ in answers.values()]
    assert sum(loaded) > 100 and not all(loaded), loaded
