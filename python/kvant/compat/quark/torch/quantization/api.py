"""quark.torch.quantization.api."""

from kvant.compat.quark._torch import ModelQuantizer

__all__ = ["ModelQuantizer"]
