"""Time and memory of GPTQ of a decoder through PyTorch, beside amd-quark's and Kvant's run on the checkpoint.

OMP_NUM_THREADS=2 python benches/gptq.py
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

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
    data = [batch.flatten().tolist() for batch in tokens]

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


def measured(name: str) -> dict[str, Any]:
    """Seconds, and the growth of the largest memory in MB."""
    model = decoder()
    tokens = [torch.randint(0, 4096, (1, TOKENS)) for _ in range(BATCHES)]
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        model(tokens[0])
        run = {"kvant": kvant_s, "checkpoint": file_s, "quark": quark_s}[name](model, tokens, Path(directory))
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        run()
        seconds = time.perf_counter() - begun
    return {"seconds": seconds, "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    """Measures each in a separate process, alternating, and prints the best of two."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1])))
        return
    best: dict[str, Any] = {}
    for name in ("kvant", "checkpoint", "quark") * 2:
        run = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
        if run.returncode:
            print(f"{name}: {run.stderr.strip().splitlines()[-1]}")
            continue
        found = json.loads(run.stdout.strip().splitlines()[-1])
        if name not in best or found["seconds"] < best[name]["seconds"]:
            best[name] = found
    for name, found in best.items():
        print(f"{name}: {found['seconds']:.1f} s, {found['memory']:.0f} MB more")


if __name__ == "__main__":
    main()
