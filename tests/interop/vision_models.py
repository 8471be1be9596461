"""Tiny random-weight models of text and images, each with a processor and a chat template, and conversations with images for them."""

import json
import pathlib

import numpy as np
import PIL.Image
import torch
import transformers

import models
from conftest import REPO
from forward_models import GEMMA3_ROPE, scaled

NAMED = ("<image>", "<start_of_image>", "<image_soft_token>", "<end_of_image>")
NANO = 2048
VOCABULARY = NANO + 8
IMAGE, BEGIN, SOFT, END = (NANO + at for at in range(4))

TEXT = dict(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, bos_token_id=0, eos_token_id=0, pad_token_id=0)  # fmt: skip
TOWER = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=8)

# What a template for images renders: text in the order of the parts.
PARTS = ("{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% for part in message['content'] %}"
         "{% if part['type'] == 'image' %}{{ 'IMAGE' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ '\n' }}{% endfor %}")  # fmt: skip


def llava(tower="CLIPVisionConfig", **changes):
    vision = getattr(transformers, tower)(**TOWER)
    config = transformers.LlavaConfig(text_config=transformers.LlamaConfig(**TEXT), vision_config=vision, image_token_index=IMAGE, **changes)
    return transformers.LlavaForConditionalGeneration, config


def gemma3(**changes):
    arguments = dict(TEXT, num_hidden_layers=4, head_dim=32, sliding_window=12, query_pre_attn_scalar=40, rope_parameters=GEMMA3_ROPE,
                     layer_types=["sliding_attention", "full_attention"] * 2)  # fmt: skip
    text, vision = transformers.Gemma3TextConfig(**arguments), transformers.SiglipVisionConfig(**TOWER, vision_use_head=False)
    tokens = dict(boi_token_index=BEGIN, image_token_index=SOFT, eoi_token_index=END)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **tokens, **changes)
    return transformers.Gemma3ForConditionalGeneration, config


def llava_processor(tokenizer, strategy="default", further=1):
    images = transformers.CLIPImageProcessor(size=dict(shortest_edge=32), crop_size=dict(height=32, width=32))
    arguments = dict(patch_size=8, vision_feature_select_strategy=strategy, num_additional_image_tokens=further)
    return transformers.LlavaProcessor(images, tokenizer, image_token="<image>", chat_template=PARTS.replace("IMAGE", "<image>"), **arguments)


def gemma3_processor(tokenizer):
    images = transformers.Gemma3ImageProcessor(size=dict(height=32, width=32))
    return transformers.Gemma3Processor(images, tokenizer, chat_template=PARTS.replace("IMAGE", "<start_of_image>"), image_seq_length=4)


# name -> (model and configuration, processor)
MODELS = {
    "llava": (llava, llava_processor),
    "llava_layers": (lambda: llava(vision_feature_layer=[-2, 1], projector_hidden_act="gelu_new"), llava_processor),
    "llava_full": (lambda: llava(vision_feature_select_strategy="full", vision_feature_layer=-1), lambda t: llava_processor(t, "full")),
    "llava_siglip": (lambda: llava("SiglipVisionConfig", vision_feature_select_strategy="full"), lambda t: llava_processor(t, "full", 0)),
    "gemma3": (gemma3, gemma3_processor),
}


def tokenizer(names):
    """That of the small trained model, with tokens for images, which have these names."""
    nano = models.find_shared("nano_llama", REPO, None)
    found = transformers.PreTrainedTokenizerFast.from_pretrained(nano, extra_special_tokens=dict(zip(names, NAMED, strict=True)))
    assert [found.convert_tokens_to_ids(name) for name in NAMED] == [IMAGE, BEGIN, SOFT, END]
    return found


def save(name, out):
    """The directory of a model with its processor, made on first use."""
    out = pathlib.Path(out)
    if (out / "config.json").exists():
        return out
    make, make_processor = MODELS[name]
    kind, config = make()
    model = kind._from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for n, p in model.named_parameters():
            change = scaled(n, p.shape, generator)
            if p.dim() == 4:
                change *= (p.shape[1] * p.shape[2]) ** -0.5
            if n.endswith("mm_input_projection_weight"):
                change *= (p.shape[1] / p.shape[0]) ** 0.5
            p.copy_(p + change if "norm" in n.lower() and "bias" not in n else change)
    model.save_pretrained(out)
    of_gemma = ("other_token", "boi_token", "image_token", "eoi_token")
    of_llava = ("image_token", "begin_token", "soft_token", "end_token")
    make_processor(tokenizer(of_gemma if name.startswith("gemma3") else of_llava)).save_pretrained(out)
    return out


def load(directory):
    """The model, and its processor."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    return model


def picture(path, height, width, seed):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(x / 7 + channel + seed) * np.cos(y / 5 - channel) for channel in range(3)]
    values = np.stack(waves, -1) + rng.normal(0, 20, (height, width, 3))
    image = PIL.Image.fromarray(values.clip(0, 255).astype(np.uint8))
    image.save(path)
    return image


TALES = ("Once upon a time there was a little dog who liked to play.", "The cat sat on the mat and looked at the sun.", "What is in the picture?")


def conversations(folder, rows=3, size=None):
    """A file of conversations with images beside it, and the same with pictures in memory: (path, [(messages, pictures)]). Pictures have the
    size that models read, unless one is given: transformers resizes them with torchvision or Pillow, which differ in single levels."""
    folder.mkdir(exist_ok=True)
    found = []
    with open(folder / "chats.jsonl", "w") as out:
        for row in range(rows):
            pictures, messages = [], []
            for turn in range(1 + row % 2):
                parts = []
                for at in range(1 + (row + turn) % 2):
                    name = f"{row}_{turn}_{at}.png"
                    height, width = size or (TOWER["image_size"],) * 2
                    pictures.append(picture(folder / name, height + 9 * row * bool(size), width + 5 * turn * bool(size), 7 * row + turn + at))
                    image = {"type": "image", "image": name} if row % 2 == 0 else {"type": "image_url", "image_url": {"url": name}}
                    parts += [{"type": "text", "text": TALES[(row + at) % 3] + "\n"}, image]
                parts.append({"type": "text", "text": "\n" + TALES[(row + turn) % 3]})
                messages.append({"role": "user", "content": parts})
                messages.append({"role": "assistant", "content": [{"type": "text", "text": " ".join(TALES)}]})
            out.write(json.dumps({"messages": messages}) + "\n")
            found.append((messages, pictures))
    return folder / "chats.jsonl", found
