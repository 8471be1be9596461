"""quark.torch.quantization.config."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark.torch.quantization.config.config import *  # noqa: F403
from kvant.compat.quark.torch.quantization.config.type import *  # noqa: F403
