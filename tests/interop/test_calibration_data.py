"""Calibration data: chat templates, truncation, windows and formats, against transformers, pyarrow and zstandard."""

import datetime
import gzip
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import safetensors.numpy
import transformers

import chat_templates
import models
from conftest import REPO, example

MANY = 100_000


@pytest.fixture(scope="module")
def calibration_data():
    """calibration_data(model, files, samples, length, packing) -> the object that kvant's example prints."""
    binary = example("calibration_data")

    def run(model, files, samples=MANY, length=4096, packing="natural"):
        command = [binary, model, samples, length, packing, *files]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def nano():
    return models.find_shared("nano_llama", REPO, os.environ.get("KVANT_MODELS"))


def with_tokenizer(nano, out, template=None, post_processor=None):
    """A directory with the tokenizer of the small model, changed."""
    out.mkdir()
    tokenizer = json.loads((nano / "tokenizer.json").read_text())
    tokenizer["post_processor"] = post_processor or tokenizer["post_processor"]
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((nano / "tokenizer_config.json").read_text())
    (out / "tokenizer_config.json").write_text(json.dumps(config | ({"chat_template": template} if template else {})))
    shutil.copy(nano / "config.json", out)
    return out


def rows(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


class Midnight(datetime.datetime):
    """The date that kvant tells to all templates."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def expected_conversation(tokenizer, conversation):
    """The tokens of a conversation; none where the template refuses it."""
    try:
        return tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=False)
    except Exception:  # What templates raise and what goes wrong in them is the same to a user.
        return None


@pytest.mark.parametrize("name", chat_templates.TEMPLATES)
def test_chat_rendering_matches_transformers(name, calibration_data, nano, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Midnight)
    model = with_tokenizer(nano, tmp_path / "model", chat_templates.TEMPLATES[name])
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    expected = [expected_conversation(tokenizer, conversation) for conversation in chat_templates.CONVERSATIONS]
    data = rows(tmp_path / "a.jsonl", [{"messages": conversation} for conversation in chat_templates.CONVERSATIONS])
    ours = calibration_data(model, [data])
    decode = tokenizer.batch_decode
    assert decode(ours["sequences"]) == decode([tokens for tokens in expected if tokens])
    assert ours["sequences"] == [tokens for tokens in expected if tokens]
    assert ours["provenance"]["files"][0]["skipped"].get("refused", 0) == expected.count(None)


def text_at_hand():
    found = pathlib.Path(os.environ.get("KVANT_CALIBRATION_TEXT", REPO.parent / "shared" / "text" / "calibration.txt"))
    return found.read_text()[:300_000] if found.exists() else (REPO / "ARCHITECTURE.md").read_text() * 5


@pytest.mark.parametrize("name", ("nano_llama", "nano_qwen3", "nano_gemma2", "small"))
def test_text_is_cut_into_windows(name, calibration_data, tmp_path):
    model = models.find_shared(name, REPO, os.environ.get("KVANT_MODELS")) or pytest.skip(f"{name} is not at hand")
    (tmp_path / "a.txt").write_text(text_at_hand())
    tokens = transformers.AutoTokenizer.from_pretrained(model)(text_at_hand()).input_ids
    windows = [tokens[start : start + 512] for start in range(0, len(tokens) - 511, 512)]
    assert calibration_data(model, [tmp_path / "a.txt"], length=512)["sequences"] == windows
    assert calibration_data(model, [tmp_path / "a.txt"], 3, 512)["sequences"] == windows[:3]


FRAME = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "!", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "&", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"!": {"id": "!", "ids": [1], "tokens": ["!"]}, "&": {"id": "&", "ids": [6], "tokens": ["&"]}},
}  # fmt: skip


@pytest.mark.parametrize("length", (1, 2, 3, 8, 100, 4096))
@pytest.mark.parametrize("post_processor", (None, FRAME), ids=("bare", "framed"))
def test_truncation_matches_transformers(length, post_processor, calibration_data, nano, tmp_path):
    model = with_tokenizer(nano, tmp_path / "model", post_processor=post_processor)
    texts = [line for line in text_at_hand().splitlines() if line][:200]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    if post_processor and length < 2:
        pytest.skip("transformers refuses lengths below that of the special tokens")
    expected = tokenizer(texts, truncation=True, max_length=length).input_ids
    ours = calibration_data(model, [rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])], length=length)
    assert ours["sequences"] == expected


@pytest.mark.parametrize("length", (1, 7, 128))
def test_joined_rows_are_cut_into_windows(length, calibration_data, nano, tmp_path):
    model = with_tokenizer(nano, tmp_path / "model", post_processor=FRAME)
    texts = [line for line in text_at_hand().splitlines() if line][:200]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    joined = [token for text in texts for token in tokenizer(text).input_ids]
    expected = [joined[start : start + length] for start in range(0, len(joined) - length + 1, length)]
    data = rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    assert calibration_data(model, [data], 9, length, "concatenate")["sequences"] == expected[:9]
    assert calibration_data(model, [data], MANY, length, "concatenate")["sequences"] == expected


def table():
    """Conversations with all that pyarrow has several encodings for: repeated, empty and missing texts, nested lists."""
    random, words = np.random.default_rng(0), "alpha beta gamma delta epsilon".split()
    say = lambda: " ".join(random.choice(words, random.integers(0, 30)))  # noqa: E731
    return [
        {
            "id": i,
            "messages": [{"role": ("user", "assistant")[k % 2], "content": say() or "-"} for k in range(random.integers(1, 9))],
            "text": [say(), "the same", "", None][random.integers(0, 4)],
        }
        for i in range(3000)
    ]


@pytest.mark.parametrize("options", (
    {}, {"compression": "none"}, {"compression": "gzip"}, {"compression": "zstd", "use_dictionary": False},
    {"data_page_version": "2.0"}, {"row_group_size": 100, "data_page_size": 1000}, {"version": "1.0", "compression": "zstd"},
), ids=str)  # fmt: skip
def test_parquet_tables_read_back(options, calibration_data, nano, tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    written = table()
    parquet.write_table(pyarrow.Table.from_pylist(written), tmp_path / "a.parquet", **options)
    expected = calibration_data(nano, [rows(tmp_path / "a.jsonl", written)])
    ours = calibration_data(nano, [tmp_path / "a.parquet"])
    assert ours["sequences"] == expected["sequences"] and len(ours["sequences"]) == 3000
    texts = [{"text": row["text"]} for row in written]
    parquet.write_table(pyarrow.Table.from_pylist(texts), tmp_path / "b.parquet", **options)
    expected = calibration_data(nano, [rows(tmp_path / "b.jsonl", texts)])
    ours = calibration_data(nano, [tmp_path / "b.parquet"])
    assert ours["sequences"] == expected["sequences"]
    assert ours["provenance"]["files"][0]["skipped"] == expected["provenance"]["files"][0]["skipped"]


def test_compressed_files_read_back(calibration_data, nano, tmp_path):
    zstandard = pytest.importorskip("zstandard")
    plain = rows(tmp_path / "a.jsonl", table())
    compressors = [zstandard.ZstdCompressor(level=level, write_checksum=True) for level in (1, 19)]
    for k, compressor in enumerate(compressors):
        (tmp_path / f"a{k}.jsonl.zst").write_bytes(compressor.compress(plain.read_bytes()))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    expected = calibration_data(nano, [plain])["sequences"]
    for name in ("a0.jsonl.zst", "a1.jsonl.zst", "a.jsonl.gz"):
        assert calibration_data(nano, [tmp_path / name])["sequences"] == expected


@pytest.mark.parametrize("dtype", ("int64", "int32", "uint16", "uint32", ">i4"))
def test_arrays_read_back(dtype, calibration_data, nano, tmp_path):
    tokens = np.random.default_rng(0).integers(0, 2048, (7, 33)).astype(dtype)
    np.save(tmp_path / "two.npy", tokens)
    np.save(tmp_path / "one.npy", tokens.reshape(-1))
    assert calibration_data(nano, [tmp_path / "two.npy"])["sequences"] == tokens.tolist()
    assert calibration_data(nano, [tmp_path / "one.npy"], length=33)["sequences"] == tokens.tolist()
    if not dtype.startswith(">"):
        mask = (np.arange(33) >= np.arange(7)[:, None]).astype("int64")
        safetensors.numpy.save_file({"input_ids": tokens, "attention_mask": mask}, tmp_path / "a.safetensors")
        assert calibration_data(nano, [tmp_path / "a.safetensors"])["sequences"] == [row[k:] for k, row in enumerate(tokens.tolist())]
