"""Types of arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias, Union

StrPath: TypeAlias = Union[str, "PathLike[str]"]
"""A path."""

Paths: TypeAlias = StrPath | Sequence[StrPath]
"""A path or several."""

Strings: TypeAlias = str | Sequence[str]
"""A string or several."""

CalibrationData: TypeAlias = StrPath | Sequence[StrPath] | Iterable[Any] | Mapping[str, Any]
"""Files, or data in memory: see `kvant.quantize`."""
