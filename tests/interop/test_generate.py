"""`kvant generate` and the scores of `kvant::LanguageModel`, against transformers in f32."""

import json
import subprocess

import pytest
import torch
import transformers

from conftest import example

MODELS = ["nano_llama", "nano_qwen3", "nano_mixtral", "nano_opt", "nano_gemma2"]
PROMPTS = ["The iterator yields every element of", "fn", "A model is as good as what it says of words that it has not seen. It"]
NEW = 24


def load(directory):
    # Only the eager attention of transformers has soft-caps.
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_continuation_equals_generate_of_transformers(kvant, model_dir, name):
    directory = model_dir(name)
    model, tokenizer = load(directory), transformers.AutoTokenizer.from_pretrained(directory)
    prompts = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    done = kvant("generate", directory, *prompts, "--max-new-tokens", NEW, "--json")
    assert done.returncode == 0, done.stderr
    for found, prompt in zip(json.loads(done.stdout)["prompts"], PROMPTS):
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            made = model.generate(**ids, max_new_tokens=NEW, do_sample=False)[0, ids.input_ids.shape[1] :].tolist()
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        if made[-1] in ends:
            assert found["finish"] == "eos"
            made = made[:-1]
        assert found["tokens"] == made, (name, prompt)
        whole = tokenizer.decode([*ids.input_ids[0].tolist(), *made], skip_special_tokens=True)
        assert whole.endswith(found["text"]), (whole, found["text"])


@pytest.fixture(scope="session")
def scores():
    """scores(model, tokens, scored) -> what the example `loglikelihood` prints for each sequence."""
    binary = example("loglikelihood")

    def run(model, pairs):
        done = subprocess.run([str(binary), str(model)], input=json.dumps(pairs), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("name", MODELS)
def test_log_likelihoods_equal_those_of_transformers(scores, model_dir, name):
    directory = model_dir(name)
    model, tokenizer = load(directory), transformers.AutoTokenizer.from_pretrained(directory)
    ids = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    pairs = [[tokens[:split], tokens[split:]] for tokens in ids for split in (1, len(tokens) - 1) if 0 < split < len(tokens)]
    with torch.no_grad():
        greedy = model.generate(torch.tensor([ids[0]]), max_new_tokens=3, do_sample=False)[0].tolist()
    pairs.append([greedy[:-3], greedy[-3:]])
    found = scores(directory, pairs)
    for (context, continuation), (log_likelihood, is_greedy) in zip(pairs, found):
        with torch.no_grad():
            logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1].log_softmax(-1)
        expected = logits.gather(1, torch.tensor(continuation)[:, None]).sum().item()
        assert abs(log_likelihood - expected) < 1e-3, (name, context, continuation)
        assert is_greedy == (logits.argmax(-1).tolist() == continuation)
    assert found[-1][1]
