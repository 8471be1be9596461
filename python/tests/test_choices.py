"""Multiple-choice questions in the forms of benchmarks: accuracies are those of the harness's own tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvant

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
pytest.importorskip("torch")

WORDS = "the iterator yields every element of a list and returns an option with its value when it is done".split()


def words(seed: int, count: int) -> str:
    return " ".join(WORDS[(seed * 7 + i * (seed + 3)) % len(WORDS)] for i in range(count))


def arc(n: int) -> dict[str, Any]:
    choices = {"text": [words(n + i, 1 + (n + i) % 4) for i in range(4)], "label": ["A", "B", "C", "D"]}
    return {"id": str(n), "question": f"What is {words(n, 6)}?", "choices": choices, "answerKey": "ABCD"[n % 4]}


def hellaswag(n: int) -> dict[str, Any]:
    before = f"A man {words(n, 4)} [header] How to {words(n + 1, 3)} [title] Do it."
    endings = [f"{words(n + i, 2 + (n + i) % 5)} [substeps] é." for i in range(4)]
    after = ["", "the Man", "he"][n % 3]
    row = {"ind": n, "activity_label": "Baking", "ctx_a": before, "ctx_b": after, "ctx": "", "endings": endings}
    return {**row, "label": str(n % 4)}


def mmlu(n: int) -> dict[str, Any]:
    choices = [words(n + i, 2) for i in range(4)]
    return {"question": f" {words(n, 7)}? ", "subject": "abstract_algebra", "choices": choices, "answer": n % 4}


def winogrande(n: int) -> dict[str, Any]:
    sentence = f"{words(n, 5)} because _ {words(n + 2, 4)}."
    return {"sentence": sentence, "option1": words(n, 1), "option2": words(n + 1, 2), "answer": "12"[n % 2]}


def piqa(n: int) -> dict[str, Any]:
    return {"goal": words(n, 6), "sol1": words(n + 1, 3 + n % 3), "sol2": words(n + 2, 4), "label": n % 2}


# The files of the tasks in the harness.
TASKS = {
    "arc_easy": ("arc/arc_easy.yaml", arc),
    "hellaswag": ("hellaswag/hellaswag.yaml", hellaswag),
    "mmlu_abstract_algebra": ("mmlu/default/mmlu_abstract_algebra.yaml", mmlu),
    "winogrande": ("winogrande/default.yaml", winogrande),
    "piqa": ("piqa/piqa.yaml", piqa),
}

# The task of the harness with data in a local file.
LOCAL = """
include: TASK
task: local_choices
tag: null
dataset_path: json
dataset_name: null
dataset_kwargs: {data_files: {test: DATA}}
training_split: null
validation_split: null
test_split: test
fewshot_split: null
num_fewshot: 0
"""


@pytest.mark.parametrize("name", list(TASKS))
def test_accuracies_are_those_of_the_harness(name: str, llama: Path, tmp_path: Path) -> None:
    from lm_eval.tasks import TaskManager

    file, make = TASKS[name]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(make(n)) + "\n" for n in range(12)))
    path = Path(lm_eval.__file__).parent / "tasks" / file
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "local.yaml").write_text(LOCAL.replace("TASK", str(path)).replace("DATA", str(data)).lstrip())
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(llama), "dtype": "float32", "device": "cpu"},
        tasks=["local_choices"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found is not None
    theirs = found["results"]["local_choices"]
    ours = kvant.evaluate(llama, choices=data, progress=False)
    assert ours.accuracy == pytest.approx(theirs["acc,none"])
    if "acc_norm,none" in theirs:
        assert ours.accuracy_norm == pytest.approx(theirs["acc_norm,none"])
