"""quark.torch."""

from kvant.compat.quark._torch import (
    LLMTemplate,
    ModelExporter,
    ModelQuantizer,
    export_gguf,
    export_onnx,
    export_safetensors,
)

__all__ = ["LLMTemplate", "ModelExporter", "ModelQuantizer", "export_gguf", "export_onnx", "export_safetensors"]
