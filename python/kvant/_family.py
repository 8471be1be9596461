"""Architectures that Kvant has no description of."""

from __future__ import annotations

from kvant import _kvant
from kvant._types import StrPath


def add_family(file: StrPath) -> str:
    """Describe an architecture that Kvant does not know, for as long as the process runs.

    Checkpoints whose `model_type` or architecture the description names are then calibrated, evaluated and written by
    it, as with `--family` on the command line. `kvant inspect MODEL --suggest-family` drafts a description; the fields
    are explained in docs/guide/new-architectures.md. The same file may be added again.

    Args:
        file: A TOML file.

    Returns:
        The name of the family.

    Raises:
        UsageError: The file cannot be read, or gives the family a name that another one has.
        InvalidError: The file is no description; the message names the field.
    """
    return _kvant.add_family(file)
