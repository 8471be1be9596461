"""What amd-quark's GPTQ, GPTAQ and Qronos make of one small layer: writes quark_gptq.json beside this file.

The weight and the inputs come from `golden_input.py`; `mix` makes the inputs depend on one another. Weights are compared by
their codes, as steps of the scale (halves of a step for fp4), one signed byte each.
"""

import json
from pathlib import Path

import numpy as np
import torch
from quark.torch import ModelQuantizer
from quark.torch.algorithm.gptaq.gptaq import Gptaq
from quark.torch.algorithm.gptq.gptq import GPTQ
from quark.torch.algorithm.qronos.qronos import Qronos
from quark.torch.quantization.config import config as quark

from golden_input import make_input
from quark_eval import whole

ROWS, FEATURES, TOKENS = 6, 160, 400

COMMON = dict(ch_axis=-1, is_dynamic=False)
INT = dict(scale_type="float", round_method="half_even", **COMMON)
SPECS = {
    "int4:g32": (quark.Int4PerGroupSpec(symmetric=True, group_size=32, **INT), 32, 1.0),
    "uint4:g32:zp": (quark.Uint4PerGroupSpec(symmetric=False, group_size=32, **INT), 32, 1.0),
    "e2m1:g32:e8m0": (quark.OCP_MXFP4Spec(**COMMON), 32, 0.5),
}


def mix(x):
    """Every feature becomes three quarters of the one before it and one quarter of itself; then one in twenty is 8 times as
    large, and feature 7 zero."""
    x = x.numpy().copy()
    for c in range(1, x.shape[1]):
        x[:, c] = x[:, c - 1] * np.float32(0.75) + x[:, c] * np.float32(0.25)
    x[:, 3::20] *= np.float32(8)
    x[:, 7] = 0
    return torch.from_numpy(x)


def layer(spec):
    """A linear layer whose weight quantizer is that of the spec."""
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, ROWS, bias=False))
    model[0].weight.data = make_input(ROWS, FEATURES, "f32", seed=1)
    weight = spec.to_quantization_spec()
    config = quark.QConfig(global_quant_config=quark.QLayerConfig(weight=weight))
    return ModelQuantizer(config).quantize_model(model, [torch.zeros(1, FEATURES)])[0]


def run(algorithm, scheme, act_order):
    spec, group, unit = SPECS[scheme]
    module = layer(spec)
    inputs = mix(make_input(TOKENS, FEATURES, "f32", seed=2))
    floats = inputs + mix(make_input(TOKENS, FEATURES, "f32", seed=3)) * 0.125
    algo = {"gptq": GPTQ, "gptaq": Gptaq, "qronos": Qronos}[algorithm](module)
    for rows in range(0, TOKENS, 100):
        algo.add_batch_quantized(inputs[rows:rows + 100], None, "")
        if algorithm != "gptq":
            algo.add_batch_nonquantized(floats[rows:rows + 100], None, "")
    if algorithm == "gptq":
        algo.quantize(128, 0.01, group, act_order, True, False, {})
    elif algorithm == "gptaq":
        algo.quantize(128, 0.01, 0.25, group, act_order, True)
    else:
        algo.quantize(128, 1e-3, 1e4, group, act_order, True)
    scale = module._weight_quantizer.scale.reshape(ROWS, -1).float()
    codes = torch.round(module.weight.data.float() / (scale.repeat_interleave(group, 1) * unit))
    return {"algorithm": algorithm, "scheme": scheme, "act_order": act_order, "scale": whole(scale),
            "codes": codes.to(torch.int8).numpy().tobytes().hex()}


def main():
    records = [run(algorithm, scheme, act_order) for algorithm in ("gptq", "gptaq", "qronos")
               for scheme in SPECS for act_order in (False, True)]
    document = {"rows": ROWS, "features": FEATURES, "tokens": TOKENS, "records": records}
    path = Path(__file__).parent / "quark_gptq.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
