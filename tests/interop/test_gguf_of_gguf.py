"""GGUF files made of GGUF files as llama.cpp makes them, and NVFP4 in them as gguf-py and llama.cpp read it."""

import numpy as np
import pytest
from safetensors.torch import load_file

gguf = pytest.importorskip("gguf")

from test_gguf import dequantized, llama, trained, write  # noqa: E402, F401 (fixtures)
from test_gguf_source import converted, evaluated, llama_perplexity, text, windows  # noqa: E402, F401 (fixtures)

# LLAMA_FTYPE_MOSTLY_* of the mixes.
MIXES = {"Q4_K_M": 15, "Q4_0": 2}


def fields(reader):
    return {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}


@pytest.mark.parametrize(("name", "source"), (("nano_llama", "BF16"), ("nano_llama", "Q8_0"), ("nano_mixtral", "Q8_0")))
def test_types_and_metadata_match_llama_quantize(name, source, llama, write, kvant, tmp_path):  # noqa: F811
    path = write(trained(name), source)
    options = () if source == "BF16" else ("--requantize",)
    for mix, number in MIXES.items():
        ours, theirs = tmp_path / f"{mix}.gguf", tmp_path / f"{mix}-llama.gguf"
        done = kvant("quantize", path, "--scheme", mix, "-o", ours, *options)
        assert done.returncode == 0, done.stderr
        parameters = llama.llama_model_quantize_default_params()
        parameters.ftype, parameters.allow_requantize, parameters.nthread = number, bool(options), 1
        assert llama.llama_model_quantize(str(path).encode(), str(theirs).encode(), parameters) == 0
        ours, theirs = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)
        assert fields(ours) == fields(theirs)
        kinds = [{t.name: t.tensor_type.name for t in reader.tensors} for reader in (ours, theirs)]
        assert kinds[0] == kinds[1], mix
        if mix == "Q4_0":
            # The one type of these whose blocks follow a formula: they are the same where both quantize.
            made, other = ({t.name: t for t in reader.tensors} for reader in (ours, theirs))
            assert all(np.array_equal(made[n].data, other[n].data) for n, kind in kinds[0].items() if kind == "Q4_0")


def test_gguf_converts_to_itself(write, converted):  # noqa: F811
    for mix in ("BF16", "Q4_1", "IQ4_NL", "Q4_K_M"):
        path = write(trained("nano_mixtral"), mix)
        assert converted(path, "gguf").read_bytes() == path.read_bytes(), mix


def test_requantize_is_required_for_quantized_gguf(write, kvant, tmp_path):  # noqa: F811
    done = kvant("quantize", write(trained("nano_llama"), "Q8_0"), "--scheme", "Q4_0", "-o", tmp_path / "out.gguf")
    assert done.returncode == 1 and "--requantize" in done.stderr and "Q8_0 already" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "layout", "options"), (
    ("nano_llama", "quark", ()), ("nano_qwen3", "compressed-tensors", ("--requantize",)), ("nano_mixtral", "quark", ())))  # fmt: skip
def test_nvfp4_gguf_matches_the_checkpoint(name, layout, options, llama, kvant, converted, evaluated, text, tmp_path):  # noqa: F811
    directory, made = trained(name), tmp_path / "quantized"
    done = kvant("quantize", directory, "--scheme", "e2m1:g16:e4m3:f32", "--format", layout, "-o", made)
    assert done.returncode == 0, done.stderr
    path = converted(made, "gguf", *options)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert tensors["blk.1.attn_v.weight"].tensor_type.name == "NVFP4"
    expected = load_file(converted(made, "float", "--dtype", "f32") / "model.safetensors")
    for module, stem in (("v_proj", "attn_v"), ("o_proj", "attn_output")):
        found = dequantized(tensors[f"blk.1.{stem}.weight"]) * tensors[f"blk.1.{stem}.scale"].data[0]
        # gguf-py multiplies the scale of the tensor last.
        assert np.allclose(found, expected[f"model.layers.1.self_attn.{module}.weight"].numpy(), rtol=2e-7, atol=0)
    said = evaluated(made)["perplexity"]
    assert evaluated(path)["perplexity"] == pytest.approx(said, rel=1e-4)
    assert llama_perplexity(llama, path, windows(directory, text)) == pytest.approx(said, rel=0.01)
