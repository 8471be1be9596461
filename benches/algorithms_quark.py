#!/usr/bin/env python3
"""AMD Quark's side of algorithms.py: a model quantized by one of its algorithms to one of the schemes. See held_out.serve.

Where Quark has no built-in mapping for a family (qwen3; the experts of mixtral), the mapping is written here as its user
would. SmoothQuant runs with the strength of its paper, 0.5; `smoothquant-own` with Quark's own, 1 (0.8 for mixtral).
"""
import copy
import os

os.environ["QUARK_DISABLE_COMPILE"] = "1"
os.environ.setdefault("QUARK_LOG_LEVEL", "error")

import torch  # noqa: E402

EXPERTS = ["experts.*.gate_proj", "experts.*.up_proj", "experts.*.down_proj"]
EXPERT_LINK = {"prev_op": "up_proj", "layers": ["down_proj"], "inp": "down_proj"}
# Schemes for which Quark has names.
TEMPLATES = {"W4A4 MXFP4": "mxfp4", "W4A4 NVFP4": "nvfp4"}
NAMES = {"smoothquant-own": "smoothquant"}
# How many windows pass together: saves the overhead of calls, and weighs each window the same as one by one.
BATCH = 8


def layer_config(scheme, width):
    """The scheme on a linear layer of `width` input channels."""
    from quark.torch import LLMTemplate
    from quark.torch.quantization.config import config as specs

    if scheme in TEMPLATES:
        return LLMTemplate.get("llama").get_config(TEMPLATES[scheme]).global_quant_config

    def groups(spec, size, **options):
        return spec(ch_axis=-1, group_size=size, **options)

    weights = {
        "int4 g128": lambda: groups(specs.Int4PerGroupSpec, 128, is_dynamic=False),
        "uint4 g128": lambda: groups(specs.Uint4PerGroupSpec, 128, is_dynamic=False),
        "int3 g128": lambda: groups(specs.Int3PerGroupSpec, 128, is_dynamic=False),
        "int2 g64": lambda: groups(specs.Int2PerGroupSpec, 64, is_dynamic=False),
        "mxfp4": lambda: specs.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False),
        "int8 static": lambda: specs.Int8PerChannelSpec(ch_axis=0, symmetric=True, is_dynamic=False),
        "W4A8": lambda: groups(specs.Int4PerGroupSpec, 128, is_dynamic=False),
    }
    # A token is one group over all channels: per channel takes another axis behind a router, whose rows are 2-D.
    inputs = {
        "int8 static": lambda: specs.Int8PerTensorSpec(observer_method="min_max", symmetric=True, scale_type="float",
                                                       round_method="half_even", is_dynamic=False),
        "W4A8": lambda: groups(specs.Int8PerGroupSpec, width, is_dynamic=True),
    }  # fmt: skip
    spec = {"weight": weights[scheme]().to_quantization_spec()}
    if scheme in inputs:
        spec["input_tensors"] = inputs[scheme]().to_quantization_spec()
    return specs.QLayerConfig(**spec)


def layer_configs(model, scheme):
    """What single layers get: Quark knows no group of activations that is as wide as whatever layer."""
    widths = {name: module.in_features for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {name: layer_config(scheme, width) for name, width in widths.items()} if scheme == "W4A8" else {}


def algorithm_config(name, family):
    """Quark's own mapping for the family, or the like, with the experts."""
    from quark.torch import LLMTemplate
    from quark.torch.quantization.config.config import AutoSmoothQuantConfig

    own = LLMTemplate.get("llama" if family == "qwen3" else family).algo_config
    wanted = NAMES.get(name, name)
    config = copy.deepcopy(own.get(wanted))
    if config is None and wanted == "autosmoothquant":
        awq, llama = own["awq"], LLMTemplate.get("llama").algo_config[wanted]
        config = AutoSmoothQuantConfig(scaling_layers=copy.deepcopy(awq.scaling_layers), model_decoder_layers=awq.model_decoder_layers,
                                       compute_scale_loss=llama.compute_scale_loss)  # fmt: skip
    if family == "mixtral":
        if hasattr(config, "scaling_layers"):
            config.scaling_layers.append(dict(EXPERT_LINK))
        else:
            config.inside_layer_modules += EXPERTS
    if name == "smoothquant":
        config.alpha = 0.5
    return config


def quantized(model, cell, calibration):
    from quark.torch import LLMTemplate, ModelQuantizer
    from quark.torch.quantization.config.config import QConfig
    from quark.torch.utils.llm import preprocess_for_quantization

    preprocess_for_quantization(model)
    family = model.config.model_type
    algorithms = [name for name in cell["algorithm"].split(",") if name != "rtn"]
    config = QConfig(global_quant_config=layer_config(cell["scheme"], 1), layer_quant_config=layer_configs(model, cell["scheme"]),
                     exclude=list(LLMTemplate.get(family).exclude_layers_name))  # fmt: skip
    if algorithms:
        config.algo_config = [algorithm_config(name, family) for name in algorithms]
    loader = list(calibration.split(BATCH)) if algorithms or cell["scheme"] in ("int8 static", "W4A4 NVFP4") else None
    return ModelQuantizer.freeze(ModelQuantizer(config).quantize_model(model, loader))


if __name__ == "__main__":
    from held_out import serve

    serve(quantized)
