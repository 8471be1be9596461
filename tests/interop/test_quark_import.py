"""What Kvant writes in AMD Quark's format, loaded by amd-quark itself, beside what `kvant verify --for amd-quark` says of it."""

import json

import pytest
import transformers

import forward_models

quark_oracle = pytest.importorskip("quark_oracle")

# One model of each kind of configuration, and those whose experts are stored in several ways.
OF_KIND = {forward_models.MODELS[name][0]: name for name in reversed(forward_models.MODELS)}
# Models with other modalities are refused as such.
NAMES = sorted({*OF_KIND.values(), "qwen3_moe_whole", "granitemoehybrid_dense", "nemotron_h_dense"} - {"lfm2_vl", "qwen3_omni_moe", "qwen3_vl_moe"})


def imported(directory):
    """The modules that amd-quark finds quantized, or what it says instead."""
    try:
        config = transformers.AutoConfig.from_pretrained(directory)
        del config.quantization_config
        model = forward_models.model_class(config)._from_config(config, dtype=config.dtype)
        return set(quark_oracle.dequantized(quark_oracle.import_model_from_safetensors(model, str(directory)))), None
    except Exception as error:  # Whatever amd-quark raises is its answer.
        return set(), f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", NAMES)
def test_quark_loads_what_kvant_lists(name, kvant, tmp_path):
    model = forward_models.save(name, tmp_path / "model")
    # Layers of state-space models are not of a size that packed codes fill.
    for scheme in ("int4:g32", "ptpc_fp8"):
        done = kvant("quantize", model, "--scheme", scheme, "--format", "quark", "--no-verify", "-o", tmp_path / "out", "--json")
        if done.returncode == 0:
            break
    else:
        pytest.skip(f"Kvant refuses to write it: {done.stderr}")
    said = json.loads(kvant("verify", tmp_path / "out", "--for", "amd-quark", "--json").stdout)
    verdict = next(row for row in said["loaders"] if row["id"] == "amd-quark")
    planned = "amd-quark" in [row["loader"] for row in json.loads(done.stdout)["loading"]]
    modules, error = imported(tmp_path / "out")
    assert (error is None, error is None) == (verdict["loads"] == "yes", planned), (error, verdict, planned)
    assert error or len(modules) == said["quantized_layers"], modules
