#!/usr/bin/env python3
"""llm-compressor's side of algorithms.py: a model quantized by its modifiers to one of the schemes. See held_out.serve.

Where it has no built-in mapping for a family (opt; the experts of mixtral for AWQ), the mapping is written here as its user
would. SmoothQuant runs with the strength of its paper, 0.5.
"""
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

IGNORE = ["lm_head", "re:.*mlp.gate$"]
OPT_SMOOTHQUANT = [
    [["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*self_attn_layer_norm"],
    [["re:.*fc1"], "re:.*layers.*final_layer_norm"],
]
OPT_AWQ = [
    AWQMapping("re:.*self_attn_layer_norm$", ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"]),
    AWQMapping("re:.*v_proj$", ["re:.*out_proj$"]),
    AWQMapping("re:.*layers.*final_layer_norm$", ["re:.*fc1$"]),
    AWQMapping("re:.*fc1$", ["re:.*fc2$"]),
]
MIXTRAL_AWQ = [
    AWQMapping("re:.*input_layernorm$", ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"]),
    AWQMapping("re:.*v_proj$", ["re:.*o_proj$"]),
    AWQMapping("re:.*up_proj$", ["re:.*down_proj$"]),
]

if not torch.cuda.is_available():
    # AWQ pins what it caches wherever torch was built for CUDA, and there being no driver fails.
    torch.Tensor.pin_memory = lambda tensor, *_: tensor


# Schemes for which it has names.
PRESETS = {"W4A4 MXFP4": "MXFP4", "W4A4 NVFP4": "NVFP4"}


def config_group(scheme):
    if scheme in PRESETS:
        return preset_name_to_scheme(PRESETS[scheme], ["Linear"])

    def integers(bits, size, symmetric=True):
        return QuantizationArgs(num_bits=bits, strategy="group", group_size=size, symmetric=symmetric)

    weights = {
        "int4 g128": lambda: integers(4, 128),
        "uint4 g128": lambda: integers(4, 128, False),
        "int3 g128": lambda: integers(3, 128),
        "int2 g64": lambda: integers(2, 64),
        "mxfp4": lambda: preset_name_to_scheme("MXFP4A16", ["Linear"]).weights,
        "int8 static": lambda: QuantizationArgs(num_bits=8, strategy="channel", symmetric=True),
        "W4A8": lambda: integers(4, 128),
    }
    inputs = {
        "int8 static": lambda: QuantizationArgs(num_bits=8, strategy="tensor", symmetric=True),
        "W4A8": lambda: QuantizationArgs(num_bits=8, strategy="token", symmetric=True, dynamic=True),
    }
    activations = inputs[scheme]() if scheme in inputs else None
    return QuantizationScheme(targets=["Linear"], weights=weights[scheme](), input_activations=activations)


def modifiers(cell, family):
    names = cell["algorithm"].split(",")
    if "smoothquant" in names:
        yield SmoothQuantModifier(smoothing_strength=0.5, **({"mappings": OPT_SMOOTHQUANT} if family == "opt" else {}))
    if "awq" in names:
        own = {"opt": OPT_AWQ, "mixtral": MIXTRAL_AWQ}.get(family)
        yield AWQModifier(**({"mappings": own} if own else {}))
    rounding = GPTQModifier if "gptq" in names else QuantizationModifier
    yield rounding(config_groups={"all": config_group(cell["scheme"])}, ignore=IGNORE)


def quantized(model, cell, calibration):
    data = Dataset.from_dict({"input_ids": calibration.tolist(), "attention_mask": (calibration * 0 + 1).tolist()})
    # It wants a tokenizer even for tokens.
    unused = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"": 0}, "")))
    recipe = list(modifiers(cell, model.config.model_type))
    oneshot(model=model, dataset=data, recipe=recipe, num_calibration_samples=len(data), max_seq_length=calibration.shape[1],
            batch_size=1, shuffle_calibration_samples=False, processor=unused)  # fmt: skip
    return model


if __name__ == "__main__":
    from held_out import serve

    serve(quantized)
