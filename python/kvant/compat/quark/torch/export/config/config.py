"""quark.torch.export.config.config."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark._torch_files import ExporterConfig, JsonExporterConfig

__all__ = ["ExporterConfig", "JsonExporterConfig"]
