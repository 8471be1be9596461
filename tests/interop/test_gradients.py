"""Gradients of the weights of each block, against torch's, for every family whose blocks have them."""

import re
import subprocess

import numpy as np
import pytest
import torch
import transformers

import forward_models
from conftest import example

SHAPE = (2, 11)
# What a block of each has in it that has no gradient yet.
REFUSED = ("this activation function", "blocks that read or make more than one stream", "keys of another block", "keys that an indexer chooses")


@pytest.fixture(scope="module")
def binary():
    return example("gradients")


def blocks_of(model):
    lists = [module for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList) and "expert" not in name]
    return max(lists, key=lambda found: sum(p.numel() for p in found.parameters()))


def reference(directory, tokens, along):
    """The gradients of all parameters in each block, of the sum of the block's output times `along`."""
    config = transformers.AutoConfig.from_pretrained(directory)
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    model = forward_models.model_class(config).from_pretrained(directory, dtype=torch.float32, attn_implementation=attention).eval()
    outputs = {}
    blocks = blocks_of(model)
    for index, block in enumerate(blocks):
        block.register_forward_hook(lambda _, __, out, index=index: outputs.update({index: out[0] if isinstance(out, tuple) else out}))
        for name, module in block.named_modules():
            # Shares of experts count as given.
            if re.search(r"(^|\.)(gate|router|shared_expert_gate)$", name):
                module.register_forward_pre_hook(lambda _, inputs: tuple(x.detach() if torch.is_tensor(x) else x for x in inputs))
    model(torch.tensor(tokens))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for index, block in enumerate(blocks):
        if index not in outputs:
            continue  # Text alone passes it over.
        model.zero_grad()
        out = outputs[index]
        (out * torch.tensor(along).reshape(out.shape)).sum().backward(retain_graph=True)
        found |= {names[id(p)]: p.grad.clone() for p in block.parameters() if p.grad is not None}
    return found


def expected_of(module, gradients):
    """The gradient of a layer by the name that Kvant gives it: a weight, or one of the experts in a tensor."""
    # transformers names modules of multimodal models otherwise than published files.
    module = re.sub(r"^language_model\.model\.", "model.language_model.", module)
    if f"{module}.weight" in gradients:
        return gradients[f"{module}.weight"]
    if f"{module.replace('backbone.', 'model.', 1)}.weight" in gradients:
        return gradients[f"{module.replace('backbone.', 'model.', 1)}.weight"]
    expert = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)", module) or re.fullmatch(r"(.*experts\.\w+)()\.(\d+)", module)
    for name, gradient in gradients.items():
        if expert and gradient.ndim == 3 and name.startswith(expert[1]) and (not expert[3] or expert[3].isdigit() or expert[3].split("_")[0] in name):
            own = gradient[int(expert[2] or expert[3])]
            # Gates and ups of an expert may be one matrix, which experts in a checkpoint are not.
            halves = own.shape[0] // 2
            return {"gate_proj": own[:halves], "up_proj": own[halves:]}.get(expert[3], own) if "gate_up" in name else own
    return None


@pytest.mark.parametrize("name", sorted(forward_models.MODELS))
def test_gradients_match_torch(name, binary, tmp_path):
    directory = tmp_path / name
    forward_models.save(name, directory)
    config = transformers.AutoConfig.from_pretrained(directory).get_text_config()
    random = np.random.default_rng(1)
    tokens = random.integers(0, config.vocab_size, SHAPE)
    along = random.standard_normal((*SHAPE, config.hidden_size)).astype("<f4")
    tokens.astype("<u4").tofile(tmp_path / "tokens")
    along.tofile(tmp_path / "along")
    (out := tmp_path / "out").mkdir()
    command = [binary, directory, SHAPE[1], tmp_path / "tokens", tmp_path / "along", out]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert any(reason in line for reason in REFUSED), line
    ours = {path.name: np.fromfile(path, "<f4") for path in out.iterdir()}
    if not ours:
        pytest.skip(done.stdout)
    gradients = reference(directory, tokens, along)
    compared = 0
    for module, values in ours.items():
        expected = expected_of(module, gradients)
        # Routers have none here.
        if expected is None or not np.any(values):
            continue
        expected = expected.numpy()
        values = values.reshape(expected.shape) if values.reshape(-1).size == expected.size else None
        assert values is not None, module
        alike = [np.abs(v - expected).max() for v in (values, values.reshape(expected.shape[::-1]).T)]
        assert min(alike) <= 2e-4 * np.abs(expected).max(), (module, alike, np.abs(expected).max())
        compared += 1
    assert compared >= 3, (list(ours)[:20], list(gradients)[:20])
