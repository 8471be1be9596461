"""Quantize deep-learning models: checkpoints, GGUF files and ONNX graphs.

The functions do what the commands of `kvant` do, with the same options as keyword arguments:

* `quantize` writes a quantized model, `plan` previews that;
* `convert` converts a quantized model to another format;
* `evaluate` measures a model, `verify` checks whether it is valid and loads, `inspect` shows its contents;
* `sensitivity` ranks the layers of an ONNX graph.

Each returns a report, a frozen dataclass that notebooks show as a table. Errors are `KvantError`s with a `remedy`;
warnings are `KvantWarning`s; notes go to the logger `kvant`. Ctrl-C stops a call, and the same call resumes its
work. Other threads run meanwhile.
"""

from kvant._errors import (
    FileError,
    InternalError,
    InvalidError,
    KvantError,
    KvantWarning,
    QualityError,
    UnsupportedError,
    UsageError,
)
from kvant._files import convert, evaluate, inspect, plan, quantize, sensitivity, verify
from kvant._reports import (
    ConvertReport,
    EvaluateReport,
    InspectReport,
    PlanReport,
    QuantizeReport,
    Report,
    SensitivityReport,
    VerifyReport,
)
from kvant._run import __version__

__all__ = [
    "ConvertReport",
    "EvaluateReport",
    "InspectReport",
    "InternalError",
    "InvalidError",
    "KvantError",
    "KvantWarning",
    "PlanReport",
    "QualityError",
    "QuantizeReport",
    "Report",
    "SensitivityReport",
    "UnsupportedError",
    "UsageError",
    "FileError",
    "VerifyReport",
    "__version__",
    "convert",
    "evaluate",
    "inspect",
    "plan",
    "quantize",
    "sensitivity",
    "verify",
]
