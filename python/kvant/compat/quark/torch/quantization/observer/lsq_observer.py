"""quark.torch.quantization.observer.lsq_observer."""

from kvant.compat.quark.torch.quantization.observer.observer import *  # noqa: F403
