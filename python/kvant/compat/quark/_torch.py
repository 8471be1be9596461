"""Quark's quantizer over `kvant.torch`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

import kvant.torch as kt
from kvant._errors import usage_error
from kvant.compat._shared import escaped, unsupported
from kvant.compat.quark._configuration import QConfig, QLayerConfig
from kvant.compat.quark._schemes import ModelAlgorithms, algorithms_of, bias_of, layer_of, scheme_of
from kvant.compat.quark._shared_scales import share_scales
from kvant.compat.quark._types import QuantFlow, QuantizationMode
from kvant.torch._modules import layer_type, quantized_class


class ModelQuantizer:
    """Quantizes models in place. Those that accelerate offloads need no `multi_device`."""

    def __init__(self, config: QConfig, multi_device: bool = False) -> None:
        self.config = config

    def quantize_model(self, model: nn.Module, dataloader: Iterable[Any] | None = None) -> nn.Module:
        """Quantizes a model in place, and returns it. Its `quant_config` is the configuration then.

        Raises:
            UnsupportedError: Kvant does not do what the configuration asks for.
        """
        config = self.config
        _check_supported(config)
        layers = {name: module for name, module in model.named_modules() if quantized_class(module) is not None}
        algorithms = algorithms_of(config.algo_config)
        recipes: dict[str, kt.LayerRecipe | None] = {}
        for name, module in layers.items():
            layer = _resolved(config, name, module)
            scheme = None if layer is None else scheme_of(layer, layer_type(module))
            recipe = None if scheme is None else kt.LayerRecipe(scheme, algorithm=algorithms.of_layer(name))
            # Quark leaves the configuration of a bias out where a layer has none.
            if layer is not None and recipe is not None and getattr(module, "bias", None) is not None:
                recipe = replace(recipe, bias=bias_of(layer))
            recipes[name] = recipe
        _check_algorithms(model, layers, algorithms)
        kt.quantize_(
            model,
            None,
            dataloader,
            overrides={escaped(name): recipe for name, recipe in recipes.items()},
            smoothing=_smoothing(model, algorithms),
            keep_head=False,
            channels_last=False,
        )
        share_scales(model, config)
        model.quant_config, model.quark_quantized = config, True  # type: ignore[assignment]
        return model

    def direct_quantize_checkpoint(
        self,
        pretrained_model_path: str,
        save_path: str,
        keep_excluded_layers_as_original_model_state: bool = False,
        *legacy_device_args: Any,
        weight_converters: list[Any] | None = None,
        device: Any = None,
        presharded_weights: dict[str, int] | None = None,
    ) -> None:
        """Not supported: Quark's files in this mode differ from those of models in memory.

        Raises:
            UnsupportedError: Always.
        """
        scheme = scheme_of(self.config.global_quant_config, "Linear")
        raise unsupported(
            "the mode file2file, whose packing and scales are not those of other checkpoints",
            f"use kvant.quantize({pretrained_model_path!r}, {scheme!r}, output={save_path!r}), which holds no model in"
            " memory",
        )

    @staticmethod
    def freeze(model: nn.Module, quantize: bool | None = None, runtime_options: Any = None) -> nn.Module:
        """Rounds weights for good, unless `quantize` is False, and returns the model."""
        return model if quantize is False else kt.freeze(model)


def _check_supported(config: QConfig) -> None:
    """Refuses what models in place do not have."""
    if config.quant_mode is not QuantizationMode.eager_mode:
        raise unsupported("the mode fx_graph_mode", "use eager_mode, or kvant.torch.pt2e with torchao")
    if config.quant_flow is not QuantFlow.standard:
        raise unsupported(
            f"the flow {config.quant_flow.name}",
            "use kvant.quantize on the checkpoint, which holds one block in memory, or load the model offloaded",
        )
    if config.softmax_quant_spec is not None:
        raise unsupported(
            "a quantized softmax (softmax_quant_spec, attention_scheme) of models in place",
            "leave it out, or use kvant.quantize(checkpoint, scheme, attention='fp8', output=output)",
        )
    if config.kv_cache_post_rope and config.kv_cache_quant_config:
        raise unsupported(
            "keys that are quantized after the rotary embedding (kv_cache_post_rope) in models in place",
            "use kv_cache_post_rope=False, or kvant.quantize on the checkpoint",
        )


def _resolved(config: QConfig, name: str, module: nn.Module) -> QLayerConfig | None:
    """The configuration of a layer; that of keys and values replaces others."""

    def is_of(kind: Any) -> bool:
        return type(module).__name__ == kind if isinstance(kind, str) else isinstance(module, kind)

    found = layer_of(config, name, is_of, isinstance(module, nn.Embedding | nn.EmbeddingBag))
    cached = [layer for pattern, layer in config.kv_cache_quant_config.items() if fnmatchcase(name, pattern)]
    if not cached:
        return found
    if found is None:
        raise unsupported(
            f"layer {name}: quantized outputs (kv_cache_quant_config) of a layer that is excluded",
            "exclude other layers, or leave the cache as it is",
        )
    return config.kv_cache_quant_config.get(name, cached[0])


def _smoothing(model: nn.Module, algorithms: ModelAlgorithms) -> dict[str, list[str]] | None:
    """The smoothing pairs of all blocks; None to find them."""
    blocks = model.get_submodule(algorithms.blocks) if algorithms.blocks else None
    return algorithms.smoothing(0 if blocks is None else sum(1 for _ in blocks.children()))


def _check_algorithms(model: nn.Module, layers: Iterable[str], algorithms: ModelAlgorithms) -> None:
    """Refuses names of blocks and layers that the model does not have."""
    blocks = algorithms.blocks
    if blocks and not isinstance(dict(model.named_modules()).get(blocks), nn.ModuleList | nn.Sequential):
        raise usage_error(f"model_decoder_layers names {blocks!r}, which is no list of the model", "check its spelling")
    if algorithms.rounded and not any(algorithms.names(name) for name in layers):
        raise usage_error("inside_layer_modules names no layer of the blocks", "check the spelling of its entries")
