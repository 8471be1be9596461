#!/usr/bin/env python3
"""Mixes that `kvant search` finds at the size of a uniform result, and the divergence of both on text that the search has not seen.

    python3 benches/mixed_precision.py --calib TEXT --data TEXT MODEL... [--folder DIR] [--kvant target/release/kvant]

For every model, checkpoints of int4:g128 beside mixes of int3:g128, int4:g128 and int8:channel and beside mixes of more types, and GGUF files
of Q4_K_M beside mixes of Q3_K, Q4_K, Q5_K, Q6_K and Q8_0. Each mix is searched for twice: files at most as large as the uniform ones, and
at most 1 % larger. The divergence on the text of the search that was predicted is compared with the measured one. With --folder, what was made and measured is
kept, and a later run goes on.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

CHECKPOINT = ("--options", "int3:g128,int4:g128,int8:channel")
GROUPS = ("--options", "int3:g128,int3:g32,int4:g128,int4:g32,int8:channel")
WIDTHS = ("--options", "int3:g128,int3:g32,int4:g128,int4:g64,int4:g32,int5:g128,int6:g128,int8:channel")
KINDS = {
    "int4:g128": ("int4:g128", CHECKPOINT, "uniform", "mixed"),
    "int4:g128, groups of 32 too": ("int4:g128", GROUPS, "uniform", "mixed"),
    "int4:g128, int5 and int6 too": ("int4:g128", WIDTHS, "uniform", "mixed"),
    "int4:g128, head too": ("int4:g128", (*CHECKPOINT, "--no-keep-defaults"), "uniform", "mixed"),
    "Q4_K_M": ("Q4_K_M", ("--options", "Q3_K,Q4_K,Q5_K,Q6_K,Q8_0", "--for", "llama.cpp"), "uniform.gguf", "mixed.gguf"),
}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def size(path):
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.glob("*.safetensors"))


def kept(path, make):
    """The JSON object of a command, once."""
    if not path.exists():
        path.write_text(make())
    return json.loads(path.read_text())


def divergence(a, model, made):
    command = (a.kvant, "eval", made, "--reference", model, "--data", a.data, "--seq-len", a.seq_len, "--json", "-q")
    return kept(made.with_name(made.name + ".eval.json"), lambda: run(*command))["kl_mean"]


def rows(a, model, kind, folder):
    scheme, options, uniform, mixed = KINDS[kind]
    layout = () if kind == "Q4_K_M" else ("--format", a.format)
    folder.mkdir(parents=True, exist_ok=True)
    uniform = folder / uniform
    if not uniform.exists():
        run(a.kvant, "quantize", model, "-s", scheme, *layout, "-o", uniform, "-q")
    before = divergence(a, model, uniform)
    for slack in (1.0, 1.01):
        made = folder / f"{slack}-{mixed}"
        data = ("--calib", a.calib, "--num-samples", a.samples, "--seq-len", a.seq_len)
        target = ("--target-size", f"{int(size(uniform) * slack)}B", "-o", folder / f"{slack}.toml")
        keep = ("--sensitivities", folder / "mix.sensitivities.json", "--overwrite", "--json", "-q")
        then = ("--then", "quantize", "-o", made, "--overwrite")
        search = (a.kvant, "search", model, *options, *layout, *data, *target, *keep, "--method", a.method, *then)
        chosen = kept(folder / f"{slack}-{a.method}.json", lambda: run(*search))["chosen"]
        yield slack, size(made) / size(uniform), before, divergence(a, model, made), chosen["predicted_kl"], chosen["kl"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--folder")
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--format", default="quark")
    parser.add_argument("--method", default="measured")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    a = parser.parse_args()
    print("| model | beside | size | KL uniform | KL mix | lower by | predicted / measured |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for model in map(Path, a.models):
            for kind in a.kinds:
                folder = Path(a.folder or scratch) / f"{model.name}-{kind.replace(':', '-').replace(', ', '-').replace(' ', '-')}"
                for _, share, before, after, predicted, measured in rows(a, model, kind, folder):
                    print(
                        f"| {model.name} | {kind} | {100 * share:.2f} % | {before:.5f} | {after:.5f} | {100 * (1 - after / before):.1f} % "
                        f"| {predicted:.5f} / {measured:.5f} ({100 * (predicted / measured - 1):+.0f} %) |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
