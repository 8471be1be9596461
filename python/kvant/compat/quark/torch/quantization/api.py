"""quark.torch.quantization.api."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark._torch import ModelQuantizer
from kvant.compat.quark._torch_files import load_params

__all__ = ["ModelQuantizer", "load_params"]
