"""Tiny random-weight models of sounds, one for each rule of their forward pass, with weights large enough for every rule to matter; and sounds."""

import json
import pathlib
import struct

import numpy as np
import torch
import transformers

import encoder_models

WHISPER = dict(vocab_size=512, d_model=128, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
               encoder_ffn_dim=192, decoder_ffn_dim=160, num_mel_bins=16, max_source_positions=50, max_target_positions=80,
               decoder_start_token_id=2, pad_token_id=1, bos_token_id=0, eos_token_id=1)  # fmt: skip
WAVES = dict(hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, conv_dim=[32, 64, 64], conv_stride=[5, 4, 2], conv_kernel=[10, 5, 3],
             num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, vocab_size=32)  # fmt: skip
STABLE = dict(WAVES, do_stable_layer_norm=True, feat_extract_norm="layer", conv_bias=True)

# name -> (configuration class, class, arguments)
MODELS = {
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER),
    # Its class does not scale embeddings.
    "whisper_relu": ("WhisperConfig", "WhisperForConditionalGeneration", dict(WHISPER, activation_function="relu", scale_embedding=True, decoder_layers=2)),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2Model", WAVES),
    "wav2vec2_ctc": ("Wav2Vec2Config", "Wav2Vec2ForCTC", dict(WAVES, feat_extract_activation="relu", layer_norm_eps=1e-3)),
    "wav2vec2_stable": ("Wav2Vec2Config", "Wav2Vec2Model", dict(STABLE, num_conv_pos_embeddings=15, hidden_act="gelu_new", layer_norm_eps=1e-3)),
    "wav2vec2_stable_ctc": ("Wav2Vec2Config", "Wav2Vec2ForCTC", STABLE),
    "hubert": ("HubertConfig", "HubertModel", dict(STABLE, feat_proj_layer_norm=False)),
    "hubert_ctc": ("HubertConfig", "HubertForCTC", WAVES),
}  # fmt: skip


def save(name, out):
    """The directory of a model, made on first use."""
    out = pathlib.Path(out)
    if (out / "config.json").exists():
        return out
    kind, architecture, arguments = MODELS[name]
    config = getattr(transformers, kind)(**arguments)
    model = getattr(transformers, architecture)._from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith(("weight_g", "original0")):
                p.copy_(1 + torch.rand(p.shape, generator=generator))
                continue
            change = encoder_models.scaled_for(config, n, p.shape, generator)
            if p.dim() == 3:
                # The kernel of a convolution sums over channels too.
                change *= p.shape[1] ** -0.5
            # Norms stay near the identity.
            p.copy_(p + change if "norm" in n.lower() and "bias" not in n else change)
    model.save_pretrained(out)
    return out


load = encoder_models.load


def is_whisper(model):
    return hasattr(model.config, "num_mel_bins")


def inputs_for(model, count, seed=1):
    """Inputs of some sounds: spectrograms, or samples of one length."""
    shape = (model.config.num_mel_bins, 2 * model.config.max_source_positions) if is_whisper(model) else (3000,)
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype("<f4")


def decoder_tokens(model, count, length):
    """The token that decoders begin with, then the first of the vocabulary."""
    return torch.tensor([[model.config.decoder_start_token_id, *range(length)]] * count)


def outputs(model, inputs, length=0):
    """All that Kvant's example `logits` writes, sound by sound, each in parts: logits of decoders, or hidden states and what readouts give."""
    inputs = torch.tensor(inputs)
    with torch.no_grad():
        if is_whisper(model):
            return [[rows.numpy()] for rows in model(input_features=inputs, decoder_input_ids=decoder_tokens(model, len(inputs), length)).logits]
        whole = model(inputs)
        base = whole if hasattr(whole, "last_hidden_state") else model.base_model(inputs)
        parts = [base.last_hidden_state] + ([whole.logits] if hasattr(whole, "logits") else [])
        return [[part[at].numpy() for part in parts] for at in range(len(inputs))]


def sound(count, seed=0):
    """Samples from -1 to 1: tones that rise, noise, and a silence."""
    rng, at = np.random.default_rng(seed), np.arange(count) / 16000
    samples = 0.4 * np.sin(2 * np.pi * (200 + 300 * seed + 2000 * at) * at) + 0.1 * rng.standard_normal(count)
    samples[count // 3 : count // 2] *= 0.05
    return samples.clip(-0.999, 0.999)


# Kinds of samples: the tag of the format, bits, and samples as they are stored.
KINDS = {
    "int16": (1, 16, lambda x: np.round(x * 2**15).astype("<i2").tobytes()),
    "int24": (1, 24, lambda x: np.round(x * 2**23).astype("<i4").view("u1").reshape(-1, 4)[:, :3].tobytes()),
    "int32": (1, 32, lambda x: np.round(x * 2**31).astype("<i4").tobytes()),
    "float32": (3, 32, lambda x: x.astype("<f4").tobytes()),
}


def write_wav(path, samples, kind="int16", rate=16000):
    """Writes samples `[frames]` or `[frames, channels]`, and returns what a reader makes of them."""
    tag, bits, stored = KINDS[kind]
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    data, block = stored(samples.ravel()), channels * bits // 8
    header = struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits)
    chunks = b"fmt " + struct.pack("<I", len(header)) + header + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    scale = 2.0 ** (bits - 1)
    return np.round(samples * scale) / scale if tag == 1 else samples.astype("<f4").astype(float)


def whisper_extractor(**arguments):
    """One that fits the models here: a second of sound, a hundred columns."""
    return transformers.WhisperFeatureExtractor(**(dict(feature_size=16, chunk_length=1) | arguments))


WORDS = ["<end>", "<pad>", "<start>", "<notimes>", *(f"w{at}" for at in range(200))]


def save_tokenizer(directory):
    """A tokenizer of words that puts `<start>` and `<notimes>` before each text and `<end>` behind it, as Whisper's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [(word, WORDS.index(word)) for word in ("<start>", "<notimes>", "<end>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<start> <notimes> $A <end>", special_tokens=special)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
