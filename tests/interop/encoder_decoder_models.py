"""Tiny random-weight encoder-decoders, one for each rule of their forward pass, with weights large enough for every rule to matter."""

import pathlib

import torch
import transformers

import encoder_models

T5 = dict(encoder_models.T5, num_layers=2, num_decoder_layers=2, decoder_start_token_id=0)
BART = dict(vocab_size=512, d_model=128, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=192, decoder_ffn_dim=160, max_position_embeddings=200, decoder_start_token_id=2)  # fmt: skip

# name -> (configuration class, class, arguments)
MODELS = {
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "t5_gated": ("T5Config", "T5ForConditionalGeneration", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=7)),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", T5),
    "umt5": ("UMT5Config", "UMT5ForConditionalGeneration", T5),
    "bart": ("BartConfig", "BartForConditionalGeneration", BART),
    "bart_scaled": ("BartConfig", "BartForConditionalGeneration", dict(BART, scale_embedding=True, activation_function="relu")),
    "marian": ("MarianConfig", "MarianMTModel", dict(BART, pad_token_id=1, scale_embedding=True)),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration", BART),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", BART),
}  # fmt: skip
# Checkpoints whose output head is not the embedding, whatever config.json says: the file has both.
UNTIED = ("t5_gated",)


def save(name, out):
    """The directory of a model, made on first use."""
    out = pathlib.Path(out)
    if (out / "config.json").exists():
        return out
    kind, architecture, arguments = MODELS[name]
    config = getattr(transformers, kind)(**arguments)
    model = getattr(transformers, architecture)._from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    if name in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        model.all_tied_weights_keys = {key: value for key, value in model.all_tied_weights_keys.items() if key != "lm_head.weight"}
    with torch.no_grad():
        for n, p in model.named_parameters():
            change = encoder_models.scaled_for(config, n, p.shape, generator)
            # Norms stay near the identity.
            p.copy_(p + change if "norm" in n.lower() and "bias" not in n else change)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator))
    model.save_pretrained(out)
    return out


def load(directory):
    """The model in a directory, with the class that it was saved from."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = getattr(transformers, config.architectures[0])
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def logits(model, tokens):
    """Logits where the encoder reads some sequences of tokens and the decoder the same, behind the token that it begins with."""
    start = torch.full((tokens.shape[0], 1), model.config.decoder_start_token_id)
    with torch.no_grad():
        return model(input_ids=tokens, decoder_input_ids=torch.cat([start, tokens], 1)).logits
