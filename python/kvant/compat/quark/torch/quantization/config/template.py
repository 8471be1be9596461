"""quark.torch.quantization.config.template."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark._templates import LLMTemplate

__all__ = ["LLMTemplate"]
