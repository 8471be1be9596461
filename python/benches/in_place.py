"""Time and memory of static int8 quantization of a ResNet-50 in place with 32 pictures, beside amd-quark's.


OMP_NUM_THREADS=2 python benches/in_place.py
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
import transformers


def network() -> torch.nn.Module:
    """A ResNet-50 of random weights."""
    torch.manual_seed(0)
    return transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()


def kvant_s(model: torch.nn.Module, pictures: list[torch.Tensor]) -> None:
    """Quantizes with Kvant."""
    import kvant.torch

    kvant.torch.quantize_(model, "int8:tensor+int8:tensor!static", pictures)
    kvant.torch.freeze(model)


def quark_s(model: torch.nn.Module, pictures: list[torch.Tensor]) -> None:
    """The same with amd-quark."""
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import QConfig, QLayerConfig, QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from quark.torch.quantization.observer import PerTensorMinMaxObserver

    spec = QTensorConfig(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        symmetric=True,
        is_dynamic=False,
        round_method=RoundType.half_even,
        scale_type=ScaleType.float,
    )
    quantizer = ModelQuantizer(QConfig(global_quant_config=QLayerConfig(weight=spec, input_tensors=spec)))
    quantizer.freeze(quantizer.quantize_model(model, pictures))


def measured(name: str) -> dict[str, Any]:
    """Seconds, and the growth of the largest memory in MB."""
    model = network()
    pictures = [torch.randn(4, 3, 224, 224) for _ in range(8)]
    with torch.no_grad():
        model(pictures[0])
    # What the first use of either imports and compiles does not count.
    small = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    {"kvant": kvant_s, "quark": quark_s}[name](small, [picture[:1, :, :8, :8] for picture in pictures])
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    {"kvant": kvant_s, "quark": quark_s}[name](model, pictures)
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    """Measures each in a separate process, alternating, and prints the best of three."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1])))
        return
    best: dict[str, Any] = {}
    for name in ("kvant", "quark") * 3:
        run = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
        if run.returncode:
            print(f"{name}: {run.stderr.strip().splitlines()[-1]}")
            continue
        found = json.loads(run.stdout.strip().splitlines()[-1])
        if name not in best or found["seconds"] < best[name]["seconds"]:
            best[name] = found
    for name, found in best.items():
        print(f"{name}: {found['seconds']:.2f} s, {found['memory']:.0f} MB more")


if __name__ == "__main__":
    main()
