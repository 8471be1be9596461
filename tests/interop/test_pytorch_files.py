"""Checkpoints that torch.save wrote: the same output as of safetensors, bit for bit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

MODELS = ["nano_llama", "llama_tied", "gpt_neox", "nano_mixtral"]


def of_pytorch(source, directory, *, files=1, zipped=True):
    """The checkpoint with its weights in files of PyTorch."""
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json"))
    state = {}
    for file in sorted(source.glob("*.safetensors")):
        state |= load_file(file)
    names = list(state)
    if files == 1:
        torch.save(state, directory / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        return directory
    weight_map = {}
    for number in range(files):
        file = f"pytorch_model-{number + 1:05}-of-{files:05}.bin"
        part = {name: state[name] for name in names[number::files]}
        torch.save(part, directory / file, _use_new_zipfile_serialization=zipped)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return directory


def weights(directory):
    """Types, shapes and bytes by name. The order in a file follows from that of the source."""
    tensors = {}
    for file in directory.glob("*.safetensors"):
        tensors |= load_file(file)
    return {name: (t.dtype, t.shape, t.contiguous().view(torch.uint8).numpy().tobytes()) for name, t in tensors.items()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("files", "zipped"), [(1, True), (1, False), (2, True)])
def test_output_is_that_of_safetensors(kvant, model_dir, quantized, tmp_path, model, files, zipped):
    source = of_pytorch(model_dir(model), tmp_path / "source", files=files, zipped=zipped)
    done = kvant("quantize", source, "--scheme", "int4:g32", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    expected = weights(quantized(model, "int4:g32"))
    assert weights(tmp_path / "out") == expected
    assert not list((tmp_path / "out").glob("*.bin*")), "the float weights are not carried along"


def test_evaluation_reads_them(kvant, model_dir, tmp_path):
    source = of_pytorch(model_dir("nano_llama"), tmp_path / "source")
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    results = []
    for directory in (model_dir("nano_llama"), source):
        done = kvant("eval", directory, "--data", text, "--json")
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout)["perplexity"])
    assert results[0] == results[1]


def test_tied_tensors_and_parameters_of_a_module(kvant, tmp_path, model_dir):
    """What model.state_dict() holds: tied tensors under both names."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir("llama_tied"), dtype=torch.float32)
    source, other = tmp_path / "source", tmp_path / "other"
    model.config.save_pretrained(source)
    torch.save(model.state_dict(), source / "pytorch_model.bin")
    model.save_pretrained(other)
    outputs = []
    for directory in (source, other):
        out = tmp_path / f"{directory.name}-mxfp4"
        done = kvant("quantize", directory, "--scheme", "mxfp4", "-o", out)
        assert done.returncode == 0, done.stderr
        outputs.append(out)
    first, second = map(weights, outputs)
    assert second.items() <= first.items()


def test_programs_are_refused_and_not_run(kvant, model_dir, tmp_path):
    class Program:
        def __reduce__(self):
            import pathlib

            return pathlib.Path.touch, (tmp_path / "was-run",)

    source = of_pytorch(model_dir("nano_llama"), tmp_path / "source")
    state = torch.load(source / "pytorch_model.bin")
    torch.save(state | {"x": Program()}, source / "pytorch_model.bin")
    done = kvant("quantize", source, "--scheme", "int4:g32", "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "of Python" in done.stderr
    assert "safetensors" in done.stderr
    assert not (tmp_path / "was-run").exists()
    assert not (tmp_path / "out").exists()


def test_sources_change_places(kvant, model_dir, tmp_path):
    """Safetensors beside files of PyTorch count alone."""
    source = of_pytorch(model_dir("nano_llama"), tmp_path / "source")
    tensors = load_file(model_dir("nano_llama") / "model.safetensors")
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    (source / "pytorch_model.bin").write_bytes(b"damaged")
    done = kvant("quantize", source, "--scheme", "int4:g32", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
