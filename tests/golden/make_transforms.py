"""The scales and limits that amd-quark's SmoothQuant, AWQ and AutoSmoothQuant find for small layers: writes
quark_transforms.json beside this file.

Weights and inputs come from `golden_input.py`; `mix` is that of `make_gptq.py`. The searches run with what the incumbent keeps
of a model put in by hand.
"""

import json
from pathlib import Path

import torch
from quark.torch import ModelQuantizer
from quark.torch.algorithm.awq.auto_smooth import AutoSmoothQuantProcessor
from quark.torch.algorithm.awq.awq import AwqProcessor
from quark.torch.algorithm.awq.smooth import SmoothQuantProcessor
from quark.torch.quantization.config import config as quark
from quark.torch.quantization.tensor_quantize import FakeQuantizeBase

from golden_input import make_input
from make_gptq import mix
from quark_eval import whole

FEATURES, HIDDEN, TOKENS = 96, 64, 300

COMMON = dict(ch_axis=-1, is_dynamic=False)
INT = dict(scale_type="float", round_method="half_even", **COMMON)
SPECS = {
    "int4:g32": quark.Int4PerGroupSpec(symmetric=True, group_size=32, **INT),
    "uint4:g32:zp": quark.Uint4PerGroupSpec(symmetric=False, group_size=32, **INT),
    "e2m1:g32:e8m0": quark.OCP_MXFP4Spec(**COMMON),
}
INT8_TOKEN = quark.Int8PerTensorSpec(symmetric=True, scale_type="float", round_method="half_even", observer_method="min_max",
                                     is_dynamic=False)


class Mlp(torch.nn.Module):
    """A gated network: down(silu(gate(x)) * up(x))."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(FEATURES, HIDDEN, bias=False)
        self.up = torch.nn.Linear(FEATURES, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, FEATURES, bias=False)
        self.gate.weight.data = make_input(HIDDEN, FEATURES, "f32", seed=1) * 0.125
        self.up.weight.data = make_input(HIDDEN, FEATURES, "f32", seed=2) * 0.125
        self.down.weight.data = make_input(FEATURES, HIDDEN, "f32", seed=3) * 0.125

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class Block(torch.nn.Module):
    """What the searches take for a decoder layer."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(FEATURES)
        self.mlp = Mlp()


def block(scheme, inputs=None):
    """A block whose layers quantize weights by the scheme, and inputs by a specification, if any."""
    weight = SPECS[scheme].to_quantization_spec()
    layer = quark.QLayerConfig(weight=weight, input_tensors=inputs and inputs.to_quantization_spec())
    quantized = ModelQuantizer(quark.QConfig(global_quant_config=layer)).quantize_model(Block(), [])
    for module in quantized.modules():
        if isinstance(module, FakeQuantizeBase):  # as before calibration, when searches run
            module.disable_observer()
            module.disable_fake_quant()
    return quantized


def search(processor, **fields):
    """The processor without a model."""
    search = processor.__new__(processor)
    search.using_accelerate, search.device = False, torch.device("cpu")
    for name, value in fields.items():
        setattr(search, name, value)
    return search


def inputs():
    x = mix(make_input(TOKENS, FEATURES, "f32", seed=4))
    x[:, 7] = x[:, 8] * 0.5
    return x


def smooth(alpha):
    module, x = Block(), inputs()
    maxima = {name: x.abs().amax(0) for name in ("mlp.gate", "mlp.up")}
    layers = [module.mlp.gate, module.mlp.up]
    found = search(SmoothQuantProcessor, alpha=alpha, clamp_min=1e-3)._search_best_scale(module, maxima, module.norm, layers, x)
    return {"algorithm": "smoothquant", "alpha": alpha, "scales": whole(found[2])}


def awq(scheme, place):
    module, x = block(scheme), inputs()
    layers = [module.mlp.gate, module.mlp.up] if place == "mlp" else [module.mlp.up]
    inspect = module.mlp if place == "mlp" else None
    processor = search(AwqProcessor)
    with torch.no_grad():
        _, _, scales, ratio = processor._search_best_scale(module, module.norm, layers, x, inspect)
    return {"algorithm": "awq", "scheme": scheme, "place": place, "ratio": ratio, "scales": whole(scales)}


def awq_clip(scheme):
    module = block(scheme)
    limits = search(AwqProcessor)._compute_best_clip(module.mlp.up, inputs())
    return {"algorithm": "clip", "scheme": scheme, "limits": whole(limits.reshape(HIDDEN, -1))}


def auto_smooth(loss):
    module, x = block("int4:g32", INT8_TOKEN), inputs()
    processor = search(AutoSmoothQuantProcessor, compute_scale_loss=loss)
    with torch.no_grad():
        _, _, scales, ratio = processor._search_best_scale(module, module.norm, [module.mlp.up], x)
    return {"algorithm": "autosmoothquant", "loss": loss, "ratio": ratio, "scales": whole(scales)}


def main():
    records = [smooth(alpha) for alpha in (0.5, 0.8, 1.0)]
    records += [awq(scheme, place) for scheme in SPECS for place in ("linear", "mlp")]
    records += [awq_clip(scheme) for scheme in SPECS]
    records += [auto_smooth(loss) for loss in ("MSE", "MAE", "RMSE")]
    document = {"features": FEATURES, "hidden": HIDDEN, "tokens": TOKENS, "records": records}
    path = Path(__file__).parent / "quark_transforms.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
