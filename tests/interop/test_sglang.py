"""What Kvant writes, loaded by SGLang, beside what `kvant verify --for sglang` says of it.

SGLang's loaders are run and its kernels are not: see sglang_load.py. `.ci/sglang` makes the environment, $KVANT_SGLANG names its Python.
"""

import os

import pytest

import test_vllm
from forward_models import MODELS
from test_vllm import LATENT, OF_KIND, assert_families_are_asked, compared

# What published configurations say and transformers does not write, and sizes that SGLang takes for granted: as many key/value heads as heads, an
# intermediate size of four times the hidden size, no bias in the MLP, experts in each block.
CHANGES = {
    "deepseek_v2": dict(LATENT, moe_layer_freq=1, scoring_func="softmax"),
    "deepseek_v3": dict(LATENT, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc"),
    "gemma2": dict(hidden_act="gelu_pytorch_tanh"),
    "gpt_oss": dict(swiglu_limit=7.0),
    "hunyuan": dict(use_qk_norm=True),
    "llama_bias": dict(mlp_bias=False),
    "olmo": dict(num_key_value_heads=4),
    "phi": dict(num_key_value_heads=4, intermediate_size=512),
    "qwen2": dict(use_sliding_window=False),
    **{name: dict(layer_types=None, full_attention_interval=2, linear_key_head_dim=32) for name in ("qwen3_5", "qwen3_5_moe")},
    "qwen3_next": dict(layer_types=None, full_attention_interval=2, linear_key_head_dim=32, linear_value_head_dim=16, mlp_only_layers=[]),
    "qwen3_moe": dict(mlp_only_layers=[]),
}
BLOCKS = ("e4m3:b32x32+e4m3:g32!dynamic",)
MORE = [
    # Layers in floats, which classes look for under other names, or under none.
    *((name, scheme, "-x", "*.0.*attn*") for name in ("llama_bias", "phi", "opt", "gemma", "qwen3_5") for scheme in ("ptpc_fp8", "FP8_DYNAMIC")),
    *((name, "e4m3:tensor+e4m3:tensor!dynamic", "--format", "fp8", "-x", "*.0.*attn*") for name in ("gemma2", "opt", "phi3", "qwen3")),
    *((name, "int4:g32", "--format", "gptq", "-x", "*.0.*attn*") for name in ("nano_mixtral", "phi", "phi3")),
    ("gpt_neox", "int4:g32", "--format", "gptq", "--override", "*.0.*=int8:g32"),
    ("qwen3_moe", "int4:g32", "--format", "compressed-tensors", "--override", "*.1.*o_proj*=e4m3:channel+e4m3:channel!dynamic"),
    ("qwen3_moe", "int4:g32", "--format", "compressed-tensors", "--override", "*.1.*o_proj*=int8:channel"),
    *(("nano_mixtral", scheme) for scheme in ("W4A16_ASYM", "W8A16", "FP8", "NVFP4", "mxfp4_weight_only")),
    *(("nano_mixtral", scheme, "--format", "compressed-tensors") for scheme in ("e4m3:channel", "e4m3:tensor", *BLOCKS)),
    ("nano_mixtral", "e4m3:tensor+e4m3:tensor!dynamic", "--format", "fp8"),
    ("nano_mixtral", "int8:g32", "--format", "gptq"),
    ("nano_mixtral", "uint4:g128:zp", "--format", "awq"),
    ("glm", "int4:g32", "--format", "fake"),
    *(("nano_llama", *BLOCKS, "--format", layout) for layout in ("quark", "compressed-tensors")),
    # Names of layers are the families', how a format names its tensors is not: every third family in this one, beside test_vllm's.
    *((name, *BLOCKS, "--format", "fp8") for name in sorted(OF_KIND.values())[::3]),
]
# The configuration of nano_gemma2 lacks what SGLang asks for: see CHANGES. Whether it finds the fused layers of glm4_moe_lite in this
# layout depends on the models that the process has loaded before; alone it does not.
LEFT_OUT = [("glm4_moe_lite", "int4:g32", "--format", "compressed-tensors")]
# Families that are left out, and why.
LEFT_OUT_FAMILIES = {
    "what SGLang needs of its configuration or of a GPU has not been found out": {
        "afmoe", "apertus", "bamba", "bitnet", "bloom", "cohere2_moe", "deepseek_v32", "ernie4_5_moe", "exaone_moe", "falcon", "falcon_h1",
        "falcon_mamba", "gemma3n", "gemma4", "glm_moe_dsa", "granitemoehybrid", "hunyuan_v1_moe", "hy_v3", "jamba", "lfm2", "lfm2_moe", "llama4",
        "mamba", "mamba2", "mimo_v2_flash", "ministral3", "mistral4", "mpt", "nemotron_h", "olmo_hybrid", "qwen3_vl_moe"},
    "there is no small model of it": test_vllm.NO_MODEL,
    "nobody has tried": test_vllm.NEW | {"gpt_bigcode", "kimi_k25", "ministral", "mllama", "nanochat", "persimmon"},
    "encoders are loaded as embedding models, which sglang_load.py does not make": test_vllm.ENCODERS,
    "it has no class for them": test_vllm.ENCODER_DECODERS,
}  # fmt: skip
UNASKED = set().union(*LEFT_OUT_FAMILIES.values())
# Further models of such families.
OTHERS = {"gemma4_layer_inputs", "gemma4_moe"} | test_vllm.OTHER_NAMES
CASES = [case for case in dict.fromkeys([*test_vllm.CASES, *MORE])
         if case[0] != "nano_gemma2" and case[0] not in OTHERS and not {case[0], MODELS.get(case[0], case)[0]} & UNASKED and case not in LEFT_OUT]  # fmt: skip


@pytest.fixture(scope="module")
def answers(kvant, module_path):
    python = os.environ.get("KVANT_SGLANG") or pytest.skip("$KVANT_SGLANG does not name the Python of an environment with SGLang")
    return compared("sglang", python, CASES, CHANGES, kvant, module_path("sglang"))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_sglang_loads_what_kvant_lists(case, answers):
    sglang, kvant = answers.get(case) or pytest.skip("Kvant refuses to write it, or the model is not at hand")
    assert sglang["ok"] == (kvant["loads"] == "yes" or case in set(test_vllm.EXPERTS) & set(test_vllm.UNSAID)), (sglang, kvant)


# Models as transformers 5 saves them, of classes that want the keys and sizes in CHANGES.
AS_SAVED = [(name, "FP8_DYNAMIC") for name in ("deepseek_v2", "deepseek_v3", "gemma2", "hunyuan", "phi", "qwen3_5", "qwen3_next")]


def test_models_without_the_keys_that_sglang_reads_are_refused(kvant, tmp_path):
    python = os.environ.get("KVANT_SGLANG") or pytest.skip("$KVANT_SGLANG does not name the Python of an environment with SGLang")
    answers = compared("sglang", python, AS_SAVED, {}, kvant, tmp_path)
    assert len(answers) == len(AS_SAVED)
    for case, (sglang, kvant) in answers.items():
        assert not sglang["ok"] and kvant["loads"] == "no", (case, sglang, kvant)


def test_every_family_is_asked_or_left_out_with_a_reason(kvant):
    assert_families_are_asked(kvant, "sglang", CASES, UNASKED)


def test_most_load_and_some_do_not(answers):
    loaded = [sglang["ok"] for sglang, _ in answers.values()]
    assert sum(loaded) > 100 and not all(loaded), loaded
