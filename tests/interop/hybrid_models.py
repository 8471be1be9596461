"""Tiny random-weight hybrids of recurrent mixers and attention, with the tokenizer of a trained model."""

import pathlib
import re
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file

import models
from forward_models import known, scaled

TEXT = dict(vocab_size=2048, hidden_size=128, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=32, max_position_embeddings=512, bos_token_id=0, eos_token_id=0, pad_token_id=0, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=32, linear_conv_kernel_dim=4,
            layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"])  # fmt: skip
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, shared_expert_intermediate_size=128)
PLAIN = dict(vocab_size=2048, hidden_size=128, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
             bos_token_id=0, eos_token_id=0, pad_token_id=0)  # fmt: skip
FOUR = dict(PLAIN, num_hidden_layers=4)
MAMBA2 = dict(mamba_n_heads=8, mamba_n_groups=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2)
VISION = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=128)

# name -> (model_type, arguments of its config class)
MODELS = {
    "qwen3_next": ("qwen3_next", dict(TEXT, **EXPERTS, norm_topk_prob=True, mlp_only_layers=[1])),
    "qwen3_5_text": ("qwen3_5_text", TEXT),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", dict(TEXT, **EXPERTS)),
    "bamba": ("bamba", dict(FOUR, **MAMBA2, attn_layer_indices=[1])),
    "falcon_h1": ("falcon_h1", dict(FOUR, **MAMBA2, mamba_d_ssm=256, mamba_rms_norm=True, attention_in_multiplier=1.2, ssm_in_multiplier=0.8)),
    "granitemoehybrid": ("granitemoehybrid", dict(FOUR, **MAMBA2, num_local_experts=0, shared_intermediate_size=128,
                                                  layer_types=["linear_attention", "full_attention"] * 2)),
    "jamba": ("jamba", dict(FOUR, mamba_d_state=8, num_experts=1, attn_layer_period=3, attn_layer_offset=1, use_mamba_kernels=False)),
    "lfm2": ("lfm2", dict(FOUR, layer_types=["conv", "full_attention", "conv", "conv"], block_multiple_of=32)),
    "lfm3": ("lfm3", dict(FOUR, head_dim=32, sliding_window=8, layer_types=["conv", "full_attention", "sliding_attention", "conv"])),
    "mamba": ("mamba", dict(vocab_size=2048, hidden_size=128, num_hidden_layers=3, state_size=8, bos_token_id=0, eos_token_id=0, pad_token_id=0)),
    "mamba2": ("mamba2", dict(vocab_size=2048, hidden_size=128, num_hidden_layers=3, num_heads=8, head_dim=32, n_groups=2, state_size=16,
                              bos_token_id=0, eos_token_id=0, pad_token_id=0)),
    "nemotron_h": ("nemotron_h", dict(PLAIN, head_dim=32, mamba_num_heads=8, mamba_head_dim=32, n_groups=2, ssm_state_size=16,
                                      layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"])),
    "olmo_hybrid": ("olmo_hybrid", TEXT),
    "minimax": ("minimax", dict(FOUR, head_dim=32, num_local_experts=4, num_experts_per_tok=2, block_size=16, linear_attn_alpha_factor=1.2,
                                mlp_beta_factor=0.8, layer_types=TEXT["layer_types"])),
    "kimi_linear": ("kimi_linear", dict(FOUR, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, num_key_value_heads=4,
                                        num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, linear_head_dim=32, linear_num_heads=4,
                                        layer_types=TEXT["layer_types"])),
    "bailing_hybrid": ("bailing_hybrid", dict(FOUR, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, num_key_value_heads=4, head_dim=32,
                                              num_local_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=128,
                                              first_k_dense_replace=1, layer_types=TEXT["layer_types"])),
    # No hybrids, but what they keep of a sequence is more than keys and values: experts cross blocks, and an indexer has keys of its own.
    "longcat_flash": ("longcat_flash", dict(vocab_size=2048, hidden_size=128, ffn_hidden_size=128, num_layers=2, num_attention_heads=4, head_dim=16,
                                            max_position_embeddings=512, kv_lora_rank=32, q_lora_rank=48, qk_nope_head_dim=32, qk_rope_head_dim=16,
                                            v_head_dim=32, expert_ffn_hidden_size=128, moe_topk=2, n_routed_experts=4, zero_expert_num=2,
                                            bos_token_id=0, eos_token_id=0, pad_token_id=0)),
    "deepseek_v4": ("deepseek_v4", dict(vocab_size=2048, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, head_dim=64, q_lora_rank=48,
                                        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, o_groups=2, o_lora_rank=32, index_n_heads=3,
                                        index_head_dim=32, index_topk=3, sliding_window=6, hc_mult=3, max_position_embeddings=512,
                                        partial_rotary_factor=0.25, bos_token_id=0, eos_token_id=0, pad_token_id=0,
                                        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                                                     "compressed_sparse_attention"],
                                        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8),
                                        mlp_layer_types=["hash_moe", "moe", "moe", "moe"])),
    "minimax_m3_text": ("minimax_m3_vl_text", dict(FOUR, head_dim=32, dense_intermediate_size=128, shared_intermediate_size=128, num_local_experts=4,
                                                   num_experts_per_tok=2, layer_types=["full_attention"] + ["minimax_m3_sparse"] * 3,
                                                   mlp_layer_types=["dense"] + ["sparse"] * 3, index_n_heads=2, index_head_dim=32,
                                                   index_block_size=4, index_topk_blocks=2)),
    "qwen3_5": ("qwen3_5", dict(text_config=TEXT, vision_config=VISION)),
    "qwen3_5_moe": ("qwen3_5_moe", dict(text_config=dict(TEXT, **EXPERTS), vision_config=VISION)),
}  # fmt: skip
MODELS = known(MODELS)


def auto_class(directory):
    multimodal = hasattr(transformers.AutoConfig.from_pretrained(directory), "vision_config")
    return transformers.AutoModelForImageTextToText if multimodal else transformers.AutoModelForCausalLM


def with_fused_experts(tensors):
    """The layout in which Qwen publishes bf16: all experts of a block in two tensors, gate above up, without `.weight`."""
    fused, experts = {}, {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)_proj\.weight", name)
        if not found or name.startswith("mtp."):
            fused[name] = tensor
        else:
            experts.setdefault(found[1], {})[int(found[2]), found[3]] = tensor
    for module, parts in experts.items():
        indices = sorted({index for index, _ in parts})
        fused[f"{module}.gate_up_proj"] = torch.stack([torch.cat([parts[i, "gate"], parts[i, "up"]]) for i in indices])
        fused[f"{module}.down_proj"] = torch.stack([parts[i, "down"] for i in indices])
    return fused


def with_head_of_further_tokens(tensors):
    """Layers named as Qwen names those that predict further tokens: a copy of the block with attention, and what leads into it."""
    block = re.compile(r".*\.layers\.2\.(.*)")
    copies = {f"mtp.layers.0.{found[1]}": tensor.clone() for name, tensor in tensors.items() if (found := block.fullmatch(name))}
    fc = torch.randn(128, 256, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16) * 0.05
    norms = {f"mtp.{name}.weight": torch.zeros(128, dtype=torch.bfloat16) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    return {**tensors, **copies, **norms, "mtp.fc.weight": fc}


def save(name, out, repo, dtype="bfloat16"):
    """The directory of a model, made on first use. `-fused` and `-mtp` behind a name change how, and what, it stores."""
    out = pathlib.Path(out)
    if (out / "config.json").exists():
        return out
    base, *changes = name.split("-")
    kind, arguments = MODELS[base]
    config = transformers.AutoConfig.for_model(kind, **arguments)
    auto = transformers.AutoModelForImageTextToText if hasattr(config, "vision_config") else transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=getattr(torch, dtype))
    generator = torch.Generator().manual_seed(sum(map(ord, base)))
    with torch.no_grad():
        for n, p in model.named_parameters():
            change = scaled(n, p.shape, generator)
            p.copy_(p + change if "norm" in n and "bias" not in n else change)
    model.save_pretrained(out)
    tensors = load_file(out / "model.safetensors")
    for change in changes:
        tensors = {"mtp": with_head_of_further_tokens, "fused": with_fused_experts}[change](tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors", metadata={"format": "pt"})
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models.find_shared("nano_llama", repo, None) / file, out / file)
    return out
