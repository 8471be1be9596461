"""quark.torch.export."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark.torch.export.api import *  # noqa: F403
from kvant.compat.quark.torch.export.config.config import *  # noqa: F403
