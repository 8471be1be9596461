"""quark.torch.quantization.config.config."""

from kvant.compat.quark._specs import refuse_absent as __getattr__  # noqa: F401
from kvant.compat.quark.torch.quantization.config import *  # noqa: F403
