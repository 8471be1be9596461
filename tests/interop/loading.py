"""transformers as the loader, with its habit of filling missing tensors with noise turned into a failure."""

from transformers import AutoModelForCausalLM


def load_with_transformers(directory):
    """The model of a checkpoint directory; every tensor of it must be used and none may be missing."""
    model, report = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", output_loading_info=True)
    problems = {key: sorted(report[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]}
    assert not problems, problems
    return model.eval()
