#!/usr/bin/env python3
"""What calibration data are worth: the KL divergence on held-out prose and on the same prose as turns of a dialogue.

    python3 benches/calibration_data.py MODEL... --calib TEXT --data TEXT [--kvant target/release/kvant] [--schemes int4:g128 int3:g128]

Each model is quantized with `--scales search --algorithm qronos:rounds=4` on 32 sequences of prose, of a dialogue made of the same prose, of what the
model writes itself, and of half of each of the last two. Prints a Markdown table: the mean KL divergence from the float model in nats.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from held_out import kvant_divergence

ASKED = ["What does that mean?", "Can you tell me more?", "How is that done?", "And then?", "Why?", "Give me an example, please.", "What else should I know?"]


def dialogue(text):
    """Sentences of prose as the answers of an assistant, to questions that take turns."""
    sentences = [" ".join(sentence.split()) for sentence in re.split(r"(?<=[.!?:])\s+|\n\n+", text)]
    sentences = [sentence for sentence in sentences if len(sentence) > 20]
    answers = [" ".join(sentences[at : at + 2]) for at in range(0, len(sentences), 2)]
    return "".join(f"User: {ASKED[turn % len(ASKED)]}\nAssistant: {answer}\n" for turn, answer in enumerate(answers))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--calib", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--schemes", nargs="+", default=["int4:g128", "int3:g128"])
    options = parser.parse_args()
    print("| scheme | model | calibrated on | prose | dialogue |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        held_out = {"prose": options.data, "dialogue": folder / "held_out.txt"}
        held_out["dialogue"].write_text(dialogue(options.data.read_text()))
        turns = folder / "turns.txt"
        turns.write_text(dialogue(options.calib.read_text()))
        sources = {"prose": options.calib, "dialogue": turns, "self": "self", "dialogue and self": f"{turns}:0.5,self:0.5"}
        for scheme in options.schemes:
            for model in options.models:
                for name, source in sources.items():
                    out = folder / f"{scheme.replace(':', '-')}-{model.name}-{name.replace(' ', '-')}"
                    run = [options.kvant, "quantize", model, "--scheme", scheme, "--scales", "search", "--algorithm", "qronos:rounds=4"]
                    run += ["--calib", source, "--num-samples", 32, "--seq-len", 256, "-o", out, "-q"]
                    subprocess.run([str(word) for word in run], check=True, capture_output=True)
                    found = [kvant_divergence(options.kvant, out, model, text) for text in held_out.values()]
                    print(f"| {scheme} | {model.name} | {name} | {found[0]:.5f} | {found[1]:.5f} |", flush=True)


if __name__ == "__main__":
    main()
