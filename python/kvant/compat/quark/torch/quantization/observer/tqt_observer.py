"""quark.torch.quantization.observer.tqt_observer."""

from kvant.compat.quark.torch.quantization.observer.observer import *  # noqa: F403
