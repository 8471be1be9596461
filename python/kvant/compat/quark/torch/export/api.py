"""quark.torch.export.api."""

from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark._torch_files import (
    ModelExporter,
    export_gguf,
    export_onnx,
    export_safetensors,
    import_model_from_safetensors,
    save_params,
)

__all__ = [
    "ModelExporter",
    "export_gguf",
    "export_onnx",
    "export_safetensors",
    "import_model_from_safetensors",
    "save_params",
]
