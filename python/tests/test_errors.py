"""Errors: classes, remedies, and settings spelled as keyword arguments."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import kvant


def test_unknown_keyword_is_a_type_error(llama: Path) -> None:
    with pytest.raises(TypeError, match="colour"):
        kvant.plan(llama, "int4:g128", colour="red")  # type: ignore[call-arg]


def test_two_keywords_of_one_meaning_are_a_type_error(llama: Path) -> None:
    with pytest.raises(TypeError, match="same meaning"):
        kvant.plan(llama, "int4:g128", preset="int4:g64")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_samples": [1]}, "num_samples"),
        ({"symmetric": 1.5}, "float"),
        ({"weights_only": "yes"}, "True or False"),
        ({"exclude": 7}, "list of strings"),
    ],
)
def test_values_of_wrong_types_are_refused(llama: Path, options: dict, match: str) -> None:
    with pytest.raises((TypeError, kvant.UsageError)):
        kvant.plan(llama, "int4:g128", **options)


def test_unknown_scheme_is_a_usage_error_with_a_remedy(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(kvant.UsageError) as caught:
        kvant.quantize(llama, "int4:g129x", output=tmp_path / "out")
    error = caught.value
    assert error.kind == "usage" and "int4:g129x" in error.message and error.remedy
    assert "hint: " in str(error)


def test_missing_data_name_the_keyword(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(kvant.KvantError) as caught:
        kvant.quantize(llama, "fp8", output=tmp_path / "out")
    error = caught.value
    assert "data=" in error.remedy and "--" not in error.remedy and "‹" not in str(error)
    assert "weights_only=True" in error.remedy
    assert error.remedies[0]["setting"] == "calib"
    assert "--" not in error.remedies[0]["text"]


def test_values_out_of_range_name_the_keyword(llama: Path) -> None:
    with pytest.raises(kvant.UsageError, match="threads=") as caught:
        kvant.plan(llama, "int4:g128", threads=0)
    assert "--" not in str(caught.value)


def test_missing_output_is_a_type_error(llama: Path) -> None:
    with pytest.raises(TypeError, match="output"):
        kvant.quantize(llama, "int4:g128")  # type: ignore[call-arg]


def test_missing_scheme_names_the_keyword(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(kvant.UsageError, match="scheme="):
        kvant.quantize(llama, output=tmp_path / "out")


def test_invalid_and_unsupported_models_are_distinguished(tmp_path: Path) -> None:
    damaged = tmp_path / "a.safetensors"
    damaged.write_bytes(b"\xff" * 64)
    with pytest.raises(kvant.InvalidError) as caught:
        kvant.inspect(damaged)
    assert isinstance(caught.value, ValueError) and caught.value.kind == "invalid"


def test_errors_survive_pickling(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(kvant.KvantError) as caught:
        kvant.quantize(llama, "fp8", output=tmp_path / "out")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert (copy.message, copy.remedy, copy.kind) == (caught.value.message, caught.value.remedy, caught.value.kind)


def test_commands_in_remedies_stay_commands() -> None:
    from kvant import _kvant

    text = "use ‹to› float, ‹weights-only› or `kvant eval ‹reference›`; --num-samples N is no --merge"
    assert _kvant.spelled("convert", text) == (
        "use to=float, weights_only=True or `kvant eval --reference`; --num-samples N is no --merge"
    )
    assert _kvant.spelled("quantize", "give a text with ‹calib› FILE") == "give a text with data=FILE"
