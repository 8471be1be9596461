"""docs/reference/architectures.md, as plans of small models say it, and transformers of those that no loader is named for.
KVANT_UPDATE_DOCS writes it."""

import json
import os

import pytest
import torch

import encoder_decoder_models
import encoder_models
import forward_models
import speech_models
import test_encoder_decoders
import test_encoders
import test_image_encoders
import test_loader_names
import test_mlx
import test_sglang
import test_speech
import test_vllm
import undescribed_models
import vision_models
from conftest import REPO
from test_gguf import FAMILIES, UNLOADABLE, byte_tokenizer

PAGE = REPO / "docs" / "reference" / "architectures.md"
ODD = ("falcon_mamba", "mamba", "mamba2")
TEXT = """# Architectures

What plans say of small models of each described architecture (`model_type` in config.json), and which interop tests run them. The page is
written by `tests/interop/test_architectures.py`.

* **Outputs**: what the model is shown where its outputs equal those of transformers in f32, to 1e-4 of the largest (`test_forward.py`,
  `test_encoders.py`, `test_encoder_decoders.py`, `test_image_encoders.py`, `test_images_in_text.py`, `test_speech.py`).
* **Calibration**: algorithms with calibration data, static activations and `kvant eval`.
* **Algorithms**: what runs besides roundings, which all run where calibration does: AWQ and SmoothQuant need pairs of layers between
  which scales move, AutoRound gradients, and `rotate` a residual stream that can be rotated.
* **int4**, **FP8**: what is known to load `int4:g32` and `FP8_DYNAMIC` in compressed-tensors' layout. Other layouts: `kvant plan`. A loader
  that is not named refuses the layout for this architecture, or was not tried with it: `kvant verify --for LOADER` says which.
* **Formats**: other layouts of 4-bit integers that can be written: Quark's, GPTQ's, AWQ's, MLX's, an ONNX graph, GGUF.
* **Loaders run**: what has loaded small quantized models of the architecture in the tests, or refused them as `kvant verify --for LOADER` says.

"""
UNDESCRIBED = """
## Other architectures

Linear layers of architectures without a description are recognized by shape and name, and quantized without calibration, and `kvant plan`
names no loader for them. Of language models with towers the language model is described. The table shows what transformers loads of small
models, with all weights as Kvant meant them; classes that read the float weight of a layer as they are loaded raise an error for packed
codes.

`tests/interop/count_architectures.py` quantizes small models of 104 architectures to INT4 (groups of 32) and to FP8_DYNAMIC in compressed-tensors' layout
and loads them in transformers 5.23: INT4 loads with the weights meant and no key missing in 81, FP8 in 97. Of the other seven, transformers 5.16 loads
DINOv2 (5.23 raises an error while it converts names, without a gated feed-forward network), vLLM's loaders read the experts of Gemma 4, Mistral 4 and Qwen3-VL in one tensor, ResNet is written
in Quark's layout and as floats on the grid, and Zamba2 and MiniMax M3's language model alone are refused with the reason.

"""
HEADER = ("architecture", "outputs", "calibration", "algorithms", "int4", "FP8", "formats", "loaders run")
# Layouts beside compressed-tensors', with schemes of 4-bit integers that they hold.
FORMATS = {"quark": "int4:g32", "gptq": "int4:g32", "awq": "uint4:g32:zp", "mlx": "int4:g32:zp", "onnx": "int4:g32"}
# The models of which each loader has cases.
RUN = {
    "transformers": [*test_loader_names.SUPPORT, *test_encoders.QUANTIZED, *test_image_encoders.QUANTIZED, *test_encoder_decoders.QUANTIZED,
                     *test_speech.QUANTIZED],
    "vLLM": test_vllm.CASES,
    "SGLang": test_sglang.CASES,
    "mlx-lm": test_mlx.CASES,
    "llama.cpp": [(name,) for name in FAMILIES if name not in UNLOADABLE],
}
RUN = {loader: {name for name, *_ in cases} for loader, cases in RUN.items()}
# What the models of each module are shown.
SHOWN = [(forward_models, forward_models.MODELS, "text"), (encoder_models, encoder_models.MODELS, "text"), (encoder_models, encoder_models.IMAGE_MODELS, "images"),
         (encoder_decoder_models, encoder_decoder_models.MODELS, "text"), (vision_models, vision_models.MODELS, "text with images"), (speech_models, speech_models.MODELS, "sounds")]  # fmt: skip
ALGORITHMS = ("awq", "smoothquant", "autoround", "rotate")


def sources(root):
    """The directories of the models of each architecture, and what they are shown."""
    found, shown = {}, {}
    for module, names, what in SHOWN:
        for kind in saved(module, names, root, {}, found):
            shown.setdefault(kind, what)
    return [(kind, directories, shown[kind]) for kind, directories in sorted(found.items())]


def saved(module, names, root, *maps):
    for name in names:
        directory = module.save(name, root / name)
        config = json.loads((directory / "config.json").read_text())
        # GGUF files hold one.
        if not (directory / "tokenizer.json").exists() and (vocabulary := config.get("text_config", config).get("vocab_size")):
            byte_tokenizer(vocabulary).save(str(directory / "tokenizer.json"))
        for found in maps:
            found.setdefault(config["model_type"], []).append(directory)
    return maps[0]


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

    def row(kind, variants, shown):
        says = lambda *options: "yes" if any(plan(directory, *options) for directory in variants) else ""  # noqa: E731
        of_all = [*variants, *of_llama_cpp.get(kind, [])]
        in_gguf = ["GGUF"] if any(plan(directory, "--scheme", "F16", "--format", "gguf") for directory in of_all) else []
        # Some of the small models have other widths than multiples of a group.
        int4 = ("--scheme", "int4:channel" if kind in ODD else "int4:g32")
        runs = lambda algorithm: says(*int4, "--format", "fake", "--algorithm", algorithm)  # noqa: E731
        algorithms = ", ".join(name for name in ALGORITHMS if runs(name))
        formats = [name for name, scheme in FORMATS.items() if kind not in ODD and plan(variants[0], "--scheme", scheme, "--format", name)]
        ran = [loader for loader, names in RUN.items() if names & {directory.name for directory in of_all}]
        return (f"`{kind}`", shown, runs("gptq"), algorithms, loaders(variants[0], *int4), loaders(variants[0], "--scheme", "FP8_DYNAMIC"),
                ", ".join(formats + in_gguf), ", ".join(ran))  # fmt: skip

    of_llama_cpp = saved(forward_models, forward_models.FOR_LLAMA_CPP, module_path("of_llama_cpp"), {})
    return [row(*source) for source in sources(module_path("architectures"))]


@pytest.fixture(scope="module")
def loaded(kvant, module_path):
    root = module_path("undescribed")

    def loads(name, scheme):
        model = undescribed_models.save(name, root / name)
        for layout in ("compressed-tensors", "fake"):
            done = kvant("quantize", model, "--scheme", scheme, "--format", layout, "--overwrite", "-o", root / layout)
            # Classes that read float weights as they are made.
            if layout == "compressed-tensors" and done.returncode == 1 and "raises where codes are packed" in done.stderr:
                return ""
            assert done.returncode == 0, done.stderr
        meant, found = undescribed_models.weights(root / "fake"), undescribed_models.weights(root / "compressed-tensors")
        assert meant.keys() <= found.keys(), name
        # The fake export is rounded to bf16.
        wrong = [key for key, weight in meant.items() if not torch.allclose(found[key], weight, rtol=1e-2, atol=1e-6)]
        assert not wrong, (name, scheme, wrong)
        return "loads"

    return [(f"`{name}`", loads(name, "int4:g32"), loads(name, "FP8_DYNAMIC")) for name in sorted(undescribed_models.MODELS)]


def table(header, rows):
    line = lambda cells: "| " + " | ".join(cells) + " |\n"  # noqa: E731
    return line(header) + "|---" * len(header) + "|\n" + "".join(map(line, rows))


def test_page_says_what_plans_and_transformers_say(rows, loaded):
    written = TEXT + table(HEADER, rows) + UNDESCRIBED + table(("architecture", "int4", "FP8"), loaded)
    if "KVANT_UPDATE_DOCS" in os.environ:
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "KVANT_UPDATE_DOCS=1 pytest tests/interop/test_architectures.py writes it"


def test_at_least_three_quarters_of_the_architectures_are_calibrated(rows):
    assert len(rows) > 95 and sum(row[2] == "yes" for row in rows) >= 75
