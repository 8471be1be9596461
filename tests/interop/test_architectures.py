"""docs/reference/architectures.md, as plans of a small model of each architecture say it. KVANT_UPDATE_DOCS writes it."""

import json
import os

import pytest

import encoder_models
import forward_models
from conftest import REPO
from test_gguf import byte_tokenizer

PAGE = REPO / "docs" / "reference" / "architectures.md"
ODD = ("falcon_mamba", "mamba", "mamba2")
TEXT = """# Architectures

What plans say of small models of each described architecture (`model_type` in config.json). The page is written by
`tests/interop/test_architectures.py`; other interop tests show that it is true: outputs equal those of transformers in f32
(`test_forward.py`, `test_encoders.py`), what is written loads with the same weights in transformers, vLLM and SGLang, and GGUF files in
llama.cpp.

* **Calibration**: algorithms with calibration data, static activations and `kvant eval`.
* **Tuning**: learned rounding, which needs gradients.
* **int4**, **FP8**: what is known to load `int4:g32` and `FP8_DYNAMIC` in compressed-tensors' layout. Other layouts: `kvant plan`. A loader
  that is not named refuses the layout for this architecture, or was not tried with it: `kvant verify --for LOADER` says which.
* **GGUF**: written for llama.cpp.

"""
HEADER = ("architecture", "calibration", "tuning", "int4", "FP8", "GGUF")


def sources(root):
    """The directories of the models of each architecture."""
    found = {}
    for module in (forward_models, encoder_models):
        for name in module.MODELS:
            directory = module.save(name, root / name)
            config = json.loads((directory / "config.json").read_text())
            # GGUF files hold one.
            byte_tokenizer(config.get("text_config", config)["vocab_size"]).save(str(directory / "tokenizer.json"))
            found.setdefault(config["model_type"], []).append(directory)
    return dict(sorted(found.items()))


@pytest.fixture(scope="module")
def rows(kvant, module_path):
    def plan(directory, *options):
        """The plan; nothing where it is refused as not supported."""
        done = kvant("plan", directory, *options, "--json")
        answer = json.loads(done.stdout)
        assert done.returncode == 0 or answer["error"]["kind"] == "unsupported", done.stderr
        return answer if done.returncode == 0 else None

    def loaders(directory, *options):
        found = plan(directory, "--format", "compressed-tensors", *options)
        return ", ".join(name.split(" with ")[0] for name in found["loaders"]) if found else ""

    def row(kind, variants):
        says = lambda *options: "yes" if any(plan(directory, *options) for directory in variants) else ""  # noqa: E731
        # Some of the small models have other widths than multiples of a group.
        int4 = ("--scheme", "int4:channel" if kind in ODD else "int4:g32")
        runs = lambda algorithm: says(*int4, "--format", "fake", "--algorithm", algorithm)  # noqa: E731
        return (f"`{kind}`", runs("gptq"), runs("autoround"), loaders(variants[0], *int4), loaders(variants[0], "--scheme", "FP8_DYNAMIC"),
                says("--scheme", "Q8_0"))  # fmt: skip

    return [row(kind, variants) for kind, variants in sources(module_path("architectures")).items()]


def test_page_says_what_plans_say(rows):
    line = lambda cells: "| " + " | ".join(cells) + " |"  # noqa: E731
    written = TEXT + "\n".join([line(HEADER), "|---" * len(HEADER) + "|", *map(line, rows)]) + "\n"
    if "KVANT_UPDATE_DOCS" in os.environ:
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "KVANT_UPDATE_DOCS=1 pytest tests/interop/test_architectures.py writes it"


def test_at_least_three_quarters_of_the_architectures_are_calibrated(rows):
    assert len(rows) > 95 and sum(row[1] == "yes" for row in rows) >= 75
