"""AdaRound and AdaQuant of graphs: what they gain on a trained network, beside Quark's with the same data and iterations.

The network is not part of the repository; where it is not at hand (see `models.shared_directories`) the tests are skipped. The
gradients are compared with torch's in `crates/onnx/src/algorithm/samples/tests.rs`.
"""

import json
import os

import pytest

import models
import onnx_oracle
from conftest import REPO

NET = "digits_resnet"
ITERATIONS = 300
ALGORITHMS = ("adaround", "adaquant")
# dB that an algorithm must gain over the nearest codes: four bits leave it more to do than eight.
GAINS = {("A8W8", "adaround"): 1.0, ("A8W8", "adaquant"): 0.5, ("A8W4", "adaround"): 3.0, ("A8W4", "adaquant"): 0.5}
# dB that are left to chance: samples come in another order than in Quark.
SLACK = 0.5


@pytest.fixture(scope="module")
def digits():
    for root in models.shared_directories(REPO, os.environ.get("KVANT_MODELS")):
        if (root / "digits" / "calib.npz").exists():
            return root / "digits"
    pytest.skip("the digits are not at hand")


@pytest.fixture(scope="module")
def quantized(kvant_onnx, digits, module_path):
    root = module_path("reconstruction")

    def run(preset, algorithm=None, *options):
        asked = ("--algorithm", f"{algorithm}:num_iterations={ITERATIONS}:early_stop=off") if algorithm else ()
        name = "-".join([preset, algorithm or "plain", *(o.strip("-").replace("/", "_") for o in options)])
        return kvant_onnx(digits / f"{NET}.onnx", preset, digits / "calib.npz", root / f"{name}.onnx", *asked, *options)

    return run


def sqnr(digits, model):
    return min(onnx_oracle.sqnr(digits / f"{NET}.onnx", model, digits / "test.npz").values())


@pytest.mark.parametrize("preset", ("A8W8", "A8W4"))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reconstruction_improves_held_out_outputs(quantized, digits, preset, algorithm):
    plain, tuned = sqnr(digits, quantized(preset)), sqnr(digits, quantized(preset, algorithm))
    print(f"{NET} {preset} {algorithm}: {plain:.2f} -> {tuned:.2f} dB")
    assert tuned >= plain + GAINS[preset, algorithm]


@pytest.mark.parametrize("option", ("drop_ratio=0.5", "selective_update=on"))
def test_model_level_options_keep_the_gain(quantized, digits, option):
    plain, tuned = sqnr(digits, quantized("A8W4")), sqnr(digits, quantized("A8W4", f"adaround:{option}"))
    print(f"{NET} A8W4 adaround:{option}: {plain:.2f} -> {tuned:.2f} dB")
    assert tuned >= plain + GAINS["A8W4", "adaround"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sqnr_is_no_lower_than_quark(quantized, incumbent, digits, algorithm):
    theirs = sqnr(digits, incumbent("quark", f"A8W8+{algorithm}={ITERATIONS}", digits / f"{NET}.onnx", digits / "calib.npz"))
    ours = sqnr(digits, quantized("A8W8", algorithm))
    print(f"{NET} A8W8 {algorithm}: kvant {ours:.2f}, quark {theirs:.2f} dB")
    assert ours >= theirs - SLACK


def test_no_layer_gets_worse_and_threads_change_nothing(quantized, digits, tmp_path):
    report = tmp_path / "report.json"
    one = quantized("A8W4", "adaround", "--threads", "1", "--report", str(report))
    gains = json.loads(report.read_text())["report"]["gains"]
    assert len(gains) == 7 and all(gain["loss_after"] <= gain["loss_before"] for gain in gains)
    assert sum(gain["loss_after"] < gain["loss_before"] for gain in gains) >= 6
    assert one.read_bytes() == quantized("A8W4", "adaround", "--threads", "2").read_bytes()


# dB that blocks learned together must gain over the codes that they begin with, on pictures that were not calibrated on.
LEARNED = {"": 5.0, "gptq": 1.0, "adaround": 0.0}


@pytest.mark.parametrize("codes", LEARNED)
def test_learned_blocks_improve_held_out_outputs(quantized, digits, tmp_path, codes):
    report = tmp_path / "report.json"
    asked = [name for name in (codes, "autoround") if name]
    start = sqnr(digits, quantized("A8W4", None, *(("--algorithm", codes) if codes else ())))
    learned = sqnr(digits, quantized("A8W4", None, "--algorithm", ",".join(asked), "--report", str(report)))
    print(f"{NET} A8W4 {codes or 'nearest'}: {start:.2f}, learned {learned:.2f} dB")
    assert learned >= start + LEARNED[codes]
    found = json.loads(report.read_text())["report"]
    # A stem, three residual blocks and a head.
    assert "not_learned" not in found and max(len(block["layers"]) for block in found["learned_blocks"]) > 1
    assert all(block["loss_after"] <= block["loss_before"] for block in found["learned_blocks"])


def test_searched_scales_lose_less_of_a_network_with_filters_of_different_sizes(kvant_onnx, digits, tmp_path):
    net, calib = digits / "digits_mobilenet.onnx", digits / "calib.npz"
    options = ("--weight", "int4", "--per-channel", "--equalize")

    def made(name, *more):
        out = kvant_onnx(net, "A8W8", calib, tmp_path / f"{name}.onnx", *options, *more)
        return min(onnx_oracle.sqnr(net, out, digits / "test.npz").values())

    plain, searched = made("plain"), made("searched", "--scales", "search")
    print(f"digits_mobilenet A8W8, int4 weights: {plain:.2f}, searched scales {searched:.2f} dB")
    assert searched >= plain + 0.5
