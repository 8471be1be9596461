"""Scores of models on held-out text, and a worker that quantizes a model again and again and scores each result.

Shared by accuracy.py, algorithms_quark.py and algorithms_llm_compressor.py. Windows follow each other from the start of a
text, tokenized as a whole; a shorter tail is dropped; all tokens of a window but the first are scored.
"""
import gc
import json
import math
import subprocess
import sys
import time
import traceback
from pathlib import Path


def windows(tokens, length):
    count = tokens.shape[0] // length
    return tokens[: count * length].reshape(count, length)


def text_windows(tokenizer, file, length):
    import torch

    return windows(torch.tensor(tokenizer(Path(file).read_text()).input_ids), length)


def log_probabilities(model, rows):
    """What the model holds of each token but the first of each window, windows passing the model one by one."""
    import torch

    with torch.no_grad():
        for row in rows:
            yield torch.log_softmax(model(row[None]).logits[0, :-1].float(), -1)


def perplexity(model, rows):
    """exp of the mean over all tokens but the first of each window."""
    return score(log_probabilities(model, rows), rows)["perplexity"]


def score(logarithms, rows, reference=None):
    """The perplexity, and with the reference's log probabilities the mean of KL(reference || model) over scored tokens."""
    lost, divergence, scored = 0.0, 0.0, 0
    for index, (row, logs) in enumerate(zip(rows, logarithms)):
        lost -= logs.gather(1, row[1:, None]).double().sum().item()
        scored += len(row) - 1
        if reference is not None:
            expected = reference[index]
            divergence += (expected.exp() * (expected - logs)).sum(1).double().sum().item()
    found = {"perplexity": math.exp(lost / scored)}
    return found if reference is None else found | {"kl": divergence / scored}


def kvant_divergence(kvant, result, model, text):
    """The mean KL divergence of a result of Kvant from its model, as `kvant eval` measures it in windows of 256 tokens."""
    run = [kvant, "eval", result, "--reference", model, "--data", text, "--seq-len", "256", "--json"]
    done = subprocess.run([str(word) for word in run], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["kl_mean"]


def reason(error):
    """One line of why something failed."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


class Subject:
    """A model as it is: its tokens, and what it holds of the held-out ones."""

    def __init__(self, source, order):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.source, tokenizer = source, AutoTokenizer.from_pretrained(source)
        self.calibration = text_windows(tokenizer, order["calib"], order["seq_len"])[: order["samples"]]
        self.evaluation = text_windows(tokenizer, order["data"], order["seq_len"])
        original = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
        self.reference = list(log_probabilities(original, self.evaluation))
        self.perplexity = score(self.reference, self.evaluation)["perplexity"]

    def try_out(self, quantized, cell):
        """Scores `quantized(model, cell, calibration)`, quantized in the model's own type and evaluated in f32."""
        from transformers import AutoModelForCausalLM

        start = time.process_time()
        model = AutoModelForCausalLM.from_pretrained(self.source, dtype="auto").eval()
        model = quantized(model, cell, self.calibration).eval()
        found = {"seconds": time.process_time() - start, "float": self.perplexity}
        return found | score(log_probabilities(model.float(), self.evaluation), self.evaluation, self.reference)


def serve(quantized):
    """Tries out the cells of the order on the command line, and prints a line of JSON for each.

    The order is {"calib", "data", "seq_len", "samples", "threads", "work": [[model, [cell, ...]], ...]}.
    """
    import torch

    order = json.loads(sys.argv[1])
    torch.set_num_threads(order["threads"])
    collect, gc.collect = gc.collect, lambda *_: 0  # Called hundreds of times, which is most of the time on a small model.
    answers, sys.stdout = sys.stdout, sys.stderr
    for source, cells in order["work"]:
        subject = Subject(source, order)
        for cell in cells:
            try:
                found = subject.try_out(quantized, cell)
            except Exception as error:  # What an incumbent cannot do is part of the answer.
                traceback.print_exc()
                found = {"fails": reason(error)}
            print(json.dumps(found), file=answers, flush=True)
            collect()
