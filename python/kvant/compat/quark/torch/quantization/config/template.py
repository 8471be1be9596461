"""quark.torch.quantization.config.template."""

from kvant.compat.quark._torch import LLMTemplate

__all__ = ["LLMTemplate"]
