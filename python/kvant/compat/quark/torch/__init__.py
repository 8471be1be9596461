"""quark.torch."""

# First, for an error that names the extra where torch is missing.
import kvant.torch  # noqa: F401
from kvant.compat.quark._absent import torch_name as __getattr__  # noqa: F401
from kvant.compat.quark._templates import LLMTemplate
from kvant.compat.quark._torch import ModelQuantizer
from kvant.compat.quark._torch_files import (
    ModelExporter,
    export_gguf,
    export_onnx,
    export_safetensors,
    import_model_from_safetensors,
    load_params,
    save_params,
)
from kvant.compat.quark._types import QuantFlow

__all__ = [
    "LLMTemplate",
    "ModelExporter",
    "ModelQuantizer",
    "QuantFlow",
    "export_gguf",
    "export_onnx",
    "export_safetensors",
    "import_model_from_safetensors",
    "load_params",
    "save_params",
]
