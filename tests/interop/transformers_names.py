"""Writes crates/formats/src/loader_names/conversion_mapping.json: how transformers renames the tensors of a checkpoint.

    python tests/interop/transformers_names.py > crates/formats/src/loader_names/conversion_mapping.json

For each model_type or class of transformers' conversion mapping: regular expressions and what replaces the first match.
What merges tensors is left out, as experts are no modules then; `test_loader_names.py` compares names with those of loaded models.
"""

import json

from transformers import conversion_mapping as mapping
from transformers.core_model_loading import GroupWeightRename, WeightRenaming


def renamings(transforms):
    """[pattern, replacement] of each renaming, in the order in which they are applied."""
    plain = [t for t in transforms if isinstance(t, WeightRenaming) and not isinstance(t, GroupWeightRename)]
    return [[source.replace("*.", r".*\."), t.target_patterns[0]] for t in plain for source in t.source_patterns]


def main():
    mapping.get_checkpoint_conversion_mapping("")
    everything = {name: renamings(transforms) for name, transforms in mapping._checkpoint_conversion_mapping_cache.items()}
    # One line for each name, so that updates can be read.
    lines = (f"  {json.dumps(name)}: {json.dumps(rules)}" for name, rules in sorted(everything.items()) if rules and name != "legacy")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
