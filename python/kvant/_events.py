"""Events of a call: warnings, log records and progress."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from typing import Any

from kvant._errors import KvantWarning

_LOGGER = logging.getLogger("kvant")
_PACKAGE = os.path.dirname(__file__)

# Seconds between two lines of progress.
_INTERVAL = 3.0


class Listener:
    """Receives the events of one call; the extension calls it with lists of them."""

    def __init__(self, progress: bool) -> None:
        self._shows_progress = progress
        self._bar: Any = None

    def __call__(self, events: list[tuple[Any, ...]]) -> None:
        for name, *fields in events:
            if name == "warning":
                warnings.warn(fields[0], KvantWarning, stacklevel=_frames_of_package())
            elif name == "note":
                _LOGGER.info("%s", fields[0])
            elif name == "detail":
                _LOGGER.debug("%s", fields[0])
            elif name == "stage":
                self._start(*fields)
            elif name == "progress" and self._bar is not None:
                place, units = fields
                self._bar.advance(place, units)
            elif name == "end":
                self.close()

    def close(self) -> None:
        """Ends the progress of a stage, finished or not."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _start(self, stage: str, unit: str | None, total: int, done: int) -> None:
        self.close()
        if self._shows_progress:
            self._bar = _bar(stage, unit, total, done)


def _bar(stage: str, unit: str | None, total: int, done: int) -> _Lines | _Tqdm:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines(stage, unit, total, done)
    return _Tqdm(tqdm, stage, unit, total, done)


class _Tqdm:
    """A bar of tqdm, which notebooks show as a widget."""

    def __init__(self, tqdm: Any, stage: str, unit: str | None, total: int, done: int) -> None:
        named = {"unit": "B", "unit_divisor": 1000} if unit is None else {"unit": f" {unit}"}
        self._bar = tqdm(desc=stage, total=total, initial=done, unit_scale=True, leave=False, **named)

    def advance(self, place: str, units: int) -> None:
        self._bar.set_postfix_str(place, refresh=False)
        self._bar.update(units)

    def close(self) -> None:
        self._bar.close()


class _Lines:
    """A line on stderr every few seconds."""

    def __init__(self, stage: str, unit: str | None, total: int, done: int) -> None:
        self._stage, self._unit, self._total, self._done = stage, unit, total, done
        self._next = time.monotonic() + _INTERVAL

    def advance(self, place: str, units: int) -> None:
        self._done += units
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL
            percent = self._done * 100 // max(self._total, 1)
            if self._unit is None:
                count = f"{self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB"
            else:
                count = f"{self._done} of {self._total} {self._unit}"
            where = f"  {place}" if place else ""
            print(f"{self._stage}: {percent} %  {count}{where}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Lines need no end."""


def _frames_of_package() -> int:
    """How far the caller of the package is up the stack, as `warnings` counts from where this function is called."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
