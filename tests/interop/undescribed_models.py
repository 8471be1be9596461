"""Small random models of architectures without a description: vision, encoders, encoders with decoders, mixtures, and language models
with towers."""

import pathlib

import compressed_tensors.compressors
import torch
import transformers

BLOCKS = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
IMAGES = dict(BLOCKS, image_size=32, patch_size=8)
LANGUAGE = dict(BLOCKS, vocab_size=512, num_key_value_heads=2, max_position_embeddings=256)
SEQUENCES = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                 decoder_ffn_dim=128, vocab_size=512, max_position_embeddings=128)

# Not Zamba2: its blocks share layers, which transformers takes for layers without scales of their own.
# name, which is not always the model_type -> (class, arguments of its configuration)
MODELS = {
    "albert": ("AlbertModel", dict(BLOCKS, vocab_size=512, embedding_size=32)),
    "beit": ("BeitForImageClassification", IMAGES),
    "biogpt": ("BioGptForCausalLM", dict(BLOCKS, vocab_size=512, max_position_embeddings=128)),
    "blenderbot": ("BlenderbotForConditionalGeneration", SEQUENCES),
    "blip-2": ("Blip2ForConditionalGeneration", dict(text_config=dict(model_type="opt", hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=512, word_embed_proj_dim=64), vision_config=IMAGES, qformer_config=dict(BLOCKS, vocab_size=512, encoder_hidden_size=64))),
    "clip": ("CLIPModel", dict(text_config=dict(BLOCKS, vocab_size=512, max_position_embeddings=77), vision_config=IMAGES, projection_dim=32)),
    "codegen": ("CodeGenForCausalLM", dict(n_embd=64, n_layer=2, n_head=4, vocab_size=512, n_positions=128, rotary_dim=8)),
    "convnext": ("ConvNextForImageClassification", dict(hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1])),
    "deberta": ("DebertaModel", dict(BLOCKS, vocab_size=512, relative_attention=True, pos_att_type=["p2c", "c2p"])),
    "detr": ("DetrForObjectDetection", dict(d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=10, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=dict(model_type="resnet", embedding_size=32, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1], out_features=["stage4"]))),
    "diffllama": ("DiffLlamaForCausalLM", LANGUAGE),
    "glm5_next": ("Glm5NextForConditionalGeneration", dict(text_config=dict(LANGUAGE, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=32, qk_rope_head_dim=0, qk_nope_head_dim=16, v_head_dim=16, moe_intermediate_size=32, num_experts_per_tok=2, linear_head_dim=16, linear_num_heads=4, n_routed_experts=8, layer_types=["linear_attention", "full_attention"], mlp_layer_types=["dense", "sparse"], index_topk=4, index_head_dim=32, index_n_heads=4, hc_mult=2, index_kpool=2, pad_token_id=0, eos_token_id=0), vision_config=dict(depth=1, hidden_size=32, num_heads=2, image_size=28, patch_size=14, out_hidden_size=64, intermediate_size=64, projection_intermediate_size=64))),
    "gpt_neo": ("GPTNeoForCausalLM", dict(vocab_size=512, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], max_position_embeddings=128)),
    "internvl": ("InternVLForConditionalGeneration", dict(text_config=dict(LANGUAGE, model_type="qwen2"), vision_config=dict(BLOCKS, image_size=[32, 32], patch_size=[8, 8]))),
    "jetmoe": ("JetMoeForCausalLM", dict(vocab_size=512, hidden_size=64, num_hidden_layers=2, num_key_value_heads=2, kv_channels=16, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2)),
    "llava": ("LlavaForConditionalGeneration", dict(text_config=dict(LANGUAGE, model_type="llama"), vision_config=dict(IMAGES, model_type="clip_vision_model"))),
    "m2m_100": ("M2M100ForConditionalGeneration", SEQUENCES),
    "mistral3": ("Mistral3ForConditionalGeneration", dict(text_config=dict(LANGUAGE, model_type="mistral"), vision_config=dict(IMAGES, model_type="pixtral", head_dim=16))),
    "paligemma": ("PaliGemmaForConditionalGeneration", dict(text_config=dict(LANGUAGE, model_type="gemma", head_dim=16), vision_config=dict(IMAGES, model_type="siglip_vision_model"))),
    "parakeet_ctc": ("ParakeetForCTC", dict(vocab_size=64, encoder_config=dict(BLOCKS, num_mel_bins=16, subsampling_conv_channels=16))),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", dict(text_config=LANGUAGE, vision_config=dict(depth=1, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=64))),
    "qwen2_audio": ("Qwen2AudioForConditionalGeneration", dict(text_config=dict(LANGUAGE, model_type="qwen2"), audio_config=dict(d_model=64, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=128, num_mel_bins=16, max_source_positions=32))),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", dict(text_config=dict(LANGUAGE, head_dim=16), vision_config=dict(depth=1, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=64, deepstack_visual_indexes=[0]))),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", dict(LANGUAGE, num_hidden_layers=3, lru_width=64, attention_window_size=32)),
    "rwkv": ("RwkvForCausalLM", dict(vocab_size=512, hidden_size=64, num_hidden_layers=2, intermediate_size=128)),
    "sam": ("SamModel", dict(vision_config=dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=16, mlp_dim=128, output_channels=32, window_size=2, global_attn_indexes=[1]), prompt_encoder_config=dict(hidden_size=32, image_size=64, patch_size=16), mask_decoder_config=dict(hidden_size=32, mlp_dim=64, num_attention_heads=4, iou_head_hidden_dim=32))),
    "siglip": ("SiglipModel", dict(text_config=dict(BLOCKS, vocab_size=512, max_position_embeddings=64), vision_config=IMAGES)),
    "siglip2": ("Siglip2Model", dict(text_config=dict(BLOCKS, vocab_size=512, max_position_embeddings=64), vision_config=dict(BLOCKS, num_patches=16, patch_size=8))),
    "swin": ("SwinForImageClassification", dict(embed_dim=32, depths=[1, 1], num_heads=[2, 4], image_size=32, patch_size=2, window_size=4)),
    "timesfm": ("TimesFmModelForPrediction", dict(BLOCKS, head_dim=16)),
    "voxtral": ("VoxtralForConditionalGeneration", dict(text_config=dict(LANGUAGE, model_type="llama"), audio_config=dict(BLOCKS, num_hidden_layers=1, num_mel_bins=16, max_source_positions=32))),
    "xlnet": ("XLNetModel", dict(d_model=64, n_layer=2, n_head=4, d_inner=128, vocab_size=512)),
    "zaya": ("ZayaForCausalLM", dict(LANGUAGE, head_dim=16, moe_intermediate_size=64, num_experts=4, router_hidden_size=32)),
}  # fmt: skip


def load(directory):
    """The model, and what transformers says of its loading."""
    config = transformers.AutoConfig.from_pretrained(directory)
    return getattr(transformers, config.architectures[0]).from_pretrained(directory, output_loading_info=True)


def weights(directory):
    """The weights of a model that transformers loads whole, dequantized."""
    model, report = load(directory)
    assert not report["missing_keys"] and not report["unexpected_keys"], (directory, report)
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            compressed_tensors.compressors.decompress_module(module)
    return {name: parameter.detach().float() for name, parameter in model.named_parameters()}


def save(name, out):
    """The directory of a model, made on first use."""
    out = pathlib.Path(out)
    if (out / "config.json").exists():
        return out
    kind, arguments = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**arguments)).to(torch.bfloat16)
    save_with_values(model, out)
    return out


def save_with_values(model, out):
    """Saves a model with random matrices: some classes make them without values."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    model.save_pretrained(out)
