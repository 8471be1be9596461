"""quark.torch.export.api."""

from kvant.compat.quark._torch import ModelExporter, export_gguf, export_onnx, export_safetensors

__all__ = ["ModelExporter", "export_gguf", "export_onnx", "export_safetensors"]
