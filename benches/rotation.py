#!/usr/bin/env python3
"""Held-out divergence of rotated models at weights and activations of four bits, also of models with outliers.

    python3 benches/rotation.py --calib TEXT --data TEXT MODEL... [--kvant target/release/kvant] [--outliers 30] [--hidden] [--learned]
        [--algorithm rotate]

Each model is also measured with outliers, which do not change its function: in every block one channel in fifty of the norms before attention
and the feed-forward network is multiplied by a factor, and the columns that read it are divided by it; with --hidden also one in fifty of the rows
of the up projection, and the columns of the down projection. Each cell is the mean KL divergence
from the float model in nats, all on the same windows. Prints a Markdown table for each model.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from held_out import kvant_divergence
from safetensors.torch import load_file, save_file

SCHEMES = {
    "int4 W4A4": "int4:channel+int4:token!dynamic",
    "int4 g32 W4A8": "int4:g32+int8:token!dynamic",
    "MXFP4": "mxfp4",
    "NVFP4": "nvfp4",
}
ALGORITHMS = [
    "rtn", "smoothquant", "rotate", "rotate:size=32", "rotate:down=on", "rotate:down=on:size=32",
    "qronos", "rotate,qronos", "rotate:size=32,qronos", "rotate:down=on,qronos", "rotate:down=on:size=32,qronos",
]  # fmt: skip
LEARNED = ["rtn", "rotate", "rotate:size=32", "rotate:steps=100", "rotate:size=32:steps=100"]
LEARNED += [f"{algorithm},qronos" for algorithm in LEARNED[1:]] + ["qronos"]
READERS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


def with_outliers(source, out, factor, hidden=False):
    """A model of the same function (Llama's names), whose activations have outliers; those of down projections too where asked."""
    shutil.copytree(source, out)
    weights = load_file(out / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    for name in [name for name in weights if name.endswith(tuple(f"{norm}.weight" for norm in READERS))]:
        block, norm, _ = name.rsplit(".", 2)
        width = weights[name].numel()
        chosen = torch.randperm(width, generator=generator)[: max(1, width // 50)]
        weights[name][chosen] *= factor
        for reader in READERS[norm]:
            weights[f"{block}.{reader}.weight"][:, chosen] /= factor
    for name in [name for name in weights if hidden and name.endswith("mlp.up_proj.weight")]:
        rows = len(weights[name])
        chosen = torch.randperm(rows, generator=generator)[: max(1, rows // 50)]
        weights[name][chosen] *= factor
        weights[name.replace("up_proj", "down_proj")][:, chosen] /= factor
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def divergence(kvant, model, scheme, algorithm, options, work):
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    data = ["--calib", options.calib, "--num-samples", str(options.samples), "--seq-len", "256"]
    # Its inputs have a static scale.
    needs_data = scheme == "nvfp4" or algorithm != "rtn" and (not algorithm.startswith("rotate") or "," in algorithm or "steps" in algorithm)
    calibrated = data if needs_data else []
    run = [kvant, "quantize", model, "--scheme", scheme, "--algorithm", algorithm, *calibrated, "-o", out, "-q"]
    done = subprocess.run([str(word) for word in run], capture_output=True, text=True)
    if done.returncode:
        return None
    return kvant_divergence(kvant, out, model, options.data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--outliers", type=float, default=30.0)
    parser.add_argument("--outliers-only", action="store_true")
    parser.add_argument("--hidden", action="store_true")
    parser.add_argument("--learned", action="store_true", help="learned rotations beside fixed ones, where inputs have four bits")
    parser.add_argument("--algorithm", action="append", help="instead of all; may be given several times")
    parser.add_argument("--samples", type=int, default=64)
    options = parser.parse_args()
    algorithms = LEARNED if options.learned else ALGORITHMS
    schemes = {name: scheme for name, scheme in SCHEMES.items() if not options.learned or "W4A8" not in name}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for model in options.models:
            made = with_outliers(model, work / f"{model.name}-outliers", options.outliers, options.hidden)
            for kind, path in ((model.name, model), (f"{model.name} with outliers", made))[options.outliers_only :]:
                print(f"\n### {kind}\n\n| | {' | '.join(schemes)} |\n|---|{'---|' * len(schemes)}", flush=True)
                for algorithm in options.algorithm or algorithms:
                    cells = [
                        divergence(options.kvant, path, scheme, algorithm, options, work) for scheme in schemes.values()
                    ]
                    print(
                        f"| {algorithm} | {' | '.join('–' if cell is None else f'{cell:.4f}' for cell in cells)} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
