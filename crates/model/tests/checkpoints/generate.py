"""Writes the fixtures of this directory: names, shapes and dtypes of tiny checkpoints as transformers saves them.

    python generate.py [family...]

One file per family: the relevant part of config.json, then one line per set of like tensors; `{a-b}` stands for every
number from a to b. Weights are random and thrown away.
"""

import itertools
import json
import re
import struct
import sys
import tempfile
from pathlib import Path

import torch
import transformers

BASE = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=160, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
GPT = dict(n_embd=64, n_layer=2, n_head=4, vocab_size=160, n_positions=64, bos_token_id=1, eos_token_id=2)
OPT = dict(
    hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=160, max_position_embeddings=64,
    word_embed_proj_dim=64,
)  # fmt: skip
WIDE = dict(BASE, head_dim=32)
MLA = dict(kv_lora_rank=16, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12)
ROUTED = dict(moe_intermediate_size=32, num_experts_per_tok=2)
EXPERTS = dict(ROUTED, num_experts=4)
FALCON = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=160, ffn_hidden_size=96)
DEEPSEEK = dict(
    BASE, **MLA, **ROUTED, num_key_value_heads=4, n_routed_experts=4, n_shared_experts=2, first_k_dense_replace=1,
    n_group=1, topk_group=1,
)  # fmt: skip
VISION = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
)
KIMI_VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, pos_emb_height=4, pos_emb_width=4, pos_emb_time=2)
MLLAMA_VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_global_layers=1, attention_heads=2, image_size=28, patch_size=14,
                     vision_output_dim=64, intermediate_layers_indices=[0])  # fmt: skip
XGLM = dict(d_model=64, ffn_dim=96, num_layers=2, attention_heads=4, vocab_size=160, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
AUDIO = dict(d_model=32, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=48, num_mel_bins=16, output_dim=64,
             downsample_hidden_size=16, max_source_positions=32)  # fmt: skip
QWEN_VISION = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64)
DELTA = dict(
    WIDE, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=6,
    linear_key_head_dim=12, linear_value_head_dim=8, linear_conv_kernel_dim=4,
)  # fmt: skip
MAMBA = dict(mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=6, mamba_d_conv=4, mamba_expand=2)
MAMBA1 = dict(vocab_size=160, hidden_size=64, num_hidden_layers=2, state_size=6, time_step_rank=5)
DELTA_EXPERTS = dict(DELTA, **ROUTED, num_experts=4, shared_expert_intermediate_size=48)

MINIMAX_M3 = dict(
    BASE, head_dim=16, intermediate_size=32, dense_intermediate_size=96, shared_intermediate_size=48, num_local_experts=4, num_experts_per_tok=2,
    layer_types=["full_attention", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse"], index_n_heads=2, index_head_dim=16,
    index_block_size=2, index_topk_blocks=2,
)  # fmt: skip

ENCODER = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
ENCODERS = ("bert", "deberta-v2", "distilbert", "electra", "esm", "modernbert", "mpnet", "roberta")

IMAGES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4, num_labels=3)
# The classes of models that none of the automatic classes of language models has.
CLASSES = {
    "clip_text_model": "CLIPTextModelWithProjection",
    "clip_vision_model": "CLIPVisionModelWithProjection",
    "deit": "DeiTForImageClassification",
    "dinov2": "Dinov2ForImageClassification",
    "dinov2_with_registers": "Dinov2WithRegistersForImageClassification",
    "dinov3_vit": "DINOv3ViTModel",
    "siglip_text_model": "SiglipTextModel",
    "siglip_vision_model": "SiglipVisionModel",
    "vit": "ViTForImageClassification",
    "hubert": "HubertModel",
    "wav2vec2": "Wav2Vec2ForCTC",
    # Of one model_type, there may be several.
    "t5_encoder": "T5EncoderModel",
    "umt5_encoder": "UMT5EncoderModel",
    "bart": "BartForConditionalGeneration",
    "marian": "MarianMTModel",
    "mbart": "MBartForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
}

BART = dict(d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
            decoder_ffn_dim=80, vocab_size=160, max_position_embeddings=64, decoder_start_token_id=2)  # fmt: skip

WAVES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, conv_dim=[16, 32], conv_stride=[5, 2], conv_kernel=[10, 3],
             num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, vocab_size=32)  # fmt: skip
WHISPER = dict({key: value for key, value in BART.items() if key != "max_position_embeddings"}, num_mel_bins=8, max_source_positions=12, max_target_positions=64,
               pad_token_id=1, bos_token_id=0, eos_token_id=1)  # fmt: skip

T5 = dict(d_model=64, d_ff=96, d_kv=12, num_layers=2, num_heads=4, vocab_size=160)
T5_PAIR = dict(T5, num_layers=1, num_decoder_layers=1, decoder_start_token_id=0)

# File name -> (model_type, arguments of its config class).
CHECKPOINTS = {
    "afmoe": ("afmoe", dict(BASE, **EXPERTS, head_dim=16, num_dense_layers=1, num_shared_experts=1, sliding_window=16, route_scale=1.5)),
    "apertus": ("apertus", BASE),
    "axk1": ("axk1", DEEPSEEK),
    "bailing_hybrid": (
        "bailing_hybrid",
        dict(BASE, num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, head_dim=12, num_local_experts=4,
             num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1, layer_group_size=2),
    ),
    "bamba": ("bamba", dict(BASE, **MAMBA, attn_layer_indices=[1])),
    "bert": ("bert", ENCODER),
    "bitnet": ("bitnet", BASE),
    "bloom": ("bloom", dict(hidden_size=64, n_layer=2, n_head=4, vocab_size=160)),
    "arcee": ("arcee", BASE),
    "clip_text": ("clip_text_model", dict(ENCODER, projection_dim=32)),
    "clip_vision": ("clip_vision_model", dict(IMAGES, projection_dim=32)),
    "cohere": ("cohere", dict(BASE, use_qk_norm=True)),
    "cohere2": ("cohere2", BASE),
    "cohere2_moe": (
        "cohere2_moe",
        dict(BASE, head_dim=16, num_experts=4, num_shared_experts=1, first_k_dense_replace=1, prefix_dense_intermediate_size=80, sliding_window=16),
    ),
    "cwm": ("cwm", dict(BASE, head_dim=16)),
    "dbrx": (
        "dbrx",
        dict(d_model=64, n_heads=4, n_layers=2, vocab_size=160, max_seq_len=64, attn_config=dict(kv_n_heads=2, clip_qkv=8, rope_theta=10000.0),
             ffn_config=dict(ffn_hidden_size=96, moe_num_experts=4, moe_top_k=2)),
    ),
    "deepseek_v2": ("deepseek_v2", DEEPSEEK),
    "deepseek_v2_lite": ("deepseek_v2", dict(DEEPSEEK, q_lora_rank=None)),
    "deepseek_v3": ("deepseek_v3", DEEPSEEK),
    "deepseek_v32": ("deepseek_v32", dict(DEEPSEEK, index_topk=3, index_head_dim=20, index_n_heads=3)),
    "deepseek_v4": (
        "deepseek_v4",
        dict(vocab_size=160, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=32, q_lora_rank=24, n_routed_experts=4,
             num_experts_per_tok=2, moe_intermediate_size=32, o_groups=2, o_lora_rank=16, index_n_heads=2, index_head_dim=16, index_topk=2,
             sliding_window=8, layer_types=["heavily_compressed_attention", "compressed_sparse_attention"], mlp_layer_types=["hash_moe", "moe"],
             compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8), partial_rotary_factor=0.25, hc_mult=3,
             max_position_embeddings=64),
    ),
    "dots1": ("dots1", dict(BASE, **ROUTED, n_routed_experts=4, n_shared_experts=2, first_k_dense_replace=1)),
    "ernie4_5": ("ernie4_5", dict(BASE, use_bias=True)),
    "ernie4_5_moe": ("ernie4_5_moe", dict(BASE, moe_intermediate_size=32, moe_num_experts=4, moe_k=2, use_bias=True)),
    "deberta_v2": (
        "deberta-v2",
        dict(ENCODER, relative_attention=True, share_att_key=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm"),
    ),
    "deit": ("deit", IMAGES),
    "dinov2": ("dinov2", dict(IMAGES, mlp_ratio=2)),
    "dinov2_with_registers": ("dinov2_with_registers", dict(IMAGES, mlp_ratio=2, num_register_tokens=3)),
    "dinov3_vit": ("dinov3_vit", dict(IMAGES, num_register_tokens=3)),
    "distilbert": ("distilbert", dict(vocab_size=160, dim=64, hidden_dim=96, n_layers=2, n_heads=4, max_position_embeddings=64)),
    "electra": ("electra", dict(ENCODER, embedding_size=32)),
    "esm": ("esm", dict(ENCODER, pad_token_id=1, mask_token_id=32, position_embedding_type="rotary", token_dropout=True)),
    "mllama": ("mllama", dict(text_config=dict(BASE, cross_attention_layers=[1]), vision_config=MLLAMA_VISION)),
    "modernbert": ("modernbert", dict(ENCODER, local_attention=32)),
    "mpnet": ("mpnet", dict(ENCODER, pad_token_id=1)),
    "roberta": ("roberta", dict(ENCODER, pad_token_id=1)),
    "exaone4": ("exaone4", BASE),
    "exaone_moe": ("exaone_moe", dict(BASE, **EXPERTS, sliding_window=16, sliding_window_pattern=2)),
    "falcon": ("falcon", FALCON),
    "falcon_alibi": ("falcon", dict(FALCON, alibi=True, multi_query=False, parallel_attn=False, bias=True)),
    "falcon_groups": ("falcon", dict(FALCON, num_kv_heads=2, new_decoder_architecture=True)),
    "falcon_h1": ("falcon_h1", dict(BASE, **MAMBA, mamba_d_ssm=96, mamba_rms_norm=True)),
    "falcon_h1_plain": ("falcon_h1", dict(BASE, **MAMBA, mamba_d_ssm=96)),
    "falcon_mamba": ("falcon_mamba", dict(MAMBA1)),
    "flex_olmo": ("flex_olmo", dict(BASE, num_experts=4)),
    "gemma": ("gemma", WIDE),
    "gemma2": ("gemma2", WIDE),
    "gemma3": ("gemma3", dict(text_config=WIDE, vision_config=VISION, mm_tokens_per_image=4)),
    "gemma3_text": ("gemma3_text", WIDE),
    "gemma4_text": (
        "gemma4_text",
        dict(BASE, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
             sliding_window=16, layer_types=["sliding_attention", "full_attention"]),
    ),
    "gemma3n_text": (
        "gemma3n_text",
        dict(BASE, num_hidden_layers=4, head_dim=16, hidden_size_per_layer_input=12, vocab_size_per_layer_input=160, num_kv_shared_layers=2,
             laurel_rank=10, sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2,
             activation_sparsity_pattern=[0.95, 0.0, 0.5, 0.0]),
    ),
    "gemma4_layer_inputs": (
        "gemma4_text",
        dict(BASE, num_hidden_layers=4, head_dim=16, global_head_dim=32, hidden_size_per_layer_input=12, vocab_size_per_layer_input=160,
             num_kv_shared_layers=2, use_double_wide_mlp=True, sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2),
    ),
    "gemma4_moe": (
        "gemma4_text",
        dict(BASE, head_dim=16, global_head_dim=32, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=4, top_k_experts=2,
             moe_intermediate_size=32, sliding_window=16, layer_types=["sliding_attention", "full_attention"]),
    ),
    "glm": ("glm", dict(BASE, head_dim=16)),
    "glm4": ("glm4", dict(BASE, head_dim=16)),
    "glm4_moe": (
        "glm4_moe",
        dict(BASE, **ROUTED, head_dim=16, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, use_qk_norm=True),
    ),
    "glm4_moe_lite": ("glm4_moe_lite", DEEPSEEK),
    "glm_moe_dsa": ("glm_moe_dsa", dict(DEEPSEEK, index_topk=3, index_head_dim=20, index_n_heads=3)),
    "gpt2": ("gpt2", GPT),
    "gpt_bigcode": ("gpt_bigcode", GPT),
    "gpt_bigcode_heads": ("gpt_bigcode", dict(GPT, multi_query=False)),
    "gpt_neox": ("gpt_neox", {key: value for key, value in BASE.items() if key != "num_key_value_heads"}),
    "gpt_oss": ("gpt_oss", dict(BASE, head_dim=16, num_local_experts=4, num_experts_per_tok=2)),
    "gptj": ("gptj", dict(GPT, rotary_dim=8)),
    "granite": ("granite", BASE),
    "granitemoe": ("granitemoe", dict(BASE, num_local_experts=4)),
    "granitemoehybrid": (
        "granitemoehybrid",
        dict(BASE, **MAMBA, num_local_experts=4, shared_intermediate_size=48, layer_types=["linear_attention", "full_attention"]),
    ),
    "granitemoehybrid_dense": (
        "granitemoehybrid",
        dict(BASE, **MAMBA, num_local_experts=0, shared_intermediate_size=48, layer_types=["linear_attention", "full_attention"]),
    ),
    "helium": ("helium", dict(BASE, head_dim=16)),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", dict(BASE, head_dim=16)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(BASE, head_dim=16, num_experts=4, moe_topk=2)),
    "hy_v3": ("hy_v3", dict(BASE, **EXPERTS, head_dim=16)),
    "jamba": (
        "jamba",
        dict(BASE, mamba_d_state=6, mamba_dt_rank=5, num_experts=4, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False),
    ),
    "kimi_k25": ("kimi_k25", dict(text_config=dict(DEEPSEEK, model_type="deepseek_v3"), vision_config=KIMI_VISION, tie_word_embeddings=False)),
    "kimi_linear": (
        "kimi_linear",
        dict(BASE, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, num_key_value_heads=4, moe_intermediate_size=32,
             num_local_experts=4, num_experts_per_tok=2, linear_head_dim=12, linear_num_heads=2, layer_types=["linear_attention", "full_attention"]),
    ),
    "kolibri1": (
        "kolibri1",
        {**{key: value for key, value in WIDE.items() if key != "intermediate_size"}, **EXPERTS, "shared_expert_intermediate_size": 48, "sliding_window": 16,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "laguna": ("laguna", dict(BASE, **EXPERTS, head_dim=16, shared_expert_intermediate_size=48, sliding_window=16, num_attention_heads_per_layer=[4, 2],
                              layer_types=["full_attention", "sliding_attention"])),  # fmt: skip
    "lfm2": ("lfm2", dict(BASE, layer_types=["conv", "full_attention"], block_multiple_of=16)),
    "lfm2_moe": ("lfm2_moe", dict(BASE, **EXPERTS, layer_types=["conv", "full_attention"], num_dense_layers=1)),
    "lfm3": ("lfm3", dict(BASE, head_dim=16, sliding_window=16, layer_types=["conv", "full_attention"], conv_L_cache=4)),
    "llama": ("llama", BASE),
    "llama_bias": ("llama", dict(BASE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "llama4_text": (
        "llama4_text",
        dict(BASE, head_dim=16, num_local_experts=4, intermediate_size_mlp=80, interleave_moe_layer_step=2, attention_chunk_size=16,
             no_rope_layers=[1, 0], floor_scale=4),
    ),
    "longcat_flash": (
        "longcat_flash",
        dict(MLA, hidden_size=64, ffn_hidden_size=96, num_layers=1, num_attention_heads=4, head_dim=8, vocab_size=160, max_position_embeddings=64,
             expert_ffn_hidden_size=32, moe_topk=2, n_routed_experts=4, zero_expert_num=2, bos_token_id=1, eos_token_id=2),
    ),
    "mamba": ("mamba", MAMBA1),
    "mamba2": ("mamba2", dict(vocab_size=160, hidden_size=64, num_hidden_layers=2, num_heads=4, head_dim=32, n_groups=2, state_size=6)),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        dict(BASE, **ROUTED, head_dim=24, v_head_dim=16, n_routed_experts=4, n_group=1, topk_group=1, sliding_window=16,
             layer_types=["full_attention", "sliding_attention"]),
    ),
    "minimax": ("minimax", dict(BASE, head_dim=16, num_local_experts=4, block_size=4, layer_types=["linear_attention", "full_attention"])),
    "minimax_m2": ("minimax_m2", dict(BASE, head_dim=16, num_local_experts=4)),
    "minimax_m3": ("minimax_m3_vl", dict(text_config=MINIMAX_M3, vision_config=VISION, projector_hidden_size=32)),
    "minimax_m3_text": ("minimax_m3_vl_text", MINIMAX_M3),
    "ministral": ("ministral", dict(BASE, head_dim=16, sliding_window=16)),
    "ministral3": ("ministral3", dict(BASE, head_dim=16)),
    "mistral": ("mistral", WIDE),
    "mistral3": ("mistral3", dict(text_config=dict(WIDE, model_type="mistral"), vision_config=dict(VISION, model_type="pixtral"))),
    "mistral4": ("mistral4", DEEPSEEK),
    "mixtral": ("mixtral", dict(BASE, num_local_experts=4)),
    "mpt": ("mpt", dict(d_model=64, n_layers=2, n_heads=4, vocab_size=160, max_seq_len=64)),
    "nanochat": ("nanochat", BASE),
    "nemotron": ("nemotron", BASE),
    "nemotron_h": (
        "nemotron_h",
        dict({key: value for key, value in BASE.items() if key != "num_hidden_layers"}, **ROUTED, head_dim=16, mamba_num_heads=4,
             mamba_head_dim=24, n_groups=2, ssm_state_size=6, n_routed_experts=4, moe_shared_expert_intermediate_size=48,
             layers_block_type=["linear_attention", "moe", "full_attention", "mlp"]),
    ),
    "olmo": ("olmo", BASE),
    "olmo2": ("olmo2", BASE),
    "olmo3": ("olmo3", BASE),
    "olmo_hybrid": ("olmo_hybrid", DELTA),
    "olmoe": ("olmoe", dict(BASE, num_experts=4)),
    "opt": ("opt", OPT),
    "opt_350m": ("opt", dict(OPT, word_embed_proj_dim=32, do_layer_norm_before=False)),
    "persimmon": ("persimmon", ENCODER),
    "phi": ("phi", dict(BASE, num_key_value_heads=4, qk_layernorm=True)),
    "phi3": ("phi3", BASE),
    "phimoe": ("phimoe", dict(BASE, num_local_experts=4)),
    "qwen2": ("qwen2", BASE),
    "qwen2_5_vl": ("qwen2_5_vl", dict(text_config=BASE, vision_config=QWEN_VISION)),
    "qwen2_moe": (
        "qwen2_moe",
        dict(BASE, **ROUTED, num_experts=4, shared_expert_intermediate_size=48, decoder_sparse_step=1),
    ),
    "qwen3": ("qwen3", WIDE),
    "qwen3_5": ("qwen3_5", dict(text_config=DELTA, vision_config=QWEN_VISION)),
    "qwen3_5_moe": ("qwen3_5_moe", dict(text_config=DELTA_EXPERTS, vision_config=QWEN_VISION)),
    "qwen3_5_text": ("qwen3_5_text", DELTA),
    "qwen3_moe": ("qwen3_moe", dict(WIDE, **ROUTED, num_experts=4, decoder_sparse_step=1, mlp_only_layers=[0])),
    "qwen3_next": ("qwen3_next", dict(DELTA_EXPERTS, mlp_only_layers=[1])),
    "qwen3_omni_moe": (
        "qwen3_omni_moe_thinker",
        dict(text_config=dict(WIDE, **EXPERTS), vision_config=dict(QWEN_VISION, deepstack_visual_indexes=[0]), audio_config=AUDIO),
    ),
    "qwen3_vl": ("qwen3_vl", dict(text_config=WIDE, vision_config=dict(QWEN_VISION, deepstack_visual_indexes=[0]))),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        dict(text_config=dict(WIDE, **EXPERTS), vision_config=dict(QWEN_VISION, deepstack_visual_indexes=[0])),
    ),
    "seed_oss": ("seed_oss", dict(BASE, head_dim=32)),
    "siglip_text": ("siglip_text_model", dict(ENCODER, projection_size=32)),
    "siglip_vision": ("siglip_vision_model", IMAGES),
    "smollm3": ("smollm3", BASE),
    "solar_open": ("solar_open", dict(BASE, **ROUTED, head_dim=16, n_routed_experts=4, n_shared_experts=1)),
    "stablelm": ("stablelm", dict(BASE, qk_layernorm=True)),
    "stablelm_parallel": ("stablelm", dict(BASE, use_parallel_residual=True)),
    "starcoder2": ("starcoder2", BASE),
    "bart": ("bart", BART),
    "marian": ("marian", dict(BART, pad_token_id=1)),
    "mbart": ("mbart", BART),
    "mt5": ("mt5", T5_PAIR),
    "pegasus": ("pegasus", BART),
    "t5": ("t5", T5_PAIR),
    "umt5": ("umt5", T5_PAIR),
    "t5_encoder": ("t5", T5),
    "umt5_encoder": ("umt5", T5),
    "vit": ("vit", IMAGES),
    "hubert": ("hubert", dict(WAVES, do_stable_layer_norm=True, feat_extract_norm="layer", conv_bias=True)),
    "wav2vec2": ("wav2vec2", WAVES),
    "whisper": ("whisper", WHISPER),
    "xglm": ("xglm", XGLM),
}  # fmt: skip

# Published with all experts of a block in two tensors; transformers saves one a projection and expert.
FUSED = {"qwen3_5_moe"}

NOISE = re.compile(r"dropout|drop$|init|(?<!per)(?<!start)_token|use_cache|transformers_version|output_|summary_|pdrop|is_decoder|chunk_size_f|pretraining|vision_config|audio_config")


def main() -> None:
    torch.manual_seed(0)
    for name, (model_type, arguments) in CHECKPOINTS.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            config, header = save(name, model_type, arguments)
            header = with_fused_experts(header) if name in FUSED else header
            lines = [f"config {json.dumps(relevant(config))}", *sorted(compress(header))]
            (Path(__file__).parent / f"{name}.txt").write_text("\n".join(lines) + "\n")


def save(name: str, model_type: str, arguments: dict) -> tuple[dict, dict]:
    """config.json and the header of model.safetensors of a random model."""
    config = transformers.AutoConfig.for_model(model_type, **arguments)
    model = model_class(name, config)._from_config(config, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(f"{folder}/model.safetensors", "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        if model_type == "kimi_k25":
            # transformers takes the decoder's layers for those of the part for images as it saves, and reads published names.
            header = {name.replace("language_model.model.blocks.", "language_model.model.layers."): info for name, info in header.items()}
        return json.loads(Path(folder, "config.json").read_text()), header


def model_class(name, config):
    """The class with a language model's head, also of models that the automatic classes do not know."""
    if listed := CLASSES.get(name) or CLASSES.get(config.model_type):
        return getattr(transformers, listed)
    if config.model_type in ENCODERS:
        return transformers.MODEL_FOR_MASKED_LM_MAPPING[type(config)]
    if config.model_type == "mllama":
        # The automatic classes know its language model alone.
        return transformers.MllamaForConditionalGeneration
    for classes in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(config) in classes:
            return classes[type(config)]
    name = type(config).__name__.removesuffix("Config")
    return getattr(transformers, f"{name}ForCausalLM", None) or getattr(transformers, f"{name}ForConditionalGeneration")


def with_fused_experts(header: dict) -> dict:
    """The layout of checkpoints that hold all experts of a block in two tensors, gate and up in one."""
    fused = {}
    for name, info in header.items():
        parts = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if not parts:
            fused[name] = info
        elif parts[3] != "up":
            rows, columns = info["shape"]
            leaf, rows = ("gate_up_proj", 2 * rows) if parts[3] == "gate" else ("down_proj", rows)
            count = max(int(number) for number in re.findall(rf"{re.escape(parts[1])}\.(\d+)\.", "\n".join(header))) + 1
            fused[f"{parts[1]}.{leaf}"] = dict(info, shape=[count, rows, columns])
    return fused


def relevant(config: dict) -> dict:
    kept = {key: value for key, value in config.items() if not NOISE.search(key)}
    return {key: relevant(value) if key == "text_config" else value for key, value in kept.items()}


def compress(header: dict) -> list[str]:
    """One line per set of tensors whose names differ in numbers only and fill a box of numbers."""
    sets: dict[tuple, set] = {}
    for name, info in header.items():
        numbers = tuple(int(part) for part in name.split(".") if part.isdigit())
        pattern = ".".join("#" if part.isdigit() else part for part in name.split("."))
        sets.setdefault((pattern, info["dtype"], tuple(info["shape"])), set()).add(numbers)
    return [line for key, numbers in sets.items() for line in box(*key, numbers)]


def box(pattern: str, dtype: str, shape: tuple, numbers: set) -> list[str]:
    ranges = [(min(axis), max(axis)) for axis in zip(*numbers)]
    filled = set(itertools.product(*(range(low, high + 1) for low, high in ranges)))
    if filled != numbers:
        ranges_of = [[(n, n) for n in each] for each in sorted(numbers)]
    else:
        ranges_of = [ranges]
    return [f"{fill(pattern, ranges)} {dtype} {list(shape)}" for ranges in ranges_of]


def fill(pattern: str, ranges: list) -> str:
    for low, high in ranges:
        pattern = pattern.replace("#", str(low) if low == high else f"{{{low}-{high}}}", 1)
    return pattern


if __name__ == "__main__":
    main()
