"""Loads a checkpoint in torchao's format with transformers. Runs in a separate process that can import torchao.

python torchao_load.py CHECKPOINT EXPECTED       prints JSON: layers with codes, and the largest relative difference to floats
python torchao_load.py make NAME SOURCE OUT      lets torchao write one
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype="auto")


def floats(parameter):
    """What a parameter stands for, in f32."""
    data = parameter.data
    kind = type(data).__name__
    if kind in ("Int8Tensor", "Float8Tensor"):
        return data.qdata.float() * data.scale.float()
    return data.dequantize().float() if hasattr(data, "qdata") else data.float()


def make(name, source, out):
    import torchao.quantization as torchao
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from transformers import TorchAoConfig

    configs = {
        "int8": torchao.Int8WeightOnlyConfig(),
        "fp8": torchao.Float8WeightOnlyConfig(),
        "nvfp4": NVFP4WeightOnlyConfig(),
    }
    config = TorchAoConfig(configs[name])
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, quantization_config=config)
    model.save_pretrained(out)


def run(*arguments):
    if arguments[0] == "make":
        return make(*arguments[1:])
    model, expected = load(arguments[0]), dict(load(arguments[1]).named_parameters())
    codes, difference = 0, 0.0
    for name, parameter in model.named_parameters():
        codes += hasattr(parameter.data, "qdata")
        float_one = expected[name].float()
        worst = (floats(parameter) - float_one).abs().max() / float_one.abs().max()
        difference = max(difference, worst.item())
    return {"codes": codes, "difference": difference}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
