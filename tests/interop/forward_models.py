"""Tiny random-weight models, one for each rule of the forward pass, with weights large enough for every rule to matter."""

import copy
import json
import pathlib

import safetensors.torch
import torch
import transformers

BASE = dict(vocab_size=512, hidden_size=128, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=0, pad_token_id=0)  # fmt: skip
WIDE = dict(BASE, head_dim=48)
NARROW = dict(BASE, head_dim=32)
GPT = dict(n_embd=128, n_layer=3, n_head=4, vocab_size=512, n_positions=256, bos_token_id=0, eos_token_id=0)
OPT = dict(hidden_size=128, ffn_dim=192, num_hidden_layers=3, num_attention_heads=4, vocab_size=512, max_position_embeddings=256,
           word_embed_proj_dim=128)  # fmt: skip
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=64)
ROUTED = dict(moe_intermediate_size=64, num_experts_per_tok=3)
LOCAL_EXPERTS = dict(num_local_experts=8, num_experts_per_tok=2)
DEEPSEEK = dict(BASE, kv_lora_rank=32, q_lora_rank=48, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=24, num_key_value_heads=4,
                moe_intermediate_size=64, num_experts_per_tok=2, n_routed_experts=8, n_shared_experts=2, first_k_dense_replace=1,
                n_group=1, topk_group=1)  # fmt: skip
# Fewer keys than tokens, and enough heads that hardly a score is 0, of which another one might be chosen.
SPARSE = dict(DEEPSEEK, index_topk=13, index_head_dim=24, index_n_heads=11)
GROUPS = dict(n_group=4, topk_group=2, routed_scaling_factor=2.5)
MULTIPLIERS = dict(attention_multiplier=0.1, embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22)
# Heads of keys and values that differ in number and width, none a power of two; blocks of both kinds.
DELTA = dict(WIDE, linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=20, linear_value_head_dim=12, linear_conv_kernel_dim=4,
             layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"])  # fmt: skip
DELTA_EXPERTS = dict(DELTA, **EXPERTS, shared_expert_intermediate_size=96)
# Delta nets with a decay for each channel beside latent attention; heads of both differ.
KIMI_LINEAR = dict(BASE, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=24, num_key_value_heads=4, moe_intermediate_size=64,
                   num_local_experts=8, num_experts_per_tok=2, n_shared_experts=2, routed_scaling_factor=1.7, linear_head_dim=20, linear_num_heads=3,
                   layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"])  # fmt: skip
# The same with bounded decays, and with gates on the heads of latent attention.
BAILING = dict(BASE, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=24, num_key_value_heads=4, head_dim=20, moe_intermediate_size=64,
               num_local_experts=8, num_experts_per_tok=2, n_shared_experts=2, n_group=4, topk_group=2, first_k_dense_replace=1, layer_group_size=3,
               short_conv_kernel_size=3, layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"])  # fmt: skip
# Heads, groups and states of state-space layers, none a power of two.
MAMBA2 = dict(mamba_n_heads=6, mamba_n_groups=3, mamba_d_state=12, mamba_d_conv=4, mamba_expand=3)
GRANITE4 = dict(BASE, **MAMBA2, shared_intermediate_size=96, layer_types=["mamba", "attention", "mamba", "mamba"])
# What llama.cpp's graphs of some hybrids want: twice as many channels as hidden states, in one group.
MAMBA2_TWICE = dict(mamba_n_heads=8, mamba_n_groups=1, mamba_d_state=12, mamba_d_conv=4, mamba_expand=2)
GRANITE4_TWICE = dict(BASE, **MAMBA2_TWICE, shared_intermediate_size=96, layer_types=["mamba", "attention", "mamba", "mamba"])
MAMBA_ONLY = dict(vocab_size=512, hidden_size=96, num_hidden_layers=3, num_heads=6, head_dim=48, expand=3, n_groups=3, state_size=12,
                  bos_token_id=0, eos_token_id=0, pad_token_id=0)  # fmt: skip
# A rank and channels that are no powers of two.
MAMBA1 = dict(vocab_size=512, hidden_size=72, num_hidden_layers=3, expand=3, state_size=6, conv_kernel=3, time_step_rank=7,
              bos_token_id=0, eos_token_id=0, pad_token_id=0)  # fmt: skip
JAMBA = dict(BASE, mamba_d_state=6, mamba_d_conv=4, mamba_expand=3, mamba_dt_rank=11, num_experts=4, attn_layer_period=3, attn_layer_offset=1,
             expert_layer_period=2, expert_layer_offset=1, use_mamba_kernels=False)  # fmt: skip
NEMOTRON_H = dict({k: v for k, v in NARROW.items() if k != "num_hidden_layers"}, mamba_num_heads=6, mamba_head_dim=48, n_groups=3, ssm_state_size=12, conv_kernel=4, n_routed_experts=8,
                  num_experts_per_tok=3, moe_intermediate_size=64, moe_shared_expert_intermediate_size=96,
                  layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention"])  # fmt: skip
FALCON_H1 = {**BASE, **MAMBA2, "mamba_d_ssm": 288, "num_hidden_layers": 3}
FALCON_H1_FACTORS = dict(embedding_multiplier=5.6, lm_head_multiplier=0.4, key_multiplier=0.6, attention_in_multiplier=1.3, ssm_in_multiplier=0.8,
                         attention_out_multiplier=0.7, ssm_out_multiplier=1.4, mlp_multipliers=[0.9, 0.6],
                         ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.8])  # fmt: skip
CONVOLUTIONS = dict(BASE, layer_types=["conv", "full_attention", "conv", "conv"], block_multiple_of=32)


# Two blocks in each of two layers, and experts that compute nothing.
LONGCAT = dict(vocab_size=512, hidden_size=128, ffn_hidden_size=192, num_layers=2, num_attention_heads=4, max_position_embeddings=256, kv_lora_rank=32,
               q_lora_rank=48, qk_nope_head_dim=32, qk_rope_head_dim=16, head_dim=16, v_head_dim=24, expert_ffn_hidden_size=64, moe_topk=4,
               n_routed_experts=5, zero_expert_num=3, routed_scaling_factor=1.7, bos_token_id=0, eos_token_id=0, pad_token_id=0)  # fmt: skip


def rope(kind, **parameters):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **parameters))


def deepseek_yarn(mscale):
    return rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=mscale, mscale_all_dim=mscale, beta_fast=32, beta_slow=1)


BLOOM = dict(hidden_size=192, n_layer=3, vocab_size=512, bos_token_id=0, eos_token_id=0)
COHERE_MOE = dict(NARROW, num_experts=8, num_experts_per_tok=3, num_shared_experts=2, first_k_dense_replace=1, prefix_dense_intermediate_size=160,
                  sliding_window=20, sliding_window_pattern=3)  # fmt: skip
FALCON = dict(hidden_size=192, num_hidden_layers=3, num_attention_heads=8, vocab_size=512, ffn_hidden_size=256, bos_token_id=0, eos_token_id=0)
GEMMA4 = dict(NARROW, num_hidden_layers=6, global_head_dim=64, hidden_size_per_layer_input=0, sliding_window=20,
              layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2)  # fmt: skip
GEMMA3N = dict(NARROW, num_hidden_layers=6, hidden_size_per_layer_input=24, vocab_size_per_layer_input=512, num_kv_shared_layers=3, laurel_rank=20,
               sliding_window=20, layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2,
               activation_sparsity_pattern=[0.95, 0.7, 0.0, 0.5, 0.0, 0.8])  # fmt: skip
GROWING = rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)
LLAMA4 = dict(NARROW, num_local_experts=4, intermediate_size_mlp=160, interleave_moe_layer_step=1)
# Images, which tests show to no model.
KIMI_VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, pos_emb_height=4, pos_emb_width=4, pos_emb_time=2)
SIGLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8, num_patches=16)
MLLAMA_VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_global_layers=1, attention_heads=2, image_size=28, patch_size=14,
                     vision_output_dim=64, intermediate_layers_indices=[0])  # fmt: skip
# Query heads that differ by layer, and parts of heads that turn, by type.
LAGUNA = dict(NARROW, **EXPERTS, shared_expert_intermediate_size=96, sliding_window=20, num_attention_heads_per_layer=[4, 6, 2, 4],
              layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
              rope_parameters=dict(full_attention=dict(rope_type="yarn", rope_theta=5e5, partial_rotary_factor=0.5, factor=8.0,
                                                       original_max_position_embeddings=32),
                                   sliding_attention=dict(rope_type="default", rope_theta=1e4)))  # fmt: skip
# Fewer blocks of keys than tokens have, chosen by heads of another width than those of attention.
MINIMAX_M3 = dict(NARROW, intermediate_size=64, dense_intermediate_size=160, shared_intermediate_size=96, num_local_experts=8, num_experts_per_tok=3,
                  routed_scaling_factor=1.7, index_n_heads=2, index_head_dim=24, index_block_size=8, index_topk_blocks=3,
                  layer_types=["full_attention"] + ["minimax_m3_sparse"] * 3, mlp_layer_types=["dense"] + ["sparse"] * 3,
                  **rope("default", partial_rotary_factor=0.5))  # fmt: skip
MINIMAX_VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
# Blocks of attention that are no longer than a part of a sequence, and residuals of norms with factors.
MINIMAX = dict(NARROW, **LOCAL_EXPERTS, block_size=32, full_attn_alpha_factor=1.3, full_attn_beta_factor=0.8, linear_attn_alpha_factor=1.2,
               linear_attn_beta_factor=0.7, mlp_alpha_factor=0.9, mlp_beta_factor=1.1,
               layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"])  # fmt: skip
# Blocks of all kinds: windows alone, few entries that all see, many of which an indexer chooses; experts that tokens and that a router choose.
DEEPSEEK_V4 = dict(vocab_size=512, hidden_size=128, num_hidden_layers=5, num_attention_heads=4, head_dim=64, q_lora_rank=48, n_routed_experts=8,
                   num_experts_per_tok=3, moe_intermediate_size=64, o_groups=2, o_lora_rank=24, index_n_heads=11, index_head_dim=24, index_topk=5,
                   sliding_window=20, hc_mult=3, max_position_embeddings=256, partial_rotary_factor=0.25, bos_token_id=0, eos_token_id=0, pad_token_id=0,
                   layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention",
                                "sliding_attention"], compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=16),
                   mlp_layer_types=["hash_moe"] * 2 + ["moe"] * 3)  # fmt: skip
DBRX = dict(d_model=128, n_heads=4, n_layers=3, vocab_size=512, max_seq_len=256, bos_token_id=0, eos_token_id=0, pad_token_id=0)
PERSIMMON = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
XGLM = dict(d_model=128, ffn_dim=192, num_layers=3, attention_heads=4, vocab_size=512, max_position_embeddings=256, bos_token_id=0, eos_token_id=0)
MPT = dict(d_model=192, n_layers=3, vocab_size=512, max_seq_len=128)
VISION = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=128, deepstack_visual_indexes=[0])
SECTIONS = rope("default", mrope_section=[8, 8, 8])
SOUND = dict(encoder_layers=1, d_model=32, encoder_attention_heads=2, encoder_ffn_dim=48, output_dim=128, downsample_hidden_size=8, n_window=4,
             n_window_infer=8, conv_chunksize=8)  # fmt: skip
OMNI = dict(text_config=dict(WIDE, **EXPERTS, **SECTIONS), vision_config=VISION, audio_config=SOUND)
GEMMA3_ROPE = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                   sliding_attention=dict(rope_type="default", rope_theta=10000.0))  # fmt: skip
LONG_ROPE = rope("longrope", original_max_position_embeddings=64, partial_rotary_factor=1.0,
                 short_factor=[1.0 + 0.1 * i for i in range(16)], long_factor=[2.0 + 0.5 * i for i in range(16)])  # fmt: skip

# name -> (model_type, arguments of its config class)
MODELS = {
    "llama_bias": ("llama", dict(BASE, attention_bias=True, mlp_bias=True)),
    "llama_tied": ("llama", dict(BASE, tie_word_embeddings=True)),
    "llama_linear": ("llama", dict(BASE, **rope("linear", factor=4.0))),
    "llama_dynamic": ("llama", {**BASE, **rope("dynamic", factor=4.0), "max_position_embeddings": 64}),
    "llama_yarn": ("llama", dict(BASE, **rope("yarn", factor=8.0, original_max_position_embeddings=32))),
    "llama_llama3": ("llama", dict(BASE, **rope("llama3", factor=8.0, original_max_position_embeddings=64, low_freq_factor=1.0,
                                                high_freq_factor=4.0))),
    "mistral": ("mistral", dict(BASE, sliding_window=20)),
    "qwen2": ("qwen2", dict(BASE, use_sliding_window=True, sliding_window=20, max_window_layers=2)),
    "qwen3": ("qwen3", WIDE),
    "gemma": ("gemma", WIDE),
    "gemma2": ("gemma2", dict(WIDE, sliding_window=20, query_pre_attn_scalar=40, attn_logit_softcapping=5.0, final_logit_softcapping=10.0)),
    "gemma3": ("gemma3_text", dict(WIDE, num_hidden_layers=7, sliding_window=20, query_pre_attn_scalar=40, rope_parameters=GEMMA3_ROPE)),
    "gemma3n": ("gemma3n_text", dict(GEMMA3N, final_logit_softcapping=10.0)),
    "gemma3n_lanes": ("gemma3n_text", dict(GEMMA3N, altup_num_inputs=3, altup_active_idx=1, altup_correct_scale=False, num_kv_shared_layers=2,
                                           activation_sparsity_pattern=[0.0] * 6)),
    "phi3": ("phi3", dict(BASE, sliding_window=20, partial_rotary_factor=0.5)),
    "phi3_longrope": ("phi3", dict(BASE, original_max_position_embeddings=64, **LONG_ROPE)),
    "arcee": ("arcee", BASE),
    "cwm": ("cwm", {**NARROW, "sliding_window": 20, **rope("llama3", factor=8.0, original_max_position_embeddings=64, low_freq_factor=1.0,
                                                           high_freq_factor=4.0)}),
    "ernie4_5": ("ernie4_5", NARROW),
    "ernie4_5_bias": ("ernie4_5", dict(NARROW, use_bias=True)),
    "exaone4": ("exaone4", dict(BASE, sliding_window=20, sliding_window_pattern="LLLG", layer_types=["sliding_attention"] * 3 + ["full_attention"])),
    "exaone4_full": ("exaone4", dict(BASE, sliding_window=None, layer_types=["full_attention"] * 4)),
    "helium": ("helium", NARROW),
    "seed_oss": ("seed_oss", dict(WIDE, attention_bias=True)),
    "opt": ("opt", OPT),
    "opt_post_norm": ("opt", dict(OPT, word_embed_proj_dim=64, do_layer_norm_before=False)),
    "opt_plain_norms": ("opt", dict(OPT, layer_norm_elementwise_affine=False)),
    "gpt2": ("gpt2", GPT),
    "gptj": ("gptj", dict(GPT, rotary_dim=16)),
    "gptj_tied": ("gptj", dict(GPT, rotary_dim=16, tie_word_embeddings=True)),
    "gpt_neox": ("gpt_neox", {k: v for k, v in BASE.items() if k != "num_key_value_heads"}),
    "gpt_neox_sequential": ("gpt_neox", {**{k: v for k, v in BASE.items() if k != "num_key_value_heads"}, "use_parallel_residual": False}),
    "mixtral": ("mixtral", dict(BASE, **LOCAL_EXPERTS, sliding_window=20)),
    "qwen2_moe": ("qwen2_moe", dict(BASE, **EXPERTS, shared_expert_intermediate_size=96)),
    "qwen2_moe_routed": ("qwen2_moe", dict(BASE, **EXPERTS, shared_expert_intermediate_size=0)),
    "qwen3_moe": ("qwen3_moe", dict(WIDE, **EXPERTS, norm_topk_prob=True, mlp_only_layers=[1])),
    "qwen3_moe_whole": ("qwen3_moe", dict(WIDE, **EXPERTS, norm_topk_prob=True)),
    "qwen3_next": ("qwen3_next", dict(DELTA_EXPERTS, norm_topk_prob=True, mlp_only_layers=[1])),
    "qwen3_next_one_head": ("qwen3_next", dict(DELTA_EXPERTS, norm_topk_prob=False, linear_num_key_heads=1, linear_num_value_heads=5)),
    "qwen3_next_interval": ("qwen3_next", dict({k: v for k, v in DELTA_EXPERTS.items() if k != "layer_types"}, linear_conv_kernel_dim=3)),
    "qwen3_5": ("qwen3_5_text", DELTA),
    "qwen3_5_bias": ("qwen3_5_text", dict(DELTA, attention_bias=True, linear_num_key_heads=5, linear_num_value_heads=5, tie_word_embeddings=True)),
    "qwen3_5_heads": ("qwen3_5_text", dict(DELTA, linear_num_key_heads=2, linear_num_value_heads=14, linear_conv_kernel_dim=2)),
    "qwen3_5_moe": ("qwen3_5_moe_text", DELTA_EXPERTS),
    "olmoe_heads": ("olmoe", dict(BASE, num_key_value_heads=4, num_experts=8, num_experts_per_tok=2)),
    "olmoe": ("olmoe", dict(BASE, num_experts=8, num_experts_per_tok=2)),
    "granite": ("granite", dict(BASE, **MULTIPLIERS)),
    "granitemoe": ("granitemoe", dict(BASE, **LOCAL_EXPERTS, **MULTIPLIERS)),
    "granitemoehybrid": ("granitemoehybrid", dict(GRANITE4, **MULTIPLIERS, num_local_experts=4, num_experts_per_tok=2)),
    "granitemoehybrid_dense": ("granitemoehybrid", dict(GRANITE4, num_local_experts=0, position_embedding_type="rope", mamba_proj_bias=True)),
    "phimoe": ("phimoe", dict(BASE, **LOCAL_EXPERTS)),
    "phimoe_biases": ("phimoe", dict(BASE, **LOCAL_EXPERTS, attention_bias=True, lm_head_bias=True)),
    "gpt_oss": ("gpt_oss", dict(NARROW, num_local_experts=4, num_experts_per_tok=2, sliding_window=20)),
    "gpt_oss_rounded": ("gpt_oss", dict(NARROW, num_local_experts=4, num_experts_per_tok=2, sliding_window=20,
                                        **rope("yarn", factor=32.0, original_max_position_embeddings=64, truncate=True))),
    "deepseek_v2": ("deepseek_v2", dict(DEEPSEEK, **GROUPS, topk_method="group_limited_greedy", **deepseek_yarn(0.707))),
    "deepseek_v2_lite": ("deepseek_v2", dict(DEEPSEEK, q_lora_rank=None)),
    "deepseek_v2_lite_deep": ("deepseek_v2", dict(DEEPSEEK, q_lora_rank=None, num_hidden_layers=27)),
    "deepseek_v3": ("deepseek_v3", dict(DEEPSEEK, **GROUPS, norm_topk_prob=True, **deepseek_yarn(1.0))),
    "deepseek_v32": ("deepseek_v32", dict(SPARSE, **GROUPS, norm_topk_prob=True, **deepseek_yarn(1.0))),
    "dots1": ("dots1", dict(BASE, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=2,
                            first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, sliding_window=20, max_window_layers=2)),
    "flex_olmo": ("flex_olmo", dict(BASE, num_experts=8, num_experts_per_tok=2)),
    "glm4_moe_lite": ("glm4_moe_lite", {**DEEPSEEK, **GROUPS, "norm_topk_prob": True}),
    "glm_moe_dsa": ("glm_moe_dsa", dict(SPARSE, norm_topk_prob=True)),
    "solar_open": ("solar_open", dict(NARROW, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                                      n_group=1, topk_group=1)),
    "glm4_moe": ("glm4_moe", dict(NARROW, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                                  first_k_dense_replace=1, use_qk_norm=True, n_group=1, topk_group=1)),
    "glm4_moe_routed": ("glm4_moe", dict(NARROW, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=0,
                                         first_k_dense_replace=1, n_group=1, topk_group=1)),
    "cohere": ("cohere", BASE),
    "cohere_norms": ("cohere", dict(BASE, use_qk_norm=True)),
    "cohere_norms_deep": ("cohere", dict(BASE, use_qk_norm=True, num_hidden_layers=64)),
    "cohere2": ("cohere2", dict(BASE, sliding_window=20)),
    "afmoe": ("afmoe", dict(NARROW, **EXPERTS, num_dense_layers=1, num_shared_experts=1, sliding_window=20, route_scale=1.7, mup_enabled=True)),
    "apertus": ("apertus", BASE),
    "bamba": ("bamba", dict(BASE, **MAMBA2, attn_layer_indices=[1])),
    "bamba_bias": ("bamba", {**BASE, **MAMBA2, "attn_layer_indices": [0, 3], "mamba_conv_bias": False, "mamba_proj_bias": True, "mamba_n_groups": 1,
                             "mamba_d_conv": 3, "time_step_limit": [0.3, 0.9], "attention_bias": True, "mlp_bias": True}),
    "bitnet": ("bitnet", BASE),
    "bloom": ("bloom", dict(BLOOM, n_head=4)),
    "bloom_heads": ("bloom", dict(BLOOM, n_head=12)),
    "cohere2_moe": ("cohere2_moe", dict(COHERE_MOE, expert_selection_fn="softmax", prefix_dense_sliding_window_pattern=4)),
    "cohere2_moe_rms": ("cohere2_moe", dict(COHERE_MOE, expert_selection_fn="sigmoid", rms_norm_eps=1e-3, norm_topk_prob=True,
                                            prefix_dense_sliding_window_pattern=1, shared_expert_combination_strategy="sum")),
    "ernie4_5_moe": ("ernie4_5_moe", dict(NARROW, moe_intermediate_size=64, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2, use_bias=True)),
    "exaone_moe": ("exaone_moe", dict(NARROW, **EXPERTS, num_shared_experts=1, sliding_window=20, routed_scaling_factor=1.7, n_group=4, topk_group=2)),
    "falcon": ("falcon", FALCON),
    "falcon_alibi": ("falcon", dict(FALCON, num_attention_heads=12, alibi=True, multi_query=False, parallel_attn=False, bias=True)),
    "falcon_groups": ("falcon", dict(FALCON, num_kv_heads=2, new_decoder_architecture=True, bias=True)),
    "falcon_one_norm": ("falcon", dict(FALCON, num_kv_heads=4, new_decoder_architecture=True, num_ln_in_parallel_attn=1)),
    "falcon_h1": ("falcon_h1", {**FALCON_H1, **FALCON_H1_FACTORS, "mamba_rms_norm": True}),
    "falcon_h1_gated": ("falcon_h1", {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "key_multiplier": 0.4}),
    "falcon_h1_plain": ("falcon_h1", {**FALCON_H1, **FALCON_H1_FACTORS, "mamba_n_groups": 1, "attention_bias": True, "mlp_bias": True,
                                      "projectors_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False}),
    "falcon_mamba": ("falcon_mamba", dict(MAMBA1, mixer_rms_eps=1e-3)),
    "gemma4": ("gemma4_text", dict(GEMMA4, final_logit_softcapping=10.0)),
    "gemma4_layer_inputs": ("gemma4_text", dict(GEMMA4, hidden_size_per_layer_input=24, vocab_size_per_layer_input=512, num_kv_shared_layers=3,
                                                use_double_wide_mlp=True)),
    "gemma4_moe": ("gemma4_text", dict(GEMMA4, **EXPERTS, enable_moe_block=True, top_k_experts=3)),
    "gemma4_shared": ("gemma4_text", dict(GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1)),
    "hunyuan_moe": ("hunyuan_v1_moe", dict(NARROW, num_experts=8, moe_topk=3, **rope("dynamic", factor=1.0, alpha=50.0))),
    "hy_v3": ("hy_v3", dict(NARROW, **EXPERTS, num_shared_experts=2, router_scaling_factor=1.7)),
    "jamba": ("jamba", JAMBA),
    "jamba_dense": ("jamba", {**JAMBA, "num_experts": 1, "mamba_dt_rank": "auto", "mamba_conv_bias": False, "mamba_proj_bias": True}),
    "lfm2": ("lfm2", dict(CONVOLUTIONS, tie_word_embeddings=True)),
    "lfm2_bias": ("lfm2", dict(CONVOLUTIONS, conv_bias=True, conv_L_cache=4, block_ffn_dim_multiplier=1.3, tie_word_embeddings=False)),
    "lfm2_indices": ("lfm2", {**BASE, "full_attn_idxs": [0, 2], "block_auto_adjust_ff_dim": False, "conv_L_cache": 2}),
    "lfm2_moe": ("lfm2_moe", dict(CONVOLUTIONS, **EXPERTS, num_dense_layers=1, routed_scaling_factor=1.7)),
    "lfm2_moe_plain": ("lfm2_moe", dict(CONVOLUTIONS, **EXPERTS, num_dense_layers=2, use_expert_bias=False, norm_topk_prob=False)),
    "llama4": ("llama4_text", dict(LLAMA4, attention_chunk_size=20, num_experts_per_tok=1, floor_scale=16, attn_scale=0.5)),
    "llama4_dense": ("llama4_text", dict(LLAMA4, attention_chunk_size=40, num_experts_per_tok=2, interleave_moe_layer_step=2, use_qk_norm=False,
                                         attn_temperature_tuning=False, no_rope_layers=[1, 0, 1, 0])),
    "mimo_v2_flash": ("mimo_v2_flash", dict(BASE, **ROUTED, head_dim=24, v_head_dim=16, n_routed_experts=8, n_group=4, topk_group=2, sliding_window=20,
                                            layer_types=["full_attention"] + ["sliding_attention"] * 3, routed_scaling_factor=1.7)),
    "ministral3": ("ministral3", dict(NARROW, sliding_window=60, **GROWING)),
    "mistral4": ("mistral4", dict(DEEPSEEK, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.7, **GROWING)),
    "mpt": ("mpt", dict(MPT, n_heads=4, attn_config=dict(clip_qkv=1.5, softmax_scale=0.3))),
    "mpt_heads": ("mpt", dict(MPT, n_heads=12)),
    "qwen3_vl_moe": ("qwen3_vl_moe", dict(text_config=dict(WIDE, **EXPERTS, mlp_only_layers=[1]), vision_config=VISION)),
    "glm": ("glm", NARROW),
    "glm4": ("glm4", NARROW),
    "hunyuan": ("hunyuan_v1_dense", NARROW),
    "hunyuan_alpha": ("hunyuan_v1_dense", dict(NARROW, **rope("dynamic", factor=1.0, alpha=50.0))),
    "longcat": ("longcat_flash", LONGCAT),
    "longcat_yarn": ("longcat_flash", {**LONGCAT, "zero_expert_num": 0, "num_layers": 1, "attention_bias": True, **deepseek_yarn(0.707)}),
    "mamba": ("mamba", MAMBA1),
    "mamba_bias": ("mamba", dict(MAMBA1, use_bias=True, use_conv_bias=False, tie_word_embeddings=False)),
    "mamba2": ("mamba2", MAMBA_ONLY),
    "mamba2_bias": ("mamba2", {**MAMBA_ONLY, "n_groups": 1, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3}),
    "nemotron": ("nemotron", BASE),
    "nemotron_h": ("nemotron_h", dict(NEMOTRON_H, n_group=4, topk_group=2, routed_scaling_factor=2.5)),
    "nemotron_h_dense": ("nemotron_h", {**NEMOTRON_H, "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "use_bias": True, "n_groups": 1,
                                        "mlp_bias": True, "time_step_min": 0.6}),
    "olmo": ("olmo", BASE),
    "olmo_clipped": ("olmo", dict(BASE, clip_qkv=1.5)),
    "olmo2": ("olmo2", BASE),
    "olmo3": ("olmo3", dict(BASE, sliding_window=20)),
    "olmo_hybrid": ("olmo_hybrid", DELTA),
    "olmo_hybrid_rotary": ("olmo_hybrid", dict(DELTA, **rope("default"), linear_allow_neg_eigval=False, linear_num_key_heads=5, linear_num_value_heads=5)),
    "phi": ("phi", BASE),
    "phi_tied": ("phi", dict(BASE, tie_word_embeddings=True)),
    "phi_norms": ("phi", dict(BASE, qk_layernorm=True)),
    "smollm3": ("smollm3", BASE),
    "stablelm": ("stablelm", BASE),
    "stablelm_parallel": ("stablelm", dict(BASE, use_parallel_residual=True, use_qkv_bias=True)),
    "stablelm_norms": ("stablelm", dict(BASE, num_attention_heads=12, num_key_value_heads=4, hidden_size=192, qk_layernorm=True)),
    "stablelm_norms_parallel": ("stablelm", dict(BASE, qk_layernorm=True, use_parallel_residual=True, use_qkv_bias=True)),
    "starcoder2": ("starcoder2", dict(BASE, sliding_window=20)),
    "axk1": ("axk1", dict(DEEPSEEK, **GROUPS, norm_topk_prob=True, **deepseek_yarn(1.0))),
    "gpt_bigcode": ("gpt_bigcode", GPT),
    "gpt_bigcode_heads": ("gpt_bigcode", dict(GPT, n_embd=144, n_head=6, n_inner=200, multi_query=False, tie_word_embeddings=False)),
    "kimi_k25": ("kimi_k25", dict(text_config=dict(DEEPSEEK, **GROUPS, model_type="deepseek_v3", norm_topk_prob=True), vision_config=KIMI_VISION,
                                  tie_word_embeddings=False)),
    "bailing_hybrid": ("bailing_hybrid", BAILING),
    "bailing_hybrid_plain": ("bailing_hybrid", {**BAILING, "layer_types": None, "kda_safe_gate": False, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1,
                                                "moe_renormalize": False, **deepseek_yarn(0.707)}),
    "kimi_linear": ("kimi_linear", KIMI_LINEAR),
    "kimi_linear_groups": ("kimi_linear", {**KIMI_LINEAR, "num_hidden_layers": 6, "layer_types": None, "q_lora_rank": 48, "n_group": 4, "topk_group": 2,
                                           "norm_topk_prob": False, "linear_conv_kernel_dim": 3, "mlp_layer_types": ["sparse"] * 5 + ["dense"]}),
    "kolibri1": ("kolibri1", {**{key: value for key, value in NARROW.items() if key != "intermediate_size"}, **EXPERTS, "shared_expert_intermediate_size": 96,
                              "sliding_window": 20, "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"]}),
    "kolibri1_weighed": ("kolibri1", {**{key: value for key, value in NARROW.items() if key != "intermediate_size"}, **EXPERTS, "num_hidden_layers": 6,
                                      "shared_expert_intermediate_size": 32, "sliding_window": 30, "norm_topk_prob": True}),
    "laguna": ("laguna", dict(LAGUNA, moe_routed_scaling_factor=1.7, moe_router_logit_softcapping=2.0)),
    "laguna_elements": ("laguna", dict(LAGUNA, gating="per-element", num_attention_heads_per_layer=None, attention_bias=True,
                                       mlp_layer_types=["sparse", "dense", "sparse", "sparse"], tie_word_embeddings=True)),
    "lfm3": ("lfm3", dict(NARROW, num_hidden_layers=6, sliding_window=20)),
    "lfm3_plain": ("lfm3", dict(NARROW, sliding_window=20, layer_types=["sliding_attention", "conv", "full_attention", "conv"], use_sandwich_norm=False,
                                use_attention_gate=False, conv_bias=True, conv_L_cache=4, tie_word_embeddings=False)),
    "lfm2_vl": ("lfm2_vl", dict(text_config=dict(CONVOLUTIONS, model_type="lfm2", block_auto_adjust_ff_dim=False), vision_config=SIGLIP)),
    "ministral": ("ministral", dict(WIDE, sliding_window=20)),
    "ministral_mixed": ("ministral", dict(WIDE, sliding_window=20, layer_types=["full_attention", "sliding_attention"] * 2)),
    "mllama": ("mllama", dict(text_config=dict(BASE, cross_attention_layers=[1, 2]), vision_config=MLLAMA_VISION)),
    "mllama_text": ("mllama_text_model", {**BASE, "num_hidden_layers": 5, "cross_attention_layers": [3],
                                          **rope("llama3", factor=8.0, original_max_position_embeddings=64, low_freq_factor=1.0, high_freq_factor=4.0)}),
    "dbrx": ("dbrx", dict(DBRX, attn_config=dict(kv_n_heads=2, clip_qkv=1.5, rope_theta=10000.0),
                          ffn_config=dict(ffn_hidden_size=64, moe_num_experts=8, moe_top_k=3))),
    "dbrx_norm": ("dbrx", dict(DBRX, attn_config=dict(kv_n_heads=1, clip_qkv=8.0, rope_theta=50000.0), rope_parameters=dict(rope_type="default", rope_theta=50000.0),
                               ffn_config=dict(ffn_hidden_size=128, moe_num_experts=6, moe_top_k=2, moe_normalize_expert_weights=2.0))),
    "dbrx_sums": ("dbrx", dict(DBRX, attn_config=dict(kv_n_heads=4, clip_qkv=8.0, rope_theta=10000.0),
                               ffn_config=dict(ffn_hidden_size=96, moe_num_experts=5, moe_top_k=2, moe_normalize_expert_weights=None))),
    "deepseek_v4": ("deepseek_v4", DEEPSEEK_V4),
    "deepseek_v4_yarn": ("deepseek_v4", {**DEEPSEEK_V4, "hc_mult": 4, "hc_sinkhorn_iters": 3, "o_groups": 4, "num_hash_layers": 0, "layer_types": None, "mlp_layer_types": None,
                                         "rope_parameters": dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32)}),
    "minimax": ("minimax", MINIMAX),
    "minimax_window": ("minimax", dict(BASE, num_local_experts=4, num_experts_per_tok=2, sliding_window=20)),
    "minimax_m3": ("minimax_m3_vl_text", MINIMAX_M3),
    "minimax_m3_local": ("minimax_m3_vl_text", {**MINIMAX_M3, "index_n_heads": 4, "index_head_dim": 40, "index_block_size": 7, "index_topk_blocks": 4,
                                                "index_local_blocks": 2, "rope_parameters": dict(rope_type="default", rope_theta=10000.0)}),
    "minimax_m3_vl": ("minimax_m3_vl", dict(text_config=MINIMAX_M3, vision_config=MINIMAX_VISION, projector_hidden_size=64)),
    "qwen3_omni_moe": ("qwen3_omni_moe_thinker", OMNI),
    "nanochat": ("nanochat", BASE),
    "nanochat_capped": ("nanochat", dict(BASE, final_logit_softcapping=3.0, attention_bias=True, tie_word_embeddings=True)),
    "persimmon": ("persimmon", PERSIMMON),
    "persimmon_plain": ("persimmon", dict(PERSIMMON, qk_layernorm=False, partial_rotary_factor=0.25, tie_word_embeddings=True)),
    "xglm": ("xglm", XGLM),
    "xglm_unscaled": ("xglm", dict(XGLM, d_model=90, attention_heads=6, scale_embedding=False, pad_token_id=7, activation_function="relu",
                                   tie_word_embeddings=False)),
}  # fmt: skip

# Models of forms that llama.cpp's graphs compute, of architectures of which those above have a form that they do not: key heads as many as
# query heads, no biases, heads of one width, states in one group, blocks of one kind.
FOR_LLAMA_CPP = {
    "bailing_hybrid_dense": ("bailing_hybrid", {**BAILING, "num_hidden_layers": 6, "layer_types": None, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1,
                                                "norm_topk_prob": False, "kda_lower_bound": -3.0}),
    "bamba_twice": ("bamba", dict(BASE, **MAMBA2_TWICE, attn_layer_indices=[1])),
    "bamba_listed": ("bamba", dict(BASE, **MAMBA2_TWICE, attn_layer_indices=[0, 3], mamba_conv_bias=False, attention_bias=True)),
    "cohere2_moe_sigmoid": ("cohere2_moe", dict(COHERE_MOE, expert_selection_fn="sigmoid", rms_norm_eps=1e-3, norm_topk_prob=True,
                                                prefix_dense_sliding_window_pattern=1)),
    "deepseek_v4_published": ("deepseek_v4", {**DEEPSEEK_V4, "hc_mult": 4, "index_head_dim": 64, "index_n_heads": 8,
                                              "compress_rates": dict(compressed_sparse_attention=4, heavily_compressed_attention=128)}),
    "deepseek_v4_yarn_published": ("deepseek_v4", {**DEEPSEEK_V4, "hc_mult": 4, "hc_sinkhorn_iters": 3, "o_groups": 4, "num_hash_layers": 0, "mlp_layer_types": None,
                                                   "index_head_dim": 64, "index_n_heads": 8,
                                                   "compress_rates": dict(compressed_sparse_attention=4, heavily_compressed_attention=128),
                                                   "rope_parameters": dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32)}),
    "deepseek_v32_published": ("deepseek_v32", {**SPARSE, **GROUPS, "norm_topk_prob": True, "index_head_dim": 64, "index_n_heads": 8, **deepseek_yarn(1.0)}),
    "falcon_mamba_twice": ("falcon_mamba", {**MAMBA1, "expand": 2}),
    "gemma3n_published": ("gemma3n_text", {**GEMMA3N, "num_hidden_layers": 25, "hidden_size_per_layer_input": 256, "laurel_rank": 64, "num_kv_shared_layers": 5,
                                           "vocab_size_per_layer_input": 500, "final_logit_softcapping": 30.0,
                                           "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 5,
                                           "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15}),
    "glm_moe_dsa_published": ("glm_moe_dsa", {**SPARSE, "norm_topk_prob": True, "index_head_dim": 128}),
    "laguna_heads": ("laguna", dict(LAGUNA, moe_routed_scaling_factor=1.7)),
    "laguna_elements_behind": ("laguna", dict(LAGUNA, gating="per-element", num_attention_heads_per_layer=None, mlp_layer_types=["dense", "dense", "sparse", "sparse"],
                                              tie_word_embeddings=True)),
    "kimi_linear_heads": ("kimi_linear", {**KIMI_LINEAR, "linear_num_heads": 4}),
    "kimi_linear_grouped": ("kimi_linear", {**KIMI_LINEAR, "num_hidden_layers": 6, "layer_types": None, "linear_num_heads": 4, "n_group": 4, "topk_group": 2,
                                            "linear_conv_kernel_dim": 3}),
    "mamba_twice": ("mamba", {**MAMBA1, "expand": 2}),
    "dots1_heads": ("dots1", dict(BASE, num_key_value_heads=4, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=2,
                                  first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True)),
    "ernie4_5_moe_plain": ("ernie4_5_moe", dict(NARROW, moe_intermediate_size=64, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2)),
    "exaone4_deep": ("exaone4", dict(BASE, num_hidden_layers=64, sliding_window=20, sliding_window_pattern="LLLG",
                                      layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 16)),
    "falcon_groups_plain": ("falcon", dict(FALCON, num_kv_heads=2, new_decoder_architecture=True)),
    "falcon_h1_factors": ("falcon_h1", {**FALCON_H1, **FALCON_H1_FACTORS}),
    "falcon_h1_tied": ("falcon_h1", {**FALCON_H1, **FALCON_H1_FACTORS, "tie_word_embeddings": True}),
    "granitemoehybrid_one_group": ("granitemoehybrid", dict(GRANITE4_TWICE, **LOCAL_EXPERTS, **MULTIPLIERS)),
    "granitemoehybrid_rotary": ("granitemoehybrid", dict(GRANITE4_TWICE, num_local_experts=0, position_embedding_type="rope")),
    "jamba_twice": ("jamba", {**JAMBA, "mamba_expand": 2}),
    "lfm2_moe_biased": ("lfm2_moe", dict(CONVOLUTIONS, **EXPERTS, num_dense_layers=1)),
    "llama4_published": ("llama4_text", dict(LLAMA4, num_experts_per_tok=1)),
    "llama4_interval": ("llama4_text", {**LLAMA4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2}),
    "mamba2_one_group": ("mamba2", {**MAMBA_ONLY, "n_groups": 1}),
    "mimo_v2_flash_plain": ("mimo_v2_flash", dict(BASE, **ROUTED, head_dim=24, v_head_dim=16, n_routed_experts=8, n_group=4, topk_group=2, sliding_window=20,
                                                  layer_types=["full_attention"] + ["sliding_attention"] * 3)),
    "minimax_one_factor": ("minimax", {**MINIMAX, **{f"{part}_{factor}_factor": value for part in ("full_attn", "linear_attn", "mlp")
                                                     for factor, value in (("alpha", 1.3), ("beta", 1))}}),
    "mpt_clipped": ("mpt", dict(MPT, n_heads=4, attn_config=dict(clip_qkv=1.5))),
    "nemotron_h_experts": ("nemotron_h", {**NEMOTRON_H, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
                                          "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}),
    "nemotron_h_plain": ("nemotron_h", {**NEMOTRON_H, "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "mlp_bias": True}),
    "qwen3_5_even": ("qwen3_5_text", dict(DELTA, linear_value_head_dim=20)),
    "qwen3_5_moe_even": ("qwen3_5_moe_text", dict(DELTA_EXPERTS, linear_value_head_dim=20)),
    "qwen3_next_even": ("qwen3_next", dict(DELTA_EXPERTS, norm_topk_prob=True, linear_value_head_dim=20)),
    "qwen3_vl": ("qwen3_vl", dict(text_config=dict(WIDE, **SECTIONS), vision_config=VISION)),
    "qwen3_vl_moe_whole": ("qwen3_vl_moe", dict(text_config=dict(WIDE, **EXPERTS, **SECTIONS), vision_config=VISION)),
}  # fmt: skip



def known(models):
    """Those of models whose architecture the installed version of transformers has."""
    return {name: row for name, row in models.items() if row[0] in transformers.CONFIG_MAPPING}


MODELS, FOR_LLAMA_CPP = known(MODELS), known(FOR_LLAMA_CPP)

# Models with recurrent mixers, for which there are no graphs.
RECURRENT = ("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm2_vl", "lfm3", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
HYBRIDS = {name for name, (kind, _) in MODELS.items() if kind in RECURRENT}


def scaled(name, shape, generator):
    """Weights that keep activations near 1, queries and keys twice that, so that attention is far from uniform."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) < 2 or "norm" in name:
        return noise * 0.2
    return noise * max(shape[-1], 1) ** -0.5 * (2 if "q_" in name or "k_" in name else 1)


def model_class(config):
    """The class with a language model's head, also of models that the automatic classes for causal models do not know."""
    # The automatic class for a causal model of Llama 3.2 Vision has its language model alone.
    for kind in (transformers.MllamaForConditionalGeneration, transformers.MllamaForCausalLM, transformers.Qwen3OmniMoeThinkerForConditionalGeneration):
        if type(config) is kind.config_class:
            return kind
    for classes in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(config) in classes:
            return classes[type(config)]
    return getattr(transformers, type(config).__name__.removesuffix("Config") + "ForCausalLM")


def with_published_names(path):
    """transformers takes the decoder's layers of Kimi K2.5 for those of the part for images as it saves, and reads published names."""
    tensors = safetensors.torch.load_file(path)
    renamed = {name.replace("language_model.model.blocks.", "language_model.model.layers."): tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(renamed, path, metadata={"format": "pt"})


def save(name, out, **changes):
    """The directory of a model, some arguments of its configuration changed, made on first use."""
    out = pathlib.Path(out)
    if (out / "config.json").exists():
        return out
    # transformers writes into the dictionaries it is given, which models share.
    kind, arguments = copy.deepcopy(MODELS.get(name) or FOR_LLAMA_CPP[name])
    config = transformers.AutoConfig.for_model(kind, **{**arguments, **changes})
    model = model_class(config)._from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    buffers = [(n, b) for n, b in model.named_buffers() if n.endswith(("correction_bias", "expert_bias", "act_fn.beta", "act_fn.eps", "layer_scalar"))]
    with torch.no_grad():
        for n, table in model.named_buffers():
            if n.endswith("tid2eid"):
                experts = config.n_routed_experts
                table.copy_(torch.rand(len(table), experts, generator=generator).argsort(-1)[:, : table.shape[-1]])
        for n, p in [*model.named_parameters(), *buffers]:
            change = scaled(n, p.shape, generator)
            # Norms stay near the identity.
            p.copy_(p + change if "norm" in n and "bias" not in n or n.endswith("layer_scalar") else change)
            if kind in ("gemma3n_text", "gemma4_text") and n.endswith(("q_norm.weight", "k_norm.weight")):
                # Its scores have no factor, and attention to single tokens would amplify what is rounded.
                p.mul_(0.4)
    model.save_pretrained(out)
    if kind == "kimi_k25":
        with_published_names(out / "model.safetensors")
    # Arguments that transformers turns into others, and does not write.
    written = json.loads((out / "config.json").read_text())
    missing = {key: value for key, value in changes.items() if key not in written and value is not None}
    (out / "config.json").write_text(json.dumps(written | missing, indent=2))
    return out
