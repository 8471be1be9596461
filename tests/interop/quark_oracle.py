"""amd-quark as the oracle: quantizes a model in memory, exports it, and loads and dequantizes exports."""

import os

os.environ["QUARK_DISABLE_COMPILE"] = "1"
os.environ.setdefault("QUARK_LOG_LEVEL", "error")

import torch  # noqa: E402
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors, import_model_from_safetensors  # noqa: E402
from quark.torch.quantization.config.config import BFP16Spec, QConfig, QLayerConfig, QTensorConfig  # noqa: E402
from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType  # noqa: E402
from quark.torch.quantization.observer.observer import (  # noqa: E402
    PerChannelMinMaxObserver,
    PerGroupMinMaxObserver,
    PerTensorMinMaxObserver,
)
from quark.torch.quantization.tensor_quantize import FakeQuantizeBase  # noqa: E402
from quark.torch.utils.llm import preprocess_for_quantization  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from schemes import FAKE_ONLY, STATIC  # noqa: E402

TOKENS = torch.arange(3, 19)[None]
GRANULARITIES = {
    "tensor": (QSchemeType.per_tensor, PerTensorMinMaxObserver),
    "channel": (QSchemeType.per_channel, PerChannelMinMaxObserver),
    "group": (QSchemeType.per_group, PerGroupMinMaxObserver),
}


def template(model_type):
    """Quark's recipe of a family; llama's where it has none (gemma, gpt_neox)."""
    known = model_type in LLMTemplate.list_available()
    return LLMTemplate.get(model_type if known else "llama")


def quantize(source, scheme):
    """The frozen model, fused experts split into linears first as quark-cli does."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
    preprocess_for_quantization(model)
    config = template(model.config.model_type).get_config(scheme=scheme)
    needs_data = scheme in STATIC + FAKE_ONLY
    model = ModelQuantizer(config).quantize_model(model, [TOKENS, TOKENS + 100] if needs_data else None)
    return ModelQuantizer.freeze(model)


def export(source, scheme, out):
    export_safetensors(quantize(source, scheme), str(out))
    return out


def weight_spec(dtype, granularity, group, symmetric):
    """A weight specification that no scheme name stands for."""
    scheme, observer = GRANULARITIES[granularity]
    axis = {"tensor": None, "channel": 0, "group": -1}[granularity]
    return QTensorConfig(dtype=Dtype[dtype], qscheme=scheme, observer_cls=observer, ch_axis=axis, group_size=group, symmetric=symmetric,
                         scale_type=ScaleType.float, round_method=RoundType.half_even, is_dynamic=False)  # fmt: skip


def export_spec(source, spec, out, bias=None):
    """The in-memory export of a dense model whose linears all have the weight specification `spec`, and that of biases."""
    export_safetensors(frozen_spec(source, spec, bias), str(out))
    return out


def frozen_spec(source, spec, bias=None):
    """That model in memory."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
    config = QConfig(global_quant_config=QLayerConfig(weight=spec, bias=bias), exclude=["lm_head"])
    return ModelQuantizer.freeze(ModelQuantizer(config).quantize_model(model, None))


def frozen_weights(source, scheme):
    """The quantized-and-dequantized weights of the in-memory model, by module, in the model's dtype."""
    return {name: m.weight.detach() for name, m in quantize(source, scheme).named_modules() if type(m).__name__ == "QuantLinear"}


def load(directory):
    """A checkpoint through Quark's own loader."""
    config = AutoConfig.from_pretrained(directory)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    return import_model_from_safetensors(model, str(directory)).eval()


def dequantized(model, dtype=None):
    """Weights of a loaded model as its forward pass uses them, by module; in the model's dtype or another."""
    packed = {name: m for name, m in model.named_modules() if type(m).__name__ == "QParamsLinear"}
    with torch.no_grad():
        return {name: m._get_qweight(m.weight).detach().to(dtype or model.dtype) for name, m in packed.items()}


def fake_quantized(scheme, weight):
    """One [out, in] weight through the incumbent's fake quantizer for `scheme`.

    BFP16 runs in f32 whatever the model: in 16 bits the incumbent rounds log2 of the block maximum, which doubles the
    step of some blocks, and that is not reproduced."""
    spec = LLMTemplate.get("llama").get_config(scheme=scheme).global_quant_config.weight
    quantizer = FakeQuantizeBase.get_fake_quantize(BFP16Spec(ch_axis=-1).to_quantization_spec() if scheme == "bfp16" else spec)
    quantizer.enable_observer()
    quantizer.enable_fake_quant()
    with torch.no_grad():
        return quantizer(weight.float() if scheme == "bfp16" else weight.clone()).to(weight.dtype)
