"""Quantize deep-learning models: checkpoints, GGUF files and ONNX graphs.

The functions do what the commands of `kvant` do, with the same options as keyword arguments:

* `quantize` writes a quantized model, `plan` previews that;
* `convert` converts a quantized model to another format;
* `evaluate` measures a model, `verify` checks whether it is valid and loads, `inspect` shows its contents;
* `generate` continues prompts with a language model, `sensitivity` ranks the layers of an ONNX graph,
  `search` finds a mix of schemes for a language model.

A `LanguageModel` scores and continues texts, which is what evaluation harnesses need; `kvant.lm_eval` connects it to
lm-evaluation-harness.

Single tensors of numpy and torch are quantized by `quantize_tensor`, `fake_quantize`, `round_tensor` and `gptq`, with a
`Hessian` or an `Observer` for what calibration finds.

Each function on a model returns a report, a frozen dataclass that notebooks show as a table. Errors are `KvantError`s
with a `remedy`; warnings are `KvantWarning`s; notes go to the logger `kvant`. Ctrl-C stops a call, and the same call
resumes its work. Other threads run meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvant._errors import (
    FileError,
    InternalError,
    InvalidError,
    KvantError,
    KvantWarning,
    MissingExtraError,
    QualityError,
    UnsupportedError,
    UsageError,
)
from kvant._family import add_family
from kvant._files import convert, evaluate, generate, inspect, plan, quantize, search, sensitivity, verify
from kvant._language_model import GeneratedText, LanguageModel, Likelihood
from kvant._reports import (
    ConvertReport,
    EvaluateReport,
    GenerateReport,
    InspectReport,
    PlanReport,
    QuantizeReport,
    Report,
    SearchReport,
    SensitivityReport,
    VerifyReport,
)
from kvant._run import __version__

if TYPE_CHECKING:
    from kvant._tensors import (
        Hessian,
        Observer,
        QuantTensor,
        fake_quantize,
        gptq,
        quantize_tensor,
        round_tensor,
    )

__all__ = [
    "ConvertReport",
    "EvaluateReport",
    "FileError",
    "GenerateReport",
    "GeneratedText",
    "Hessian",
    "InspectReport",
    "InternalError",
    "InvalidError",
    "KvantError",
    "KvantWarning",
    "LanguageModel",
    "Likelihood",
    "MissingExtraError",
    "Observer",
    "PlanReport",
    "QualityError",
    "QuantTensor",
    "QuantizeReport",
    "Report",
    "SearchReport",
    "SensitivityReport",
    "UnsupportedError",
    "UsageError",
    "VerifyReport",
    "__version__",
    "add_family",
    "convert",
    "evaluate",
    "fake_quantize",
    "generate",
    "gptq",
    "inspect",
    "plan",
    "quantize",
    "quantize_tensor",
    "round_tensor",
    "search",
    "sensitivity",
    "verify",
]


def __getattr__(name: str) -> Any:
    """What needs numpy is imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvant import _tensors

    return getattr(_tensors, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
