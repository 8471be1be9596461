"""The functions on files: each does what its command does."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from conftest import weights

import kvant


def command_line(*arguments: object) -> str:
    run = subprocess.run([sys.executable, "-m", "kvant", *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_quantize_writes_what_the_command_writes(llama: Path, tmp_path: Path) -> None:
    report = kvant.quantize(llama, "int4_wo_128", output=tmp_path / "a", progress=False)
    command_line("quantize", llama, "--scheme", "int4_wo_128", "-o", tmp_path / "b")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert report.output == str(tmp_path / "a") == report.outputs[0]
    assert (report.format, report.quantized_layers) == ("quark", 28)
    assert report.schema == "kvant.quantize/1"
    assert 4 < report.bits_per_weight < 5
    assert report.output_bytes < report.source_bytes


def test_exclude_and_overrides_reach_the_recipe(llama: Path) -> None:
    plan = kvant.plan(
        llama, "int4:g128", exclude=["*.layers.0.*"], overrides={"*.down_proj": "int8:channel", "*.o_proj": "keep"}
    )
    assert plan.quantized_layers == 28 - 7 - 3
    same = kvant.plan(
        llama, "int4:g128", exclude="*.layers.0.*", override=["*.down_proj=int8:channel", "*.o_proj=keep"]
    )
    assert same.to_dict() == plan.to_dict()
    schemes = plan.to_pandas().astype(str)
    assert len(schemes) == len(plan.tensors)


def test_no_differs_from_nothing_where_an_option_takes_it() -> None:
    from kvant._run import _options, _primary

    given = {"model": "m", "symmetric": False, "weights_only": False, "per_channel": True, "seq_len": None}
    assert _options("plan", _primary("plan", given)) == ["--symmetric=no", "--per-channel", "--", "m"]


def test_several_formats_have_several_outputs(llama: Path, tmp_path: Path) -> None:
    report = kvant.quantize(llama, "int4:g128", format=["quark", "fake"], output=tmp_path / "out")
    assert sorted(Path(output).name for output in report.outputs) == ["fake", "quark"]
    assert all(Path(output).is_dir() for output in report.outputs)


def test_gguf_file_is_written_inspected_and_verified(llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.gguf"
    report = kvant.quantize(llama, "Q8_0", output=output, progress=False)
    assert output.exists() and report.format == "gguf"
    assert kvant.verify(output)
    found = kvant.inspect(output)
    assert "Q8_0" in found.types
    assert {"name", "shape"} <= set(found.to_pandas().columns)


def test_convert_keeps_the_codes(llama: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, "W4A16", output=tmp_path / "ct", progress=False)
    report = kvant.convert(tmp_path / "ct", "gptq", output=tmp_path / "gptq")
    assert (report.format, report.layers) == ("gptq", 28)
    assert kvant.verify(tmp_path / "gptq").passes


def test_evaluate_compares_with_the_reference(llama: Path, texts: list[str], tmp_path: Path) -> None:
    kvant.quantize(llama, "int4:g128", format="fake", output=tmp_path / "out", progress=False)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(texts))
    report = kvant.evaluate(tmp_path / "out", text, reference=llama, seq_len=64, progress=False)
    assert report.perplexity > 1 and report.kl_mean > 0
    assert len(report.to_pandas()) == 4
    for files in ([text], [str(text)]):
        listed = kvant.evaluate(tmp_path / "out", files, reference=llama, seq_len=64, progress=False)
        assert listed.perplexity == report.perplexity
    with pytest.raises(kvant.UsageError, match="data are 2 files"):
        kvant.evaluate(tmp_path / "out", [text, text], reference=llama, seq_len=64, progress=False)
    in_memory = kvant.evaluate(tmp_path / "out", texts, reference=llama, seq_len=64, progress=False)
    assert in_memory.perplexity == report.perplexity
    both = kvant.evaluate([tmp_path / "out", llama], texts, reference=llama, seq_len=64, progress=False)
    assert [row["perplexity"] for row in both.models] == [report.perplexity, report.reference_perplexity]
    assert len(both.to_pandas()) == 2


def test_verify_reports_findings_instead_of_raising(llama: Path) -> None:
    assert kvant.verify(llama, for_="vllm")
    report = kvant.verify(llama, for_="vllm", tensor_parallel=3)
    assert not report and not report.passes
    assert "tensor-parallel" in set(report.to_pandas()["check"])


def test_graph_is_quantized_evaluated_and_ranked(
    graph: Path, samples: dict[str, numpy.ndarray], tmp_path: Path
) -> None:
    output = tmp_path / "out.onnx"
    report = kvant.quantize(graph, "A8W8", data=samples, runtime="rten", output=output, progress=False)
    assert (report.format, report.output) == ("onnx", str(output))
    measured = kvant.evaluate(output, samples, reference=graph, runtime="rten", progress=False)
    assert measured.samples == len(next(iter(samples.values())))
    assert measured.outputs
    ranked = kvant.sensitivity(graph, "A8W8", data=samples, runtime="rten", progress=False)
    assert len(ranked.to_pandas()) == len(ranked.layers) > 1


def test_rejected_graph_raises_with_its_report(graph: Path, samples: dict[str, numpy.ndarray], tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    with pytest.raises(kvant.QualityError) as caught:
        kvant.quantize(graph, "A8W8", data=samples, min_sqnr=200, runtime="rten", output=output, progress=False)
    assert not output.exists()
    assert caught.value.report is not None and "quality" in caught.value.report.to_dict()


def test_reports_are_frozen_and_shown(llama: Path) -> None:
    report = kvant.inspect(llama)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.model = "other"  # type: ignore[misc]
    assert "<table>" in report._repr_html_()
    assert "LlamaForCausalLM" in str(report)
    copy = report.to_dict()
    copy["model"] = "other"
    assert report.to_dict()["model"] == report.model
    json.dumps(report.to_dict())


def test_html_escapes_names() -> None:
    from kvant._reports import report_of

    sections = [{"lines": [["<b>", "<i>"]]}, {"titles": ["<"], "rows": [["&"]]}, {"text": "<"}]
    shown = report_of("inspect", {"schema": "kvant.inspect/1"}, sections)._repr_html_()
    assert "&lt;b&gt;" in shown and "&lt;i&gt;" in shown and "&amp;" in shown and "<b>" not in shown
