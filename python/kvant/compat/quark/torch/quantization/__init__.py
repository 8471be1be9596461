"""quark.torch.quantization."""

from kvant.compat.quark._torch import ModelQuantizer as ModelQuantizer
from kvant.compat.quark.torch.quantization.config import *  # noqa: F403
