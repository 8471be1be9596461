"""quark.torch.export.config."""

from kvant.compat.quark.torch.export.config.config import *  # noqa: F403
