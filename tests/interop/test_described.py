"""Architectures that Kvant has no description of, described in TOML: the perplexity is that of transformers, algorithms run, and what is
written loads."""

import json

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import forward_models

BASE = forward_models.BASE
# Arguments of the configuration, and what the draft of Kvant does not find out.
DESCRIBED = {
    "vaultgemma": (
        dict(forward_models.WIDE, sliding_window=20, query_pre_attn_scalar=40, attn_logit_softcapping=5.0, final_logit_softcapping=10.0),
        'like = "gemma2"\nnorms = [["attention-input", "input_layernorm"], ["feed-forward-input", "pre_feedforward_layernorm"]]',
    ),
    "jais2": (BASE, 'like = "nemotron"\nnorm_kind = "layer-norm"\n[math]\npositions = { rotary = { pairing = "halves", partial = 1.0, layers = "all" } }'),
}  # fmt: skip


@pytest.fixture(scope="module", params=DESCRIBED)
def described(request, module_path):
    """(the model's directory, its description, a text)"""
    kind = request.param
    arguments, text = DESCRIBED[kind]
    root = module_path(f"described-{kind}")
    forward_models.MODELS[kind] = (kind, arguments)
    model = forward_models.save(kind, root / "model")
    (root / "family.toml").write_text(f'name = "my-{kind}"\nmodel_types = ["{kind}"]\n{text}\n')
    tokens = np.random.default_rng(5).integers(0, 512, (8, 64)).tolist()
    (root / "text.txt").write_text(" ".join(str(token) for row in tokens for token in row))
    # Text is tokens of its own, so that any tokenizer will do.
    vocabulary = {str(token): token for token in range(512)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(model / "tokenizer.json"))
    yield model, root / "family.toml", root / "text.txt"
    del forward_models.MODELS[kind]


def perplexity(directory, tokens):
    model = forward_models.model_class(transformers.AutoConfig.from_pretrained(directory))
    model, report = model.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    tokens = torch.tensor([int(token) for token in tokens.read_text().split()]).reshape(-1, 64)
    with torch.no_grad():
        logits = model.eval()(tokens).logits[:, :-1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).exp())


def test_perplexity_is_that_of_transformers(described, kvant):
    model, family, tokens = described
    assert kvant("eval", model, "--data", tokens, "--seq-len", "64").returncode == 1, "it has no description"
    done = kvant("eval", model, "--data", tokens, "--seq-len", "64", "--family", family, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["perplexity"] == pytest.approx(perplexity(model, tokens), rel=1e-4)


def test_calibrated_output_loads(described, kvant, tmp_path):
    model, family, tokens = described
    options = ["-s", "int4:g32", "-a", "autosmoothquant,gptq", "--calib", tokens, "--seq-len", "64", "-f", "fake", "--family", family]
    done = kvant("quantize", model, *options, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    done = kvant("eval", tmp_path / "out", "--data", tokens, "--seq-len", "64", "--family", family, "--json")
    assert json.loads(done.stdout)["perplexity"] == pytest.approx(perplexity(tmp_path / "out", tokens), rel=1e-3)


def renamed(name, root):
    """A model under the name of an architecture that has no description."""
    model = forward_models.save(name, root / "model")
    config = json.loads((model / "config.json").read_text())
    for section in (config, config.get("text_config", {})):
        section.update({key: f"novel_{section[key]}" for key in ("model_type",) if key in section})
    (root / "renamed").mkdir()
    (root / "renamed" / "config.json").write_text(json.dumps(dict(config, architectures=["NovelForCausalLM"])))
    for file in model.glob("*.safetensors*"):
        (root / "renamed" / file.name).symlink_to(file)
    return model, root / "renamed"


# One model of each kind of configuration.
OF_KIND = {forward_models.MODELS[name][0]: name for name in reversed(forward_models.MODELS)}
# Names and config.json are those of another architecture, whose rules differ: whoever completes the draft has to state them.
OTHER_RULES = {"cohere2", "cohere2_moe", "ernie4_5", "gemma", "glm_moe_dsa", "helium", "mamba", "ministral3", "mistral", "mistral4",
               "nanochat", "olmo", "qwen3_vl_moe", "smollm3"}  # fmt: skip


# Blocks of theirs differ in kind, which drafts do not tell, or experts are stacked in matrices.
UNLIKE_BLOCKS = {"bailing_hybrid", "dbrx", "deepseek_v4", "kimi_linear", "lfm3", "minimax", "mllama", "mllama_text"}
# Its draft is like OLMoE, whose norms of queries and keys are those of all heads together: the model is refused with the norm's shape.
UNLIKE_BLOCKS |= {"qwen3_omni_moe"}


@pytest.mark.parametrize("name", sorted(set(OF_KIND.values()) - UNLIKE_BLOCKS))
def test_drafts_of_renamed_architectures_run(name, kvant, tmp_path):
    model, unknown = renamed(name, tmp_path)
    draft = kvant("inspect", unknown, "--suggest-family")
    assert draft.returncode == 0, draft.stderr
    (tmp_path / "draft.toml").write_text(draft.stdout)
    tokens = np.random.default_rng(5).integers(0, 512, (2, 48)).tolist()
    (tmp_path / "tokens.jsonl").write_text("\n".join(map(json.dumps, tokens)))
    options = ["--data", tmp_path / "tokens.jsonl", "--seq-len", "48", "--json"]
    known, done = kvant("eval", model, *options), kvant("eval", unknown, *options, "--family", tmp_path / "draft.toml")
    assert (known.returncode, done.returncode) == (0, 0), f"{known.stderr} {done.stderr}\n{draft.stdout}"
    is_same = json.loads(done.stdout)["perplexity"] == pytest.approx(json.loads(known.stdout)["perplexity"], rel=1e-6)
    assert is_same == (name not in OTHER_RULES), draft.stdout


def test_draft_is_read(described, kvant, tmp_path):
    model, _, _ = described
    draft = kvant("inspect", model, "--suggest-family")
    assert draft.returncode == 0, draft.stderr
    (tmp_path / "draft.toml").write_text(draft.stdout)
    done = kvant("plan", model, "-s", "int4:g32", "--family", tmp_path / "draft.toml")
    assert done.returncode == 0 and "(family my-" in done.stdout, done.stderr
