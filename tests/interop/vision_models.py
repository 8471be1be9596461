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

# Towers for images of any size. A window of 32 pixels has 2 squares of 2 patches along a side.
QWEN_TOWER = dict(depth=3, num_heads=4, in_channels=3, patch_size=8, spatial_merge_size=2, temporal_patch_size=2)
# Heights and widths that patches of 8 in squares of 2 fill: no picture is resized.
QWEN_SIZES = [(48, 80), (32, 32), (96, 48), (16, 112)]
OF_QWEN = ("image_token", "vision_start_token", "video_token", "vision_end_token")
QWEN_TOKENS = dict(image_token_id=IMAGE, vision_start_token_id=BEGIN, video_token_id=SOFT, vision_end_token_id=END)

# What a template for images renders: text, or texts and images in the order of the parts.
PARTS = ("{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
         "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ 'IMAGE' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
         "{{ '\n' }}{% endfor %}")  # fmt: skip


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


def qwen(name, text, vision, sections=(4, 6, 6), tower=QWEN_TOWER, **changes):
    """A model of Qwen by the start of its classes' names."""
    rope = dict(rope_type="default", rope_theta=1e4, mrope_section=list(sections), **changes)
    config = getattr(transformers, f"{name}Config")
    text = dict(TEXT, **text, rope_parameters=rope)
    config = config(text_config=text, vision_config=dict(tower, **vision), **QWEN_TOKENS)
    return getattr(transformers, f"{name}ForConditionalGeneration"), config


QWEN2 = dict(embed_dim=64, hidden_size=128, mlp_ratio=2)
QWEN2_5 = dict(hidden_size=64, out_hidden_size=128, intermediate_size=96, window_size=32, fullatt_block_indexes=[1])
QWEN3 = dict(hidden_size=64, out_hidden_size=128, intermediate_size=96, num_position_embeddings=25, deepstack_visual_indexes=[0, 2])
QWEN3_5 = dict(hidden_size=64, out_hidden_size=128, intermediate_size=96, num_position_embeddings=25)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
DELTA = dict(num_hidden_layers=4, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
             layer_types=["linear_attention", "full_attention"] * 2)  # fmt: skip


def qwen_processor(name, tokenizer, mean=None):
    bounds = dict(shortest_edge=32 * 32, longest_edge=96 * 96)
    sizes = dict(patch_size=8, temporal_patch_size=2, merge_size=2, **(dict(image_mean=mean, image_std=mean) if mean else {}))
    images = transformers.Qwen2VLImageProcessor(size=bounds, **sizes)
    video = "Qwen3VLVideoProcessor" if name.startswith("Qwen3") else "Qwen2VLVideoProcessor"
    video = getattr(transformers, video)(**sizes)
    template = PARTS.replace("IMAGE", "<start_of_image><image><end_of_image>")
    return getattr(transformers, f"{name}Processor")(images, tokenizer, video, chat_template=template)


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
    "qwen2_vl": (lambda: qwen("Qwen2VL", {}, QWEN2), lambda t: qwen_processor("Qwen2VL", t)),
    "qwen2_5_vl": (lambda: qwen("Qwen2_5_VL", {}, QWEN2_5), lambda t: qwen_processor("Qwen2_5_VL", t)),
    "qwen2_5_vl_published": (lambda: qwen("Qwen2_5_VL", {}, QWEN2_5), lambda t: qwen_processor("Qwen2_5_VL", t)),
    "qwen3_vl": (lambda: qwen("Qwen3VL", dict(head_dim=32), QWEN3, mrope_interleaved=True), lambda t: qwen_processor("Qwen3VL", t, [0.5] * 3)),
    "qwen3_vl_moe": (lambda: qwen("Qwen3VLMoe", dict(MOE, head_dim=32), QWEN3), lambda t: qwen_processor("Qwen3VL", t, [0.5] * 3)),
    "qwen3_5": (lambda: qwen("Qwen3_5", DELTA, QWEN3_5, (2, 1, 1), partial_rotary_factor=0.25), lambda t: qwen_processor("Qwen3VL", t, [0.5] * 3)),
    "qwen3_5_moe": (lambda: qwen("Qwen3_5Moe", dict(DELTA, **MOE, shared_expert_intermediate_size=64), QWEN3_5, (2, 1, 1), partial_rotary_factor=0.25),
                    lambda t: qwen_processor("Qwen3VL", t, [0.5] * 3)),
}  # fmt: skip


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
            if p.dim() > 3:
                change *= np.prod(p.shape[1:-1]) ** -0.5
            if ".attn.qkv.weight" in n:
                change *= 2
            if n.endswith("mm_input_projection_weight"):
                change *= (p.shape[1] / p.shape[0]) ** 0.5
            p.copy_(p + change if "norm" in n.lower() and "bias" not in n else change)
    model.save_pretrained(out)
    if name.endswith("_published"):
        publish(out / "config.json")
    of_gemma = ("other_token", "boi_token", "image_token", "eoi_token")
    of_llava = ("image_token", "begin_token", "soft_token", "end_token")
    names = of_gemma if name.startswith("gemma3") else OF_QWEN if name.startswith("qwen") else of_llava
    make_processor(tokenizer(names)).save_pretrained(out)
    return out


def publish(file):
    """config.json as published models have it: the keys of the language model beside the others, the tower's without those of newer classes."""
    config = json.loads(file.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= dict(rope_theta=rope["rope_theta"], rope_scaling=dict(type="mrope", mrope_section=rope["mrope_section"]))
    for key in ("model_type", "rope_parameters", "in_channels", "initializer_range"):
        config["vision_config"].pop(key, None)
    config["vision_config"]["in_chans"] = 3
    file.write_text(json.dumps({**text, **config}))


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


def sizes_of(name):
    """Sizes of pictures that the model reads as they are."""
    return QWEN_SIZES if name.startswith("qwen") else [(TOWER["image_size"],) * 2]


def conversations(folder, rows=3, size=None, sizes=None):
    """A file of conversations with images beside it, and the same with pictures in memory: (path, [(messages, pictures)]). Pictures have the
    sizes that models read, unless one is given: transformers resizes them with torchvision or Pillow, which differ in single levels."""
    folder.mkdir(exist_ok=True)
    found = []
    sizes = sizes or [(TOWER["image_size"],) * 2]
    with open(folder / "chats.jsonl", "w") as out:
        for row in range(rows):
            pictures, messages = [], []
            for turn in range(1 + row % 2):
                parts = []
                for at in range(1 + (row + turn) % 2):
                    name = f"{row}_{turn}_{at}.png"
                    height, width = size or sizes[(2 * row + turn + at) % len(sizes)]
                    pictures.append(picture(folder / name, height + 9 * row * bool(size), width + 5 * turn * bool(size), 7 * row + turn + at))
                    image = {"type": "image", "image": name} if row % 2 == 0 else {"type": "image_url", "image_url": {"url": name}}
                    parts += [{"type": "text", "text": TALES[(row + at) % 3] + "\n"}, image]
                parts.append({"type": "text", "text": "\n" + TALES[(row + turn) % 3]})
                messages.append({"role": "user", "content": parts})
                messages.append({"role": "assistant", "content": [{"type": "text", "text": " ".join(TALES)}]})
            out.write(json.dumps({"messages": messages}) + "\n")
            found.append((messages, pictures))
    return folder / "chats.jsonl", found
