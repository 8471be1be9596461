"""Keys that config.json does not state: Kvant computes with the defaults of transformers' configuration classes."""

import concurrent.futures
import json

import numpy as np
import pytest
import transformers

import forward_models

# One model of each kind of configuration; the first, which has most of its rules.
OF_KIND = {forward_models.MODELS[name][0]: name for name in reversed(forward_models.MODELS)}
# What a configuration is of, not what is computed.
NAMES = ("model_type", "architectures", "dtype", "transformers_version", "_name_or_path")
# Lists that classes make of other keys, which published models state, as they do the scaling of rotary embeddings.
COMPUTED = ("layer_types",)
# Blocks that config.json does not count are those of the files.
COUNTS = ("n_layer", "num_hidden_layers")


def section(config):
    """The part of a configuration that describes the language model."""
    return config["text_config"] if "text_config" in config else config


def default(kind, arguments, key):
    """The value of a key in transformers' configuration where it is not an argument, as JSON has it."""
    try:
        config = transformers.AutoConfig.for_model(kind, **arguments)
        return json.loads(json.dumps(config.to_dict())).get(key)
    except Exception:  # The class refuses its default beside the other keys.
        return None


@pytest.mark.parametrize("name", sorted(OF_KIND.values()))
def test_absent_keys_have_the_defaults_of_their_class(name, kvant, tmp_path):
    model = forward_models.save(name, tmp_path / "model")
    whole = json.loads((model / "config.json").read_text())
    tokens = np.random.default_rng(3).integers(0, 512, (2, 24)).tolist()
    (tmp_path / "tokens.jsonl").write_text("\n".join(map(json.dumps, tokens)))

    def perplexity(place, changed):
        """That with these keys of the language model's configuration; None where Kvant refuses it."""
        config = dict(whole, text_config=changed) if "text_config" in whole else changed
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        for file in model.glob("*.safetensors*"):
            (place / file.name).symlink_to(file)
        done = kvant("eval", place, "--data", tmp_path / "tokens.jsonl", "--seq-len", "24", "--threads", "1", "--json")
        return json.loads(done.stdout)["perplexity"] if done.returncode == 0 else None

    def compared(key):
        """What is computed without a key, and with its default; None where a default does not fit the model or is null."""
        known = section(whole)
        rest = {other: value for other, value in known.items() if other != key}
        arguments = {other: value for other, value in rest.items() if other not in NAMES}
        stated = default(known["model_type"], arguments, key)
        is_scaled = key == "rope_parameters" and stated and stated.get("rope_type") != "default"
        if stated is None or is_scaled or key in COMPUTED + COUNTS:
            return None
        absent = perplexity(tmp_path / f"{key}-absent", rest)
        if absent is None:
            return None
        # Most keys of the models have the default as their value.
        expected = usual if stated == known[key] else perplexity(tmp_path / f"{key}-stated", dict(rest, **{key: stated}))
        return None if expected is None else (absent, expected, stated)

    usual = perplexity(tmp_path / "usual", section(whole))
    keys = [key for key in section(whole) if key not in NAMES]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = dict(zip(keys, pool.map(compared, keys), strict=True))
    wrong = {key: both for key, both in found.items() if both and both[0] != pytest.approx(both[1], rel=1e-9)}
    assert not wrong, f"key: (without it, with its default, the default) {wrong}"
    assert any(found.values()), "no key has been compared"
