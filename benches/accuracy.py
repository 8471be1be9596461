#!/usr/bin/env python3
"""Perplexity of models quantized by Kvant beside AMD Quark's, on the same calibration and evaluation tokens.

    python3 benches/accuracy.py --calib TEXT --data TEXT MODEL... [--kvant target/release/kvant] [--schemes int8,fp8]
                                [--seq-len 256] [--samples 32] [--cache FILE]

Run it with a Python that has amd-quark and transformers. Quark quantizes in memory in the model's own type; the frozen
model, whose weights and activations are fake-quantized, is then evaluated in f32. Kvant writes a checkpoint and evaluates
that. `fp8+kv` is fp8 with a KV cache in fp8. Windows follow each other from the start of the text; a shorter tail is dropped.
Prints a Markdown table. Static scales are compared with Quark's twice: as it finds them in the model's own type, whose rounding
noise is in every activation, and as it finds them with the model in f32, rounded to the type in which Kvant stores them.
"""
import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from held_out import perplexity, text_windows

os.environ["QUARK_DISABLE_COMPILE"] = "1"
os.environ.setdefault("QUARK_LOG_LEVEL", "error")

SCHEMES = "float,int4_wo_128,uint4_wo_32,int8,fp8,ptpc_fp8,mxfp4,mxfp6_e2m3,nvfp4,fp8+kv"
STATIC = ("int8", "fp8", "nvfp4", "fp8+kv", "mxfp4_fp8")


def quark(source, scheme, calibration, evaluation):
    """The perplexity, and the static scales by name."""
    import torch
    from quark.torch import LLMTemplate, ModelQuantizer
    from quark.torch.utils.llm import preprocess_for_quantization
    from transformers import AutoConfig, AutoModelForCausalLM

    def quantized(dtype):
        # Only eager attention has soft-caps.
        capped = getattr(AutoConfig.from_pretrained(source), "attn_logit_softcapping", None)
        attention = {"attn_implementation": "eager"} if capped else {}
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **attention).eval()
        if scheme == "float":
            return model
        preprocess_for_quantization(model)
        family = model.config.model_type
        template = LLMTemplate.get(family if family in LLMTemplate.list_available() else "llama")
        name, kv = scheme.removesuffix("+kv"), "fp8" if scheme.endswith("+kv") else None
        config = template.get_config(scheme=name, kv_cache_scheme=kv)
        loader = [row[None] for row in calibration] if scheme in STATIC else None
        return ModelQuantizer.freeze(ModelQuantizer(config).quantize_model(model, loader))

    def scales(model):
        chosen = ((key, value) for key, value in model.state_dict().items() if "put_quantizer" in key and key.endswith("scale"))
        return {key: value.float().item() for key, value in chosen if value.numel() == 1}

    model = quantized("auto")
    found = {"scales": scales(model) if scheme in STATIC else {}}
    found["scales_f32"] = scales(quantized(torch.float32)) if scheme in STATIC else {}
    return found | {"perplexity": perplexity(model.float(), evaluation)}


def kvant(a, source, scheme):
    """The perplexity, and the exported static scales by name."""
    from safetensors import safe_open

    common = ["--data", a.data, "--seq-len", str(a.seq_len), "--json", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        target, scales = source, {}
        if scheme != "float":
            target = str(Path(folder) / "out")
            command = [a.kvant, "quantize", source, "--scheme", scheme.removesuffix("+kv"), "--quiet", "-o", target]
            if scheme in STATIC:
                command += ["--calib", a.calib, "--num-samples", str(a.samples), "--seq-len", str(a.seq_len)]
            if scheme.endswith("+kv"):
                command += ["--kv-cache", "fp8"]
            subprocess.run(command + a.kvant_options, check=True, stdout=subprocess.DEVNULL)
            for file in Path(target).glob("*.safetensors"):
                with safe_open(file, "pt") as tensors:
                    names = [name for name in tensors.keys() if "input_scale" in name or "output_scale" in name]
                    scales |= {name: (tensors.get_tensor(name).float().item(), str(tensors.get_tensor(name).dtype)) for name in names}
        found = json.loads(subprocess.run([a.kvant, "eval", target, *common], check=True, capture_output=True).stdout)
    return {"perplexity": found["perplexity"], "scales": scales}


def exported_name(name):
    for inside, outside in (("._input_quantizer.1.scale", ".input_scale_2"), ("._input_quantizer.scale", ".input_scale"),
                            ("._output_quantizer.scale", ".output_scale")):  # fmt: skip
        name = name.replace(inside, outside)
    return name


def compare_scales(scheme, ours, theirs, model_type):
    """How many scales both have, how many are equal, and the largest relative difference of the others."""
    import torch

    def rounded(value, dtype):
        return torch.tensor(value).to(getattr(torch, dtype.removeprefix("torch."))).float().item()

    def expected(name, dtype):
        # Keys and values are exported with one scale, the greater.
        pair = {name, name.replace("k_proj", "v_proj"), name.replace("v_proj", "k_proj")} if name.endswith("output_scale") else {name}
        return rounded(max(theirs[each] for each in pair), stored or dtype)

    # An int8 scale is stored in f32 and computed in the model's type.
    stored = model_type if scheme == "int8" else None
    theirs = {exported_name(name): value for name, value in theirs.items()}
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    pairs = [(value, expected(name, dtype)) for name, (value, dtype) in ours.items()]
    largest = max((abs(a - b) / abs(b) for a, b in pairs), default=0.0)
    return f"{sum(a == b for a, b in pairs)} of {len(pairs)}, {largest:.0e}" if pairs else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kvant", default="target/release/kvant")
    parser.add_argument("--kvant-options", nargs="*", default=[])
    parser.add_argument("--schemes", default=SCHEMES)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--cache", help="a JSON file that keeps Quark's results from run to run")
    a = parser.parse_args()
    assert shutil.which(a.kvant), a.kvant
    cache = Path(a.cache) if a.cache else None
    known = json.loads(cache.read_text()) if cache and cache.exists() else {}
    print("| model | scheme | Quark | Kvant | difference | equal scales, largest difference | with Quark in f32 |\n|---|---|---|---|---|---|---|")
    for source in a.models:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source)
        calibration = text_windows(tokenizer, a.calib, a.seq_len)[: a.samples]
        evaluation = text_windows(tokenizer, a.data, a.seq_len)
        config = json.loads((Path(source) / "config.json").read_text())
        model_type = config.get("dtype") or config.get("torch_dtype")
        for scheme in a.schemes.split(","):
            key = f"{Path(source).name} {scheme} {a.seq_len} {a.samples}"
            if key not in known:
                known[key] = quark(source, scheme, calibration, evaluation)
                if cache:
                    cache.write_text(json.dumps(known))
            theirs = known[key]
            try:
                ours = kvant(a, source, scheme)
            except subprocess.CalledProcessError as error:
                print(f"| {Path(source).name} | {scheme} | {theirs['perplexity']:.4f} | failed: {error.returncode} | | | |", flush=True)
                continue
            difference = ours["perplexity"] / theirs["perplexity"] - 1
            scales = [compare_scales(scheme, ours["scales"], theirs[kind], model_type) for kind in ("scales", "scales_f32")]
            print(f"| {Path(source).name} | {scheme} | {theirs['perplexity']:.4f} | {ours['perplexity']:.4f} | {difference:+.3%} | {' | '.join(scales)} |", flush=True)


if __name__ == "__main__":
    main()
