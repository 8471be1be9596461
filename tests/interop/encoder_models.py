"""Tiny random-weight encoders, one for each rule of their forward pass, with weights large enough for every rule to matter."""

import pathlib

import numpy as np
import torch
import transformers

from forward_models import scaled

BASE = dict(vocab_size=512, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=200)
PADDED = dict(BASE, pad_token_id=1, bos_token_id=0, eos_token_id=2)
MODERN = dict(BASE, num_hidden_layers=5, pad_token_id=0, bos_token_id=0, eos_token_id=0, cls_token_id=0, sep_token_id=0, local_attention=32)
ESM = dict(PADDED, vocab_size=64, mask_token_id=33, token_dropout=True)

IMAGES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=8)

DINO = dict(IMAGES, mlp_ratio=2, layerscale_value=0.5)
CLIP_TEXT = dict(BASE, max_position_embeddings=100)

T5 = dict(vocab_size=512, d_model=128, d_ff=192, d_kv=24, num_layers=3, num_heads=4, relative_attention_num_buckets=16, relative_attention_max_distance=40)

DEBERTA = dict(BASE, relative_attention=True, share_att_key=True, pos_att_type=["p2c", "c2p"], position_buckets=16, norm_rel_ebd="layer_norm",
               position_biased_input=False, max_relative_positions=-1)  # fmt: skip

# name -> (configuration class, class, arguments)
MODELS = {
    "bert": ("BertConfig", "BertModel", BASE),
    "bert_mlm": ("BertConfig", "BertForMaskedLM", dict(BASE, hidden_act="gelu_new", layer_norm_eps=1e-5)),
    "bert_pretraining": ("BertConfig", "BertForPreTraining", dict(BASE, tie_word_embeddings=False)),
    "bert_classes": ("BertConfig", "BertForSequenceClassification", dict(BASE, num_labels=5)),
    "bert_token_classes": ("BertConfig", "BertForTokenClassification", dict(BASE, num_labels=5)),
    "bert_answers": ("BertConfig", "BertForQuestionAnswering", BASE),
    "roberta": ("RobertaConfig", "RobertaModel", PADDED),
    "roberta_mlm": ("RobertaConfig", "RobertaForMaskedLM", dict(PADDED, pad_token_id=3)),
    "roberta_classes": ("RobertaConfig", "RobertaForSequenceClassification", dict(PADDED, num_labels=3)),
    "xlm_roberta": ("XLMRobertaConfig", "XLMRobertaModel", PADDED),
    "xlm_roberta_token_classes": ("XLMRobertaConfig", "XLMRobertaForTokenClassification", dict(PADDED, num_labels=7)),
    "camembert_mlm": ("CamembertConfig", "CamembertForMaskedLM", PADDED),
    "distilbert": ("DistilBertConfig", "DistilBertModel", dict(vocab_size=512, dim=128, hidden_dim=192, n_layers=3, n_heads=4, max_position_embeddings=200)),
    "distilbert_mlm": ("DistilBertConfig", "DistilBertForMaskedLM", dict(vocab_size=512, dim=128, hidden_dim=192, n_layers=3, n_heads=4, activation="relu")),
    "distilbert_classes": ("DistilBertConfig", "DistilBertForSequenceClassification", dict(vocab_size=512, dim=128, hidden_dim=192, n_layers=3, n_heads=4, num_labels=4)),
    "mpnet": ("MPNetConfig", "MPNetModel", PADDED),
    "mpnet_mlm": ("MPNetConfig", "MPNetForMaskedLM", PADDED),
    "electra": ("ElectraConfig", "ElectraForPreTraining", dict(BASE, embedding_size=64)),
    "electra_mlm": ("ElectraConfig", "ElectraForMaskedLM", dict(BASE, embedding_size=64)),
    "electra_classes": ("ElectraConfig", "ElectraForSequenceClassification", dict(BASE, embedding_size=128, num_labels=3)),
    "esm": ("EsmConfig", "EsmForMaskedLM", dict(ESM, position_embedding_type="rotary")),
    "esm_positions": ("EsmConfig", "EsmModel", dict(ESM, position_embedding_type="absolute", emb_layer_norm_before=True)),
    "esm_classes": ("EsmConfig", "EsmForSequenceClassification", dict(ESM, position_embedding_type="rotary", token_dropout=False, num_labels=3)),
    "modernbert": ("ModernBertConfig", "ModernBertModel", MODERN),
    "modernbert_mlm": ("ModernBertConfig", "ModernBertForMaskedLM", dict(MODERN, norm_bias=True, attention_bias=True, mlp_bias=True)),
    "modernbert_classes": ("ModernBertConfig", "ModernBertForSequenceClassification", dict(MODERN, num_labels=3)),
    "modernbert_mean_classes": ("ModernBertConfig", "ModernBertForSequenceClassification", dict(MODERN, num_labels=3, classifier_pooling="mean")),
    "clip_text": ("CLIPTextConfig", "CLIPTextModel", dict(CLIP_TEXT, eos_token_id=5, hidden_act="gelu")),
    "clip_text_projection": ("CLIPTextConfig", "CLIPTextModelWithProjection", dict(CLIP_TEXT, eos_token_id=2, projection_dim=40)),
    "siglip_text": ("SiglipTextConfig", "SiglipTextModel", dict(CLIP_TEXT, projection_size=72)),
    "deberta": ("DebertaV2Config", "DebertaV2Model", DEBERTA),
    "deberta_mlm": ("DebertaV2Config", "DebertaV2ForMaskedLM", dict(DEBERTA, pos_att_type=["c2p"], position_biased_input=True, type_vocab_size=2, norm_rel_ebd="none")),
    "deberta_classes": ("DebertaV2Config", "DebertaV2ForSequenceClassification", dict(DEBERTA, num_labels=3, pos_att_type="p2c", position_buckets=-1, max_relative_positions=40)),
    "deberta_answers": ("DebertaV2Config", "DebertaV2ForQuestionAnswering", dict(DEBERTA, num_labels=2)),
    "t5_encoder": ("T5Config", "T5EncoderModel", T5),
    "t5_encoder_gated": ("T5Config", "T5EncoderModel", dict(T5, feed_forward_proj="gated-gelu", relative_attention_num_buckets=32, relative_attention_max_distance=128)),
    "t5_token_classes": ("T5Config", "T5ForTokenClassification", dict(T5, num_labels=5)),
    "mt5_encoder": ("MT5Config", "MT5EncoderModel", dict(T5, feed_forward_proj="gated-silu")),
    "umt5_encoder": ("UMT5Config", "UMT5EncoderModel", T5),
    "modernbert_token_classes": ("ModernBertConfig", "ModernBertForTokenClassification", dict(MODERN, num_labels=3)),
}  # fmt: skip

# Models of images.
IMAGE_MODELS = {
    "vit": ("ViTConfig", "ViTModel", IMAGES),
    "vit_classes": ("ViTConfig", "ViTForImageClassification", dict(IMAGES, num_labels=5, qkv_bias=False)),
    "vit_oblong": ("ViTConfig", "ViTModel", dict(IMAGES, image_size=[24, 40], patch_size=[8, 4], num_channels=1, pooler_act="relu")),
    "deit": ("DeiTConfig", "DeiTModel", IMAGES),
    "dinov2": ("Dinov2Config", "Dinov2Model", DINO),
    "dinov2_classes": ("Dinov2Config", "Dinov2ForImageClassification", dict(DINO, num_labels=4, image_size=36, use_mask_token=False)),
    "dinov2_gated": ("Dinov2Config", "Dinov2Model", dict(DINO, use_swiglu_ffn=True)),
    "dinov2_with_registers": ("Dinov2WithRegistersConfig", "Dinov2WithRegistersForImageClassification", dict(DINO, num_labels=4, num_register_tokens=3)),
    "dinov3_vit": ("DINOv3ViTConfig", "DINOv3ViTModel", dict(IMAGES, num_register_tokens=4, layerscale_value=0.5)),
    "dinov3_vit_gated": ("DINOv3ViTConfig", "DINOv3ViTModel", dict(IMAGES, use_gated_mlp=True, hidden_act="silu", rope_theta=30.0, key_bias=True)),
    "clip_vision": ("CLIPVisionConfig", "CLIPVisionModel", IMAGES),
    "clip_vision_projection": ("CLIPVisionConfig", "CLIPVisionModelWithProjection", dict(IMAGES, projection_dim=24)),
    "siglip_vision": ("SiglipVisionConfig", "SiglipVisionModel", IMAGES),
    "siglip_vision_headless": ("SiglipVisionConfig", "SiglipVisionModel", dict(IMAGES, vision_use_head=False)),
    "deit_classes": ("DeiTConfig", "DeiTForImageClassification", dict(IMAGES, num_labels=3, hidden_act="gelu_pytorch_tanh")),
}  # fmt: skip

# The outputs of transformers that the readouts of Kvant are, by class: the first class or end of one decides. Base models have a pooler or
# nothing.
OUTPUTS = {
    "ElectraForPreTraining": ["logits"],
    "BertForPreTraining": ["pooler_output", "prediction_logits", "seq_relationship_logits"],
    "BertForSequenceClassification": ["pooler_output", "logits"],
    "ForQuestionAnswering": ["start_and_end"],
    # The last hidden state of the first token, which is no output of its own here.
    "Dinov2Model": [],
    "DINOv3ViTModel": [],
    "CLIPTextModelWithProjection": ["text_embeds"],
    "CLIPVisionModelWithProjection": ["image_embeds"],
}


def scaled_for(config, name, shape, generator):
    """The same as scaled; T5 divides scores by nothing, but trains queries that are as much smaller."""
    change = scaled(name, shape, generator)
    return change * 2 * config.d_kv**-0.5 if hasattr(config, "d_kv") and name.endswith(".q.weight") else change


def save(name, out):
    """The directory of a model, made on first use."""
    out = pathlib.Path(out)
    if (out / "config.json").exists():
        return out
    kind, architecture, arguments = (MODELS | IMAGE_MODELS)[name]
    config = getattr(transformers, kind)(**arguments)
    model = getattr(transformers, architecture)._from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for n, p in model.named_parameters():
            change = scaled_for(config, n, p.shape, generator)
            if p.dim() == 4:
                # The kernel of a convolution over patches sums over channels and rows too.
                change *= (p.shape[1] * p.shape[2]) ** -0.5
            # Norms stay near the identity.
            p.copy_(p + change if "norm" in n.lower() and "bias" not in n else change)
    model.save_pretrained(out)
    return out


def load(directory):
    """The model in a directory, with the class that it was saved from."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = getattr(transformers, config.architectures[0])
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def pixels_for(model, count, seed=1):
    """Some images of the size that a model reads."""
    config = model.config
    height, width = config.image_size if isinstance(config.image_size, (list, tuple)) else (config.image_size,) * 2
    return np.random.default_rng(seed).standard_normal((count, config.num_channels, height, width)).astype("<f4")


def outputs(model, tokens):
    """The last hidden states of some sequences or images, and what the model makes of them, in the order of Kvant's readouts."""
    with torch.no_grad():
        # compressed-tensors decompresses weights as the whole model first runs.
        whole = model(tokens)
        # What DINOv3 calls its base model is its blocks.
        base = whole if hasattr(whole, "last_hidden_state") else model.base_model(tokens)
    pooled = getattr(base, "pooler_output", None)
    architecture = type(model).__name__
    of_class = (names for end, names in OUTPUTS.items() if architecture == end or architecture.endswith(end) and end.startswith("For"))
    default = ["logits"] if "For" in architecture else ["pooler_output"] if pooled is not None else []
    names = next(of_class, default)

    def output(name):
        if name == "pooler_output":
            return pooled
        if name == "start_and_end":
            return torch.stack([whole.start_logits, whole.end_logits], -1)
        return whole[name]

    return base.last_hidden_state.numpy(), [output(name).numpy() for name in names]
