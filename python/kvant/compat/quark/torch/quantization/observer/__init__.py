"""quark.torch.quantization.observer."""

from kvant.compat.quark.torch.quantization.observer.observer import *  # noqa: F403
