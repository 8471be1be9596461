"""Errors and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvant._reports import Report


class KvantWarning(UserWarning):
    """The result may be worse than it looks."""


class KvantError(Exception):
    """A request that failed.

    Attributes:
        kind: `invalid`, `unsupported`, `system`, `usage`, `unfit` or `internal`.
        message: What is wrong, naming the file, tensor or layer. Settings are named as keyword arguments.
        remedy: The ways out in words, separated by semicolons; empty if there is none.
        remedies: The same as objects with `kind`, `setting`, `values` and `text`.
        report: The report of a run whose result was rejected, otherwise None.
    """

    kind: str
    message: str
    remedy: str
    remedies: tuple[dict[str, Any], ...]
    report: Report | None

    def __init__(
        self,
        message: str,
        *,
        kind: str = "internal",
        remedy: str = "",
        remedies: tuple[dict[str, Any], ...] = (),
        report: Report | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.remedy = remedy
        self.remedies = remedies
        self.report = report

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (type(self), self.message, self.__dict__))


class InvalidError(KvantError, ValueError):
    """The input is wrong: a damaged file, a scheme that does not fit the model."""


class UnsupportedError(KvantError):
    """The input may be right; Kvant does not handle it."""


class FileError(KvantError, OSError):
    """The system refused: no permission, no space."""


class UsageError(KvantError, ValueError):
    """The arguments are wrong: an unknown scheme, a missing file, keywords that exclude each other."""


class QualityError(KvantError):
    """The result is worse than the limits that were given; nothing was written under its name."""


class InternalError(KvantError, RuntimeError):
    """A bug in Kvant."""


class MissingExtraError(KvantError, ImportError):
    """A package is not installed that this part of Kvant needs; the remedy names the extra that installs it."""


_CLASSES: dict[str, type[KvantError]] = {
    "invalid": InvalidError,
    "unsupported": UnsupportedError,
    "system": FileError,
    "usage": UsageError,
    "unfit": QualityError,
    "internal": InternalError,
}


def error_of(fields: dict[str, Any], report: Report | None = None) -> KvantError:
    """The exception for an error of the library."""
    kind = fields["kind"]
    made = _CLASSES.get(kind, KvantError)
    return made(
        fields["message"],
        kind=kind,
        remedy=fields["remedy"],
        remedies=tuple(fields["remedies"]),
        report=report,
    )


def usage_error(message: str, remedy: str) -> UsageError:
    """An error in the arguments that is found in Python."""
    return UsageError(message, kind="usage", remedy=remedy)


def missing_extra(error: ModuleNotFoundError, part: str, extra: str) -> MissingExtraError:
    """An error for a part of Kvant whose packages are not installed."""
    message = f"{part} needs the package {(error.name or str(error)).partition('.')[0]}, which is not installed"
    return MissingExtraError(message, kind="usage", remedy=f"pip install 'kvant[{extra}]'")


def _restored(made: type[KvantError], message: str, fields: dict[str, Any]) -> KvantError:
    error = made(message)
    error.__dict__.update(fields)
    return error
