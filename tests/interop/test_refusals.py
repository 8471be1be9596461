"""What kvant must refuse: exit status 1 (2 for wrong usage: missing data, unknown names), a message with a hint, and nothing left behind."""

import pytest

from schemes import STATIC, STATIC_BROKEN


def refused(kvant, tmp_path, *arguments, status=1):
    out = tmp_path / "out"
    done = kvant("quantize", *arguments, "-o", out)
    assert done.returncode == status, (done.returncode, done.stderr)
    assert "hint:" in done.stderr and not out.exists()
    return done.stderr


@pytest.mark.parametrize("scheme", STATIC_BROKEN)
def test_scheme_that_no_loader_reads_is_refused(scheme, kvant, model_dir, tmp_path):
    message = refused(kvant, tmp_path, model_dir("nano_llama"), "--scheme", scheme)
    assert "no known loader" in message and "--no-verify" in message


@pytest.mark.parametrize("scheme", STATIC)
def test_static_activations_need_calibration(scheme, kvant, model_dir, tmp_path):
    message = refused(kvant, tmp_path, model_dir("nano_llama"), "--scheme", scheme, status=2)
    assert "--weights-only" in message


def test_group_that_does_not_divide_is_refused(kvant, model_dir, tmp_path):
    assert "128" in refused(kvant, tmp_path, model_dir("odd_llama"), "--scheme", "int4_wo_128")


def test_unknown_scheme_is_refused(kvant, model_dir, tmp_path):
    assert "int4_wo_127" in refused(kvant, tmp_path, model_dir("nano_llama"), "--scheme", "int4_wo_127", status=2)


@pytest.mark.parametrize("scheme", ("amdfp4", "uint4_wo_128", "int4_fp8", "mxfp6_e3m2"))
def test_layout_that_cannot_hold_the_scheme_is_refused(scheme, kvant, model_dir, tmp_path):
    refused(kvant, tmp_path, model_dir("nano_llama"), "--scheme", scheme, "--format", "compressed-tensors")


def test_missing_model_is_refused(kvant, tmp_path):
    refused(kvant, tmp_path, tmp_path / "nowhere", "--scheme", "int4_wo_128", status=2)


def test_existing_output_is_kept(kvant, model_dir, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("kept")
    done = kvant("quantize", model_dir("nano_llama"), "--scheme", "int4_wo_128", "-o", tmp_path / "out")
    assert done.returncode == 1 and "--overwrite" in done.stderr
    assert (tmp_path / "out" / "precious").read_text() == "kept"
