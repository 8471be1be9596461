"""lm-evaluation-harness on tasks in local files: float models score as with `--model hf`."""

from __future__ import annotations

import json
import shutil
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


def evaluated(model: Any, arguments: dict[str, Any], tasks: Path, **more: Any) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    import kvant.lm_eval  # noqa: F401

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=list(TASKS),
        task_manager=manager,
        bootstrap_iters=0,
        log_samples=True,
        **more,
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


@pytest.mark.parametrize(
    ("scheme", "algorithm"),
    [("int4:g32", None), ("int4:g32", "gptq"), ("int8:channel+int8:tensor!static", None), ("W8A8", None)],
)
def test_models_quantized_in_place_are_evaluated_by_the_model_of_transformers(
    scheme: str, algorithm: str | None, llama: Path, tasks: Path, tmp_path: Path
) -> None:
    import torch
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import kvant.torch as kt

    tokenizer = AutoTokenizer.from_pretrained(llama)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    batches = [tokenizer(" ".join(WORDS[n:] * 4), return_tensors="pt") for n in range(4)]
    kt.quantize_(model, scheme, batches, algorithm=algorithm)
    found = evaluated(HFLM(model, tokenizer=tokenizer, batch_size=2), {}, tasks)
    # Kvant's own forward pass on the same codes.
    kt.export(model, tmp_path / "out")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(llama / file, tmp_path / "out")
    expected = evaluated("kvant", {"pretrained": str(tmp_path / "out")}, tasks)
    whole = evaluated("kvant", {"pretrained": str(llama)}, tasks)
    perplexities = [made["results"]["local_perplexity"]["word_perplexity,none"] for made in (found, expected, whole)]
    # Codes at the edge of two flip with the order of sums.
    assert perplexities[0] == pytest.approx(perplexities[1], rel=2e-4)
    assert perplexities[0] != pytest.approx(perplexities[2], rel=1e-5)
    different = []
    for task in TASKS:
        for one, other in zip(found["samples"][task], expected["samples"][task], strict=True):
            flat = [_flat(sample["filtered_resps"]) for sample in (one, other)]
            if not (flat[0] == pytest.approx(flat[1], rel=5e-3, abs=5e-3) or flat[0] == flat[1]):
                different.append(task)
    # Sums in another order change codes of activations, and with them a token that is hardly likelier than another.
    assert different == [] or (scheme == "W8A8" and set(different) == {"local_generation"} and len(different) < 4)


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


CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' and 'quiet' in message['content'] %}"
    "{{ raise_exception('no system') }}{% endif %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture
def chat_llama(llama: Path, tmp_path: Path) -> Path:
    """The Llama with a chat template."""
    directory = tmp_path / "chat"
    shutil.copytree(llama, directory)
    config = json.loads((llama / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": CHAT}))
    return directory


def test_conversations_are_rendered_as_by_transformers(chat_llama: Path) -> None:
    from lm_eval.models.huggingface import HFLM

    from kvant.lm_eval import KvantLM

    ours = KvantLM(str(chat_llama))
    theirs = HFLM(str(chat_llama), dtype="float32", device="cpu")
    question = {"role": "user", "content": "What is an iterator? "}
    for system in ("be brief", "be quiet"):
        history = [{"role": "system", "content": system}, question]
        asked = ours.apply_chat_template(history)
        assert asked == theirs.apply_chat_template(history) and asked.endswith("<|assistant|>\n")
        assert ("brief" in asked) == (system == "be brief") and "quiet" not in asked
        assert ours.tok_encode(asked) == theirs.tok_encode(asked)
        for answer in ("It yields", " It yields ", "iterator"):
            begun = [*history, {"role": "assistant", "content": answer}]
            text = ours.apply_chat_template(begun, add_generation_prompt=False)
            assert text == theirs.apply_chat_template(begun, add_generation_prompt=False)
            assert text.endswith(answer.strip())
    assert ours.chat_template(True) == theirs.chat_template(True) == CHAT
    assert ours.tokenizer_name == theirs.tokenizer_name
    with pytest.raises(kvant.UnsupportedError, match="rag"):
        ours.chat_template("rag")


def test_scores_with_chat_templates_are_those_of_transformers(chat_llama: Path, tasks: Path, tmp_path: Path) -> None:
    more = {
        "apply_chat_template": True,
        "fewshot_as_multiturn": True,
        "system_instruction": "be brief",
        "num_fewshot": 0,
    }
    ours = evaluated("kvant", {"pretrained": str(chat_llama)}, tasks, **more)
    theirs = evaluated("hf", {"pretrained": str(chat_llama), "dtype": "float32", "device": "cpu"}, tasks, **more)
    for task in TASKS:
        for one, other in zip(ours["samples"][task], theirs["samples"][task], strict=True):
            assert one["arguments"] == other["arguments"], task
            flat = [_flat(sample["filtered_resps"]) for sample in (one, other)]
            assert flat[0] == pytest.approx(flat[1], rel=1e-3, abs=1e-3) or flat[0] == flat[1], task
    context = ours["samples"]["local_generation"][0]["arguments"][0][0]
    assert context.startswith("<|endoftext|><|system|>\nbe brief") and context.endswith("<|assistant|>\n")
    kvant.quantize(chat_llama, "Q8_0", output=tmp_path / "chat.gguf", progress=False)
    packed = evaluated("kvant", {"pretrained": str(tmp_path / "chat.gguf")}, tasks, **more)
    for one, other in zip(packed["samples"]["local_choice"], ours["samples"]["local_choice"], strict=True):
        assert one["arguments"] == other["arguments"]


def test_models_without_a_chat_template_say_so(llama: Path, tasks: Path) -> None:
    with pytest.raises(kvant.UnsupportedError, match="no chat template"):
        evaluated("kvant", {"pretrained": str(llama)}, tasks, apply_chat_template=True)
