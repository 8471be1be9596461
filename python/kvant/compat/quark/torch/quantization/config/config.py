"""quark.torch.quantization.config.config."""

from kvant.compat.quark.torch.quantization.config import *  # noqa: F403
