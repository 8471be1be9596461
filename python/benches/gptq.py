"""Time and memory of GPTQ of a decoder through PyTorch, beside amd-quark's and Kvant's run on the checkpoint.

OMP_NUM_THREADS=2 python benches/gptq.py
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from peers import compare, measured

LAYERS, TOKENS, BATCHES = 4, 512, 16


def decoder() -> Any:
    """A decoder of random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=4096,
    )
    return transformers.LlamaForCausalLM(config).eval()


def kvant_s(model: Any, tokens: list[torch.Tensor], directory: Path) -> Callable[[], None]:
    """Quantizes in place."""
    import kvant.torch

    batches = [{"input_ids": batch} for batch in tokens]

    def run() -> None:
        kvant.torch.freeze(kvant.torch.quantize_(model, "int4:g128", batches, algorithm="gptq"))

    return run


def file_s(model: Any, tokens: list[torch.Tensor], directory: Path) -> Callable[[], None]:
    """Quantizes the checkpoint."""
    import kvant

    model.save_pretrained(directory / "float")
    data = torch.cat(tokens)

    def run() -> None:
        kvant.quantize(
            directory / "float",
            "int4:g128",
            algorithm="gptq",
            data=data,
            seq_len=TOKENS,
            num_samples=BATCHES,
            output=directory / "int4",
            progress=False,
        )

    return run


def quark_s(model: Any, tokens: list[torch.Tensor], directory: Path) -> Callable[[], None]:
    """The same with amd-quark."""
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import GPTQConfig, QConfig, QLayerConfig, QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from quark.torch.quantization.observer import PerGroupMinMaxObserver

    spec = QTensorConfig(
        dtype=Dtype.int4,
        qscheme=QSchemeType.per_group,
        observer_cls=PerGroupMinMaxObserver,
        symmetric=True,
        is_dynamic=False,
        round_method=RoundType.half_even,
        scale_type=ScaleType.float,
        ch_axis=1,
        group_size=128,
    )
    inside = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("up", "gate", "down")]
    algorithm = GPTQConfig(inside_layer_modules=inside, model_decoder_layers="model.layers")
    config = QConfig(global_quant_config=QLayerConfig(weight=spec), exclude=["lm_head"], algo_config=[algorithm])
    quantizer = ModelQuantizer(config)
    loader = torch.utils.data.DataLoader([batch.flatten() for batch in tokens], batch_size=1)

    def run() -> None:
        quantizer.freeze(quantizer.quantize_model(model, loader))

    return run


def measure(name: str) -> dict[str, Any]:
    """Measures a tool."""
    model = decoder()
    tokens = [torch.randint(0, 4096, (1, TOKENS)) for _ in range(BATCHES)]
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        model(tokens[0])
        tool = {"kvant": kvant_s, "checkpoint": file_s, "quark": quark_s}[name]
        return measured(tool(model, tokens, Path(directory)))


if __name__ == "__main__":
    compare(__file__, measure, ("kvant", "checkpoint", "quark"), rounds=2)
