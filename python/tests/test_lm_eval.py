"""lm-evaluation-harness on tasks in local files: float models score as with `--model hf`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvant

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
pytest.importorskip("torch")

TASKS = {
    "local_choice": """
task: local_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: 1
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "local_perplexity": """
task: local_perplexity
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{long}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
""",
    "local_generation": """
task: local_generation
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "the"
generation_kwargs: {until: [".", "\\n\\n"], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
WORDS = "the iterator yields every element of a list and returns an option with its value when it is done".split()


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A directory with tasks whose data are beside them."""
    rows = []
    for n in range(10):
        words = [WORDS[(n * 7 + i * (n + 1)) % len(WORDS)] for i in range(160)]
        text = " ".join(words[: 5 + n])
        choices = [f" {words[20]} {words[21]}", f" {words[30]}", f" {words[40]} it"]
        # More than a context of 512 tokens, in some.
        rows.append({"text": text, "choices": choices, "long": " ".join(words * (1 + n))})
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    directory = tmp_path / "tasks"
    directory.mkdir()
    for name, task in TASKS.items():
        (directory / f"{name}.yaml").write_text(task.replace("DATA", str(data)).lstrip())
    return directory


@pytest.fixture
def gpt2(llama: Path, tmp_path: Path) -> Path:
    """A random GPT-2 with learned positions and the tokenizer of the Llama."""
    import shutil

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=2048, n_positions=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    directory = tmp_path / "gpt2"
    GPT2LMHeadModel(config).save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(llama / file, directory)
    return directory


def evaluated(model: str, arguments: dict[str, Any], tasks: Path) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    import kvant.lm_eval  # noqa: F401

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_scores_of_float_models_are_those_of_transformers(
    name: str, tasks: Path, request: pytest.FixtureRequest
) -> None:
    model = str(request.getfixturevalue(name))
    ours = evaluated("kvant", {"pretrained": model}, tasks)
    theirs = evaluated("hf", {"pretrained": model, "dtype": "float32", "device": "cpu"}, tasks)
    for task in TASKS:
        scores = {metric: value for metric, value in theirs["results"][task].items() if isinstance(value, float)}
        assert scores
        for metric, value in scores.items():
            assert ours["results"][task][metric] == pytest.approx(value, rel=1e-4), (task, metric)
        for one, other in zip(ours["samples"][task], theirs["samples"][task], strict=True):
            flat = [_flat(sample["filtered_resps"]) for sample in (one, other)]
            assert flat[0] == pytest.approx(flat[1], rel=1e-3, abs=1e-3) or flat[0] == flat[1], task


def _flat(responses: Any) -> list[Any]:
    if isinstance(responses, list | tuple):
        return [value for response in responses for value in _flat(response)]
    return [responses]


def test_quantized_models_and_gguf_files_are_evaluated(llama: Path, tasks: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, "Q8_0", output=tmp_path / "q8.gguf", progress=False)
    found = evaluated("kvant", {"pretrained": str(tmp_path / "q8.gguf"), "threads": 1}, tasks)
    whole = evaluated("kvant", {"pretrained": str(llama)}, tasks)
    perplexities = [result["results"]["local_perplexity"]["word_perplexity,none"] for result in (found, whole)]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=0.05) and perplexities[0] != perplexities[1]


def test_program_of_the_harness_knows_the_model(llama: Path, tasks: Path, tmp_path: Path) -> None:
    arguments = ["--model", "kvant", "--model_args", f"pretrained={llama}", "--tasks", "local_choice"]
    arguments += ["--include_path", str(tasks), "--output_path", str(tmp_path / "out")]
    for module in ("lm_eval", "kvant.lm_eval"):
        run = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True)
        assert run.returncode == 0 and "local_choice" in run.stdout, run.stderr


def test_unknown_generation_arguments_are_refused(llama: Path) -> None:
    from kvant.lm_eval import KvantLM

    model = KvantLM(str(llama))
    with pytest.raises(ValueError, match="num_beams"):
        model._options({"until": ["."], "num_beams": 4})
    with pytest.raises(ValueError, match="dtype"):
        KvantLM(str(llama), dtype="int8")
    assert model._options({"until": ".", "temperature": 0.7, "do_sample": False})["temperature"] == 0.0
