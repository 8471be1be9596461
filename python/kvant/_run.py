"""Calls of the library: arguments, events, answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kvant import _data, _kvant, _reports
from kvant._errors import error_of, usage_error
from kvant._events import Listener

__version__: str = _kvant.__version__


def introduce() -> None:
    """Informs the library how another process of the package is started, and where this one finds packages."""
    program = [sys.executable, "-m", "kvant"] if sys.executable else []
    _kvant.use_program(program, [entry for entry in sys.path if entry])


def call(command: str, arguments: Mapping[str, Any], progress: bool) -> Any:
    """Carries out a command with the keyword arguments of its function. None, and False of a flag, mean nothing.

    Raises:
        TypeError: A value of a wrong type, or two keywords of the same meaning.
        KvantError: The request failed.
    """
    introduce()
    given = _primary(command, arguments)
    with _data.as_files(command, given) as (given, identity):
        listener = Listener(progress)
        try:
            answer = json.loads(_kvant.run(command, _options(command, given), listener, identity))
        finally:
            listener.close()
    report = None
    if answer.get("report") is not None:
        report = _reports.report_of(command, answer["report"], answer["sections"])
    if answer["error"] is not None:
        raise error_of(answer["error"], report)
    return report


@cache
def parameters(command: str) -> dict[str, dict[str, Any]]:
    """The parameters of a command by their keywords."""
    return {parameter["keyword"]: parameter for parameter in json.loads(_kvant.parameters(command))}


def _primary(command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were given, by the first of their keywords."""
    primary = {alias: keyword for keyword, row in parameters(command).items() for alias in row["aliases"]}
    made: dict[str, Any] = {}
    for name, value in arguments.items():
        keyword = primary.get(name, name)
        if value is None or (value is False and parameters(command)[keyword]["kind"] == "flag"):
            continue
        if keyword in made:
            raise TypeError(f"{command}() takes `{keyword}` or `{name}`, not both: they have the same meaning")
        made[keyword] = value
    return made


def _options(command: str, given: Mapping[str, Any]) -> list[str]:
    """The arguments as the command line has them."""
    options: list[str] = []
    positional: list[str] = []
    for keyword, value in given.items():
        parameter = parameters(command)[keyword]
        texts = list(_texts(parameter, value))
        if parameter["option"] is None:
            positional.extend(texts)
        elif parameter["kind"] == "flag":
            options.append(f"--{parameter['option']}")
        else:
            options.extend(f"--{parameter['option']}={text}" for text in texts)
    return [*options, "--", *positional]


def _texts(parameter: Mapping[str, Any], value: Any) -> Iterable[str]:
    """The values of one argument as text."""
    keyword, kind = parameter["keyword"], parameter["kind"]
    if kind == "flag":
        if value is not True:
            raise TypeError(f"{keyword} must be True or False, not {value!r}")
        return [""]
    if keyword == "overrides" and isinstance(value, Mapping):
        return [f"{pattern}={scheme}" for pattern, scheme in value.items()]
    if parameter["is_list"] and not isinstance(value, str | bytes | os.PathLike):
        if isinstance(value, Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"{keyword} must be a string or a list of strings, not {type(value).__name__}")
        return [_text(keyword, kind, element) for element in value]
    if keyword in ("data", "eval") and isinstance(value, list | tuple):
        if len(value) > 1:
            raise usage_error(
                f"{keyword} are {len(value)} files", "give one: join them, or give the texts of all of them"
            )
        value = value[0]
    return [_text(keyword, kind, value)]


def _text(keyword: str, kind: str, value: Any) -> str:
    """A value as text."""
    if kind == "yes_no":
        if isinstance(value, bool):
            return "yes" if value else "no"
    elif isinstance(value, str | os.PathLike):
        return os.fsdecode(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    elif hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # A number of numpy.
        return repr(value.item())
    raise TypeError(f"{keyword} cannot be {value!r}")
