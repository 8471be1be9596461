"""Counts the architectures whose quantized checkpoints load with the weights that Kvant meant: each of 104 architectures of transformers 5.23
as a small random model, quantized to INT4 in groups of 32 and to FP8_DYNAMIC in compressed-tensors' layout, and loaded by transformers. No key may be
missing or unexpected, and every weight must be that of the `fake` export to bf16 rounding.

    $KVANT_BINARIES/kvant must exist; PYTHONPATH names a transformers of version 5.23
    python tests/interop/count_architectures.py FOLDER [NAME ...]
"""

import pathlib
import subprocess
import sys

import torch
import transformers

import encoder_decoder_models
import encoder_models
import forward_models
import hybrid_models
import speech_models
import undescribed_models
import vision_models
from conftest import BINARIES, REPO

# Architectures whose models stand in the other modules under another name.
NAMES = {
    "deberta-v2": "deberta", "gemma3n_text": "gemma3n", "gemma4_e2b": "gemma4_layer_inputs", "gemma4_text": "gemma4_shared", "hunyuan_v1_moe": "hunyuan_moe",
    "llama4_text": "llama4_dense", "minimax_m3_vl_text": "minimax_m3_text", "parakeet": "parakeet_ctc", "xlm-roberta": "xlm_roberta", 
}  # fmt: skip
LANGUAGE = undescribed_models.LANGUAGE
# Architectures that no other test has.
OTHERS = {
    "hy_v4": ("HYV4ForCausalLM", dict(LANGUAGE, moe_intermediate_size=64, n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32, index_topk=8, index_head_dim=32, index_n_heads=2, hc_mult=2, mlp_layer_types=["dense", "sparse"], pad_token_id=0, eos_token_id=0, bos_token_id=0)),
    "internlm3": ("LlamaForCausalLM", dict(LANGUAGE, head_dim=16)),
    "qwen4_exp_text": ("Qwen4ExpForCausalLM", dict(LANGUAGE, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32, moe_intermediate_size=64, shared_expert_intermediate_size=64, num_experts_per_tok=2, num_experts=4, hc_count=2, hc_lowrank=32, ple_layer_ids=[1], ple_embed_dim=64, ngram_size=3, heads_per_ngram=2, ngram_vocab_size_base=64, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=2, layer_types=["linear_attention", "full_attention"], eos_token_id=0, pad_token_id=0, indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=32, indexer_budget=8, indexer_compress_ratio=4)),
    "resnet": ("ResNetForImageClassification", dict(embedding_size=32, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1], layer_type="basic")),
    "zamba2": ("Zamba2ForCausalLM", dict(vocab_size=512, hidden_size=64, num_hidden_layers=4, layers_block_type=["mamba", "hybrid", "mamba", "hybrid"], mamba_d_state=16, n_mamba_heads=4, num_attention_heads=4, num_key_value_heads=4, intermediate_size=128, num_mem_blocks=2, use_mamba_kernels=False, use_shared_attention_adapter=True, adapter_rank=32)),
}  # fmt: skip
# The 104 architectures.
ARCHITECTURES = """afmoe apertus arcee axk1 bailing_hybrid bamba bart bert bitnet bloom clip cohere2_moe convnext cwm deberta-v2 deepseek_v32 deepseek_v4 detr
dinov2 dinov3_vit distilbert dots1 electra ernie4_5 ernie4_5_moe esm exaone4 exaone_moe falcon falcon_h1 falcon_mamba flex_olmo gemma3 gemma3n_text gemma4
gemma4_e2b gemma4_moe gemma4_text glm4_moe_lite glm5_next glm_moe_dsa gpt_bigcode granitemoehybrid helium hunyuan_v1_moe hy_v3 hy_v4 internlm3 internvl jamba
jetmoe kimi_k25 kimi_linear kolibri1 laguna lfm2 lfm2_moe lfm2_vl lfm3 llama4 llama4_text longcat_flash m2m_100 mamba2 mimo_v2_flash minimax_m3_vl_text
ministral ministral3 mistral3 mistral4 mllama modernbert mpt nanochat nemotron_h olmo_hybrid parakeet persimmon qwen3_5 qwen3_5_moe qwen3_5_moe_text
qwen3_5_text qwen3_next qwen3_vl qwen3_vl_moe qwen4_exp_text recurrent_gemma resnet rwkv sam seed_oss siglip smollm3 solar_open swin t5 timesfm vit wav2vec2
whisper xglm xlm-roberta zamba2 zaya""".split()
MODULES = (forward_models, encoder_models, encoder_decoder_models, speech_models, vision_models, undescribed_models)


def save(name, out):
    """The directory of the model of an architecture."""
    known = NAMES.get(name, name)
    if known in OTHERS:
        kind, arguments = OTHERS[known]
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(known, **arguments)
        undescribed_models.save_with_values(getattr(transformers, kind)(config).to(torch.bfloat16), out)
        return out
    if known in hybrid_models.MODELS:
        return hybrid_models.save(known, out, REPO)
    for module in MODULES:
        if known in module.MODELS or known in getattr(module, "IMAGE_MODELS", {}):
            return module.save(known, out)
    raise LookupError(name)


def quantized(model, scheme, layout, out):
    command = [BINARIES / "kvant", "quantize", model, "--scheme", scheme, "--format", layout, "--overwrite", "-o", out]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-3:]
    return out


def fused(found, key, meant):
    """Experts that were loaded one by one, as the tensor of all; nothing where there are none."""
    module, _, layer = key.rpartition(".")
    parts = ("gate_proj", "up_proj") if layer == "gate_up_proj" else (layer,)
    experts = [[found.get(f"{module}.{index}.{part}.weight") for part in parts] for index in range(meant.shape[0])]
    if any(part is None for expert in experts for part in expert):
        return None
    stacked = torch.stack([torch.cat(expert) for expert in experts])
    return stacked if stacked.shape == meant.shape else stacked.transpose(1, 2)


def loads(model, scheme, folder):
    """Whether transformers loads a scheme with the weights meant, and how many weights differ from the float model's."""
    meant = undescribed_models.weights(quantized(model, scheme, "fake", folder / "fake"))
    found = undescribed_models.weights(quantized(model, scheme, "compressed-tensors", folder / "packed"))
    found |= {key: fused(found, key, meant[key]) for key in meant if key not in found}
    wrong = [key for key, weight in meant.items() if found[key] is None or not torch.allclose(found[key], weight, rtol=1e-2, atol=1e-6)]
    assert not wrong, f"{len(wrong)} wrong weights, e.g. {wrong[0]}"
    changed = undescribed_models.weights(model)
    assert any(not torch.equal(meant[key], weight) for key, weight in changed.items()), "nothing is quantized"


def main(folder, names):
    counts = {"INT4": 0, "FP8": 0, "one of them": 0}
    for name in names or ARCHITECTURES:
        answers = {}
        for label, scheme in (("INT4", "int4:g32"), ("FP8", "FP8_DYNAMIC")):
            try:
                loads(save(name, folder / name), scheme, folder / f"{name}-quantized")
                answers[label] = "loads"
                counts[label] += 1
            except Exception as error:
                answers[label] = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        counts["one of them"] += "loads" in answers.values()
        print(name, *(f"{label}: {answer}" for label, answer in answers.items()), sep=" | ", flush=True)
    print(counts, "of", len(names or ARCHITECTURES))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
