"""Quantization by Kvant when transformers loads a model.

    from transformers import AutoModelForCausalLM
    from kvant.transformers import KvantConfig

    model = AutoModelForCausalLM.from_pretrained("Llama-3.2-1B", quantization_config=KvantConfig("W4A16"))

The weight of each linear layer is rounded to nearest as it is loaded, and computes with its dequantized values: the
model shows the accuracy of the scheme, and stays as large as it was. `kvant.quantize` writes smaller files.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

import kvant
from kvant._errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KvantConfig", "KvantQuantizer"]

METHOD = "kvant"


@register_quantization_config(METHOD)
class KvantConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """How weights are quantized when a model is loaded.

    Args:
        scheme: A name or spelling of `kvant list schemes`; the part for weights counts.
        exclude: Globs of modules that stay as they are [default: the head, as in `kvant.quantize`].
        overrides: Schemes of modules whose names match a glob, instead of `scheme`; the last match wins.
    """

    def __init__(
        self,
        scheme: str,
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


@register_quantizer(METHOD)
class KvantQuantizer(HfQuantizer):  # type: ignore[misc]
    """Rounds the weights of a model that transformers has loaded."""

    requires_calibration = False

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Refuses checkpoints that are quantized already."""
        if self.pre_quantized:
            raise UnsupportedError(
                "the checkpoint is quantized already",
                kind="unsupported",
                remedy="load it without a KvantConfig, or give its float original",
                remedies=(),
            )

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            for name, module in model.named_modules():
                scheme = self.quantization_config.scheme_of(name) if isinstance(module, torch.nn.Linear) else None
                if scheme is None:
                    continue
                weight = module.weight.data
                values = kvant.quantize_tensor(weight.cpu().contiguous(), scheme).dequantize()
                module.weight.data = values.to(weight.device)
        return model

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """The model has no codes that could be saved."""
        return False

    @property
    def is_trainable(self) -> bool:
        """Weights are floats, but training would leave their grid."""
        return False
