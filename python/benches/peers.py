"""Runs of several tools in separate processes, one after the other, of which the best counts."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def measured(run: Callable[[], None]) -> dict[str, Any]:
    """Seconds, seconds of the processor, and the growth of the largest memory in MB."""
    before, begun, busy = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), time.process_time()
    run()
    seconds, processor = time.perf_counter() - begun, time.process_time() - busy
    return {
        "seconds": seconds,
        "processor": processor,
        "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def compare(file: str, measure: Callable[[str], dict[str, Any]], names: tuple[str, ...], rounds: int) -> None:
    """Prints the best of some rounds for each tool; with the name of one as argument, measures it in this process."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    best: dict[str, Any] = {}
    for name in names * rounds:
        run = subprocess.run([sys.executable, file, name], capture_output=True, text=True)
        if run.returncode:
            print(f"{name}: {run.stderr.strip().splitlines()[-1]}")
            continue
        found = json.loads(run.stdout.strip().splitlines()[-1])
        if name not in best or found["seconds"] < best[name]["seconds"]:
            best[name] = found
    for name, found in best.items():
        times = f"{found['seconds']:.2f} s ({found['processor']:.2f} s of the processor)"
        print(f"{name}: {times}, {found['memory']:.0f} MB more")
