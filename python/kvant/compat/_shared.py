"""What all interfaces of other tools share."""

from __future__ import annotations

from kvant._errors import UnsupportedError


def unsupported(what: str, remedy: str) -> UnsupportedError:
    """An exception for what the other tool does and Kvant does not."""
    return UnsupportedError(what, kind="unsupported", remedy=remedy)


def escaped(name: str) -> str:
    """A pattern that matches one name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
