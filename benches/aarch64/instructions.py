#!/usr/bin/env python3
"""Instructions per element of the kernels on aarch64, counted by QEMU: what can be known of them without such a processor. Times do not follow
exactly, but it shows where there are vectors. `baseline` is what the compiler makes of safe loops, `neon` has kernels by hand.

    apt-get install gcc gcc-aarch64-linux-gnu qemu-user && rustup target add aarch64-unknown-linux-gnu
    python3 benches/aarch64/instructions.py [--cpu max] [KERNEL ...]
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = "aarch64-unknown-linux-gnu"
LIBRARIES = "/usr/aarch64-linux-gnu"
# Elements of a run, as in the bench.
COUNT = 1 << 16
ISAS = ["baseline", "neon"]


def build(folder: str) -> tuple[str, str]:
    """The bench and the plugin that counts."""
    plugin = f"{folder}/instructions.so"
    source = ROOT / "benches/aarch64/instructions.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)
    environment = os.environ | {"CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": "aarch64-linux-gnu-gcc"}
    command = ["cargo", "build", "--release", "--package", "kvant-numeric", "--bench", "kernels", "--target", TARGET]
    messages = subprocess.run(
        [*command, "--message-format", "json-render-diagnostics"],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    built = [json.loads(line) for line in messages.stdout.splitlines()]
    return next(m["executable"] for m in built if m.get("executable") and m["target"]["name"] == "kernels"), plugin


def emulated(arguments: argparse.Namespace, binary: str, plugin: str | None, *rest: str) -> subprocess.CompletedProcess:
    plugins = ["-plugin", plugin] if plugin else []
    command = ["qemu-aarch64", "-cpu", arguments.cpu, "-L", LIBRARIES, *plugins, binary, *rest]
    # Some kernels take the best instruction set, whichever is asked for; threads that wait for work would be counted.
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "KVANT_DISABLE_NEON": str(int("baseline" in rest))}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment)


def per_element(arguments: argparse.Namespace, binary: str, plugin: str, isa: str, kernel: str) -> float:
    """What two repetitions more add."""
    counts = []
    for repetitions in ("1", "3"):
        run = emulated(arguments, binary, plugin, "--count", isa, kernel, repetitions)
        counts.append(int(run.stderr.rsplit("instructions ", 1)[1]))
    return (counts[1] - counts[0]) / (2 * COUNT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", default="max", help="a processor of qemu-aarch64 -cpu help")
    parser.add_argument("kernel", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        binary, plugin = build(folder)
        names = arguments.kernel or emulated(arguments, binary, None, "--names").stdout.splitlines()
        print("| kernel |", " | ".join(ISAS), "|")
        print("|---|" + "---|" * len(ISAS))
        for name in names:
            counts = [per_element(arguments, binary, plugin, isa, name) for isa in ISAS]
            print(f"| {name} |", " | ".join(f"{count:.2f}" for count in counts), "|", flush=True)


if __name__ == "__main__":
    main()
