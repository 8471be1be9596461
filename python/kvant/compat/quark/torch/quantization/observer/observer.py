"""quark.torch.quantization.observer.observer."""

from kvant.compat.quark.torch.quantization.observer import *  # noqa: F403
