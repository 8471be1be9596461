"""GGUF files in several parts, as gguf-py splits them: read as the whole model."""

import gguf
import pytest
from gguf import GGUFValueType


def split(whole, directory, tensors):
    """The model in parts of so many tensors; the path of the first."""
    reader = gguf.GGUFReader(whole)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(directory / "part.gguf", architecture, split_max_tensors=tensors)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, inner = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(directory.glob("part-*.gguf"))


@pytest.fixture
def whole(kvant, model_dir, tmp_path):
    done = kvant("quantize", model_dir("nano_llama"), "--scheme", "Q8_0", "-o", tmp_path / "whole.gguf")
    assert done.returncode == 0, done.stderr
    return tmp_path / "whole.gguf"


def test_parts_are_read_as_the_model(kvant, whole, tmp_path):
    parts = split(whole, tmp_path, 10)
    assert len(parts) > 2
    outputs = []
    for source in (whole, parts[0], parts[1]):
        out = tmp_path / f"{source.stem}-float"
        done = kvant("convert", source, "--to", "float", "-o", out)
        assert done.returncode == 0, done.stderr
        outputs.append((out / "model.safetensors").read_bytes())
    assert outputs[1:] == outputs[:1] * 2


def test_a_model_in_parts_becomes_one_file(kvant, whole, tmp_path):
    parts = split(whole, tmp_path, 10)
    outputs = []
    for source in (whole, parts[0]):
        out = tmp_path / f"{source.stem}-q4.gguf"
        done = kvant("quantize", source, "--scheme", "Q4_0", "--requantize", "-o", out)
        assert done.returncode == 0, done.stderr
        outputs.append({t.name: (t.tensor_type, t.data.tobytes()) for t in gguf.GGUFReader(out).tensors})
        assert not [name for name in gguf.GGUFReader(out).fields if name.startswith("split.")]
    assert outputs[0] == outputs[1]


def test_missing_and_misnamed_parts_are_named(kvant, whole, tmp_path):
    parts = split(whole, tmp_path, 10)
    done = kvant("quantize", parts[0], "--scheme", "Q4_0", "--requantize", "-o", parts[1], "--overwrite")
    assert done.returncode != 0
    assert "part of the source" in done.stderr, done.stderr
    before = parts[1].read_bytes()
    parts[1].rename(tmp_path / "elsewhere.gguf")
    done = kvant("inspect", parts[0])
    assert done.returncode != 0
    assert parts[1].name in done.stderr
    done = kvant("verify", tmp_path / "elsewhere.gguf")
    assert done.returncode == 1
    assert "part 2 of" in done.stdout + done.stderr
    assert (tmp_path / "elsewhere.gguf").read_bytes() == before
