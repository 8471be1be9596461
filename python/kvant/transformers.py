"""Kvant's quantization in transformers: when a model is loaded, or as a checkpoint describes it.

    from transformers import AutoModelForCausalLM
    from kvant.transformers import KvantConfig, reload_config

    model = AutoModelForCausalLM.from_pretrained("Llama-3.2-1B", quantization_config=KvantConfig("W4A16"))
    model = AutoModelForCausalLM.from_pretrained("Llama-3.2-1B-mx6", config=reload_config("Llama-3.2-1B-mx6"))

With a scheme, the weight of each linear layer is rounded to nearest as it is loaded, and computes with its dequantized
values: the model shows the accuracy of the scheme, and stays as large as it was. `kvant.quantize` writes smaller files.

With `reload_config` the layers of a quantized checkpoint become those of `kvant.torch`, which quantize activations too.
Checkpoints of the format `tensors`, which no other loader reads, load without it.
"""

from __future__ import annotations

import os
import re
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvant
from kvant._errors import UnsupportedError, missing_extra, usage_error

try:
    import torch
    from transformers import AutoConfig
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ModuleNotFoundError as error:
    raise missing_extra(error, "kvant.transformers", "transformers") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvant._types import StrPath

__all__ = ["KvantConfig", "KvantQuantizer", "reload_config"]

METHOD = "kvant"

# Codes and scales described in the metadata of their files.
_TENSORS_METHOD = "kvant-tensors"


@register_quantization_config(_TENSORS_METHOD)
@register_quantization_config(METHOD)
class KvantConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """How weights are quantized when a model is loaded.

    Args:
        scheme: A name or spelling of `kvant list schemes`; the part for weights counts. None for checkpoints that are
            quantized: layers become what the checkpoint describes.
        exclude: Globs of modules that stay as they are [default: the head, as in `kvant.quantize`].
        overrides: Schemes of modules whose names match a glob, instead of `scheme`; the last match wins.
    """

    def __init__(
        self,
        scheme: str | None = None,
        *,
        exclude: Sequence[str] = ("lm_head",),
        overrides: dict[str, str] | None = None,
        **_: Any,
    ) -> None:
        self.quant_method = METHOD
        self.scheme = scheme
        self.exclude = [exclude] if isinstance(exclude, str) else list(exclude)
        self.overrides = dict(overrides or {})

    def scheme_of(self, module: str) -> str | None:
        """The scheme of a module; None if it stays as it is."""
        if any(fnmatchcase(module, pattern) for pattern in self.exclude):
            return None
        found = [scheme for pattern, scheme in self.overrides.items() if fnmatchcase(module, pattern)]
        return found[-1] if found else self.scheme


def reload_config(pretrained: StrPath, **options: Any) -> Any:
    """The configuration of a quantized model, with Kvant as what reads its layers.

    Give it to `from_pretrained` as `config`: with another method in config.json, transformers takes no other quantizer
    from its argument `quantization_config`.

    Args:
        pretrained: The directory or name of the checkpoint.
        options: As for `AutoConfig.from_pretrained`.
    """
    config = AutoConfig.from_pretrained(os.fspath(pretrained), **options)
    config.quantization_config = {"quant_method": METHOD}
    return config


@register_quantizer(METHOD)
class KvantQuantizer(HfQuantizer):  # type: ignore[misc]
    """Rounds the weights of a model that transformers has loaded, or makes its layers those of its checkpoint."""

    requires_calibration = False

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Refuses to quantize checkpoints that are quantized already."""
        if self.pre_quantized and self.quantization_config.scheme is not None:
            raise UnsupportedError(
                "the checkpoint is quantized already",
                kind="unsupported",
                remedy="load it with config=kvant.transformers.reload_config(...), or give its float original",
                remedies=(),
            )

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Sequence[str] | None = None, **kwargs: Any
    ) -> Any:
        if self.quantization_config.scheme is not None:
            return model
        from kvant.torch._checkpoint import StoredCheckpoint

        if not checkpoint_files:
            raise usage_error("a quantized model is restored from files", "give from_pretrained a directory or a name")
        self._stored = StoredCheckpoint(Path(checkpoint_files[0]).parent)
        self._name_in = _renaming(model)
        # Codes are loaded in place of these weights, or nothing is.
        names = {self._name_in(name) for name in self._stored.layers}
        self._weights = {
            name: torch.empty_like(parameter, device="meta")
            for name, parameter in model.named_parameters()
            if name.removesuffix(".weight") in names
        }
        layers = [rf"(^|\.){re.escape(name)}\." for name in names]
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), *layers}
        missing = [rf"{layer}weight$" for layer in layers]
        model._keys_to_ignore_on_load_missing = {*(model._keys_to_ignore_on_load_missing or ()), *missing}
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self.quantization_config.scheme is None:
            return self._restored(model)
        with torch.no_grad():
            for name, module in model.named_modules():
                scheme = self.quantization_config.scheme_of(name) if isinstance(module, torch.nn.Linear) else None
                if scheme is None:
                    continue
                weight = module.weight.data
                values = kvant.quantize_tensor(weight.cpu().contiguous(), scheme).dequantize()
                module.weight.data = values.to(weight.device)
        return model

    def _restored(self, model: Any) -> Any:
        """The model with the layers of its checkpoint."""
        from kvant.torch._checkpoint import float_layers

        for name, weight in self._weights.items():
            module = model.get_submodule(name.rpartition(".")[0])
            module.weight = torch.nn.Parameter(torch.empty_like(weight, device=module.weight.device))
        modules = float_layers(model, self._stored.layers, self._name_in)
        self._stored.restore(modules, self._stored.read(modules, layers_only=True))()
        return model

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """False: the model has no codes that could be saved. A warning names other ways."""
        if self.quantization_config.scheme is None:
            ways = "kvant.torch.export(model, directory, 'fake') writes its values, and the checkpoint has its codes"
        else:
            ways = (
                "kvant.quantize writes the quantized checkpoint of a float one; or load the model without a "
                "quantization_config, and use kvant.torch.quantize_ and kvant.torch.export"
            )
        warnings.warn(
            f"save_pretrained does not save this model: Kvant quantized it at loading, and it has no codes. {ways}",
            kvant.KvantWarning,
            stacklevel=3,
        )
        return False

    @property
    def is_trainable(self) -> bool:
        """Weights are floats, but training would leave their grid."""
        return False


def _renaming(model: Any) -> Callable[[str], str]:
    """From names in a checkpoint to those in a model, where one of both may be the base of the other."""
    known = {name for name, _ in model.named_modules()}
    prefix = f"{model.base_model_prefix}."

    def rename(name: str) -> str:
        names = (name, name.removeprefix(prefix), prefix + name)
        return next((one for one in names if one in known), name)

    return rename
