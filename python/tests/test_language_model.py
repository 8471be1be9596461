"""Texts that language models score and continue."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import kvant

PROMPT = "The iterator yields every element of the"


@pytest.fixture
def model(llama: Path) -> kvant.LanguageModel:
    return kvant.LanguageModel(llama)


def test_generate_continues_prompts_beside_the_reference(llama: Path) -> None:
    report = kvant.generate(llama, [PROMPT, "fn main() {"], reference=llama, max_new_tokens=6, progress=False)
    assert isinstance(report, kvant.GenerateReport) and report.prompts is not None
    assert [prompt["first_difference"] for prompt in report.prompts] == [None, None]
    assert [len(prompt["tokens"]) for prompt in report.prompts] == [6, 6]
    assert report.texts[0] in str(report) and len(report.to_pandas()) == 2
    assert kvant.generate(llama, PROMPT, max_tokens=6, progress=False).texts == report.texts[:1]


def test_facts_and_tokens_are_those_of_the_model(model: kvant.LanguageModel) -> None:
    assert (model.max_length, model.vocabulary_size, model.begin_token, model.end_tokens) == (512, 2048, 0, [0])
    tokens = model.tokenize(PROMPT)
    assert model.detokenize(tokens) == PROMPT
    assert model.detokenize([0]) == "" and model.detokenize([0], skip_special_tokens=False) == "<|endoftext|>"


def test_generated_text_is_greedy_and_ends_at_the_stop_text(model: kvant.LanguageModel) -> None:
    (found,) = model.generate_until([PROMPT], max_new_tokens=12)
    assert found.finish == "length" and len(found.tokens) == 12
    (score,) = model.loglikelihood([(model.tokenize(PROMPT), found.tokens)])
    assert score.is_greedy and score.log_likelihood < 0
    stop = found.text[4:6]
    (stopped,) = model.generate_until([PROMPT], [stop], max_new_tokens=12)
    assert stopped.finish == "stop" and stopped.text == found.text[: found.text.find(stop)]


def test_samples_depend_on_the_seed(model: kvant.LanguageModel) -> None:
    texts = [
        model.generate_until([PROMPT], max_new_tokens=12, temperature=1.5, seed=seed)[0].text for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_rolling_likelihood_is_that_after_the_first_token(model: kvant.LanguageModel) -> None:
    rolling = model.loglikelihood_rolling([PROMPT, ""])
    (pair,) = model.loglikelihood([("", PROMPT)])
    assert rolling[0] == pytest.approx(pair.log_likelihood, rel=1e-6) and rolling[1] == 0.0


def test_gguf_and_quantized_models_are_scored(llama: Path, tmp_path: Path) -> None:
    kvant.quantize(llama, "Q8_0", output=tmp_path / "q8.gguf", progress=False)
    kvant.quantize(llama, "int4:g32", output=tmp_path / "int4", progress=False)
    scores = [
        kvant.LanguageModel(path).loglikelihood([(PROMPT, " list")])[0].log_likelihood
        for path in (llama, tmp_path / "q8.gguf", tmp_path / "int4")
    ]
    assert scores[1] == pytest.approx(scores[0], abs=0.1) and scores[2] == pytest.approx(scores[0], abs=3.0)
    assert len(set(scores)) == 3


def test_errors_of_language_models_have_a_remedy(llama: Path, model: kvant.LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(kvant.UsageError, match="nowhere"):
        kvant.LanguageModel(tmp_path / "nowhere")
    with pytest.raises(kvant.UsageError, match="leave no room") as raised:
        model.generate_until([PROMPT], max_new_tokens=512)
    assert "at most 511" in raised.value.remedy
    with pytest.raises(kvant.UsageError, match="lots"):
        kvant.LanguageModel(llama, max_memory="lots")
    with pytest.raises(kvant.KvantError, match="2048"):
        model.loglikelihood([([1], [2048])])


def test_ctrl_c_stops_a_generation(model: kvant.LanguageModel) -> None:
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model.generate_until([PROMPT] * 2000, max_new_tokens=400)
    timer.join()
