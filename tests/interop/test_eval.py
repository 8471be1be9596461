"""`kvant eval` beside a reference and with a stride, against the definitions computed with transformers in f32."""

import json
import math

import numpy as np
import pytest
import torch
import transformers

WINDOW, STRIDE = 128, 48
TEXT = ("A model is as good as what it says of words that it has not seen. The measure of that is how surprised it is by them. "
        "Whoever makes it smaller wants to know how much more surprised it has become, and which of its parts is to blame. ") * 12  # fmt: skip


@pytest.fixture(scope="module")
def text(module_path):
    file = module_path("eval") / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture(scope="module")
def evaluated(kvant, text):
    """evaluated(model, *options) -> the object that `kvant eval --json` prints."""

    def run(model, *options):
        done = kvant("eval", model, "--data", text, "--seq-len", WINDOW, "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def tokens(directory):
    return torch.tensor(transformers.AutoTokenizer.from_pretrained(directory)(TEXT).input_ids)


def test_strided_perplexity_matches_transformers(model_dir, evaluated):
    model, ids = load(model_dir("nano_llama")), tokens(model_dir("nano_llama"))
    total, scored, reached = 0.0, 0, 0
    for begin in range(0, len(ids), STRIDE):
        end = min(begin + WINDOW, len(ids))
        labels = ids[begin:end].clone()
        labels[: -(end - reached)] = -100
        with torch.no_grad():
            logits = model(ids[None, begin:end]).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")
        total, scored, reached = total + loss.item(), scored + (labels[1:] != -100).sum().item(), end
        if end == len(ids):
            break
    found = evaluated(model_dir("nano_llama"), "--stride", STRIDE)
    assert found["tokens"] == scored == len(ids) - 1
    assert math.isclose(found["perplexity"], math.exp(total / scored), rel_tol=1e-5)


@pytest.mark.parametrize("scheme", ["int4_wo_32", "mxfp4_weight_only"])
def test_divergence_from_the_reference_matches_its_definition(scheme, model_dir, quantized, evaluated):
    original, changed = model_dir("nano_llama"), quantized("nano_llama", scheme, "--format", "fake")
    rows = tokens(original)
    rows = rows[: len(rows) // WINDOW * WINDOW].reshape(-1, WINDOW)

    def run(directory):
        model, streams = load(directory), []
        for block in model.model.layers:
            block.register_forward_hook(lambda _, __, out: streams.append(out[0] if isinstance(out, tuple) else out))
        with torch.no_grad():
            logits = model(rows).logits[:, :-1]
        return torch.log_softmax(logits.double(), -1), [stream.double() for stream in streams]

    (theirs, clean), (ours, noisy) = run(original), run(changed)
    divergence = (theirs.exp() * (theirs - ours)).sum(-1).flatten().numpy()
    found = evaluated(changed, "--reference", original)
    assert math.isclose(found["kl_mean"], divergence.mean(), rel_tol=1e-3)
    assert math.isclose(found["kl_p99"], np.quantile(divergence, 0.99), rel_tol=1e-3)
    agreement = (theirs.argmax(-1) == ours.argmax(-1)).double().mean().item()
    assert math.isclose(found["top1_agreement"], agreement, abs_tol=1.5 / divergence.size)
    targets = rows[:, 1:, None]
    assert math.isclose(found["reference_perplexity"], math.exp(-theirs.gather(-1, targets).mean()), rel_tol=1e-5)
    assert math.isclose(found["perplexity"], math.exp(-ours.gather(-1, targets).mean()), rel_tol=1e-5)
    losses = (theirs - ours).gather(-1, targets).flatten().numpy()
    assert math.isclose(found["perplexity_ratio"], math.exp(losses.mean()), rel_tol=1e-5)

    def error(values):
        """Of the mean, over windows: the tokens of one are correlated."""
        means = values.reshape(len(rows), -1).mean(1)
        return means.std(ddof=1) / math.sqrt(len(means))

    assert math.isclose(found["perplexity_ratio_error"], error(losses) * math.exp(losses.mean()), rel_tol=1e-3)
    assert math.isclose(found["kl_mean_error"], error(divergence), rel_tol=1e-3)
    for block, (r, x) in enumerate(zip(clean, noisy, strict=True)):
        sqnr = 10 * math.log10((r**2).sum() / ((r - x) ** 2).sum())
        assert found["blocks"][block]["block"] == block
        assert math.isclose(found["blocks"][block]["sqnr_db"], sqnr, abs_tol=0.01)


def test_reference_of_another_shape_is_refused(kvant, model_dir, text):
    done = kvant("eval", model_dir("nano_llama"), "--data", text, "--reference", model_dir("nano_mixtral"))
    assert done.returncode == 1 and "reference" in done.stderr and "hint" in done.stderr
