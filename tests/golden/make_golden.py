"""Writes the golden files beside this script: what amd-quark and compressed-tensors compute on fixed inputs.

Usage (in the environment of tests/interop/requirements.txt, `ninja` and g++ on PATH):
    QUARK_DISABLE_COMPILE=1 python make_golden.py [STEM ...]
The output is deterministic. The record layout is described in README.md.
"""

import json
import os
import pathlib
import sys

os.environ["QUARK_DISABLE_COMPILE"] = "1"
os.environ.setdefault("QUARK_LOG_LEVEL", "error")

import torch  # noqa: E402

HERE = pathlib.Path(__file__).parent


def identity(facts, where):
    """A readable name, unique in its file."""
    axis = {None: "", 0: "0", 1: "1", -1: ""}[facts.get("axis")]
    kind = facts["kind"] if facts["kind"] in ("two_level", "progressive") else None
    parts = [facts["format"], kind, facts.get("element"), facts["granularity"] + axis + str(facts["group"] or "")]
    parts += [{True: "sym", False: "asym", None: None}[facts.get("symmetric")], facts.get("observer"), facts.get("rule")]
    parts += ["scale=" + facts["scale_type"] if facts.get("scale_type") else None, "float_zp" if facts.get("zero_point_type") == "float" else None]
    parts += ["dynamic" if facts.get("dynamic") else None, where]
    return "|".join(p for p in parts if p)


def quark_records(inputs, table):
    from golden_input import make_input
    from quark_eval import evaluate

    for rows, cols, dtype, transform in inputs:
        x = make_input(rows, cols, dtype, transform)
        for facts, spec in table():
            facts = {**facts, "dynamic": bool(getattr(spec, "is_dynamic", False))}
            if facts["group"] not in (None, -1) and cols % facts["group"]:
                continue
            where = f"{dtype}:{rows}x{cols}:{transform}"
            yield {"id": identity(facts, where), "input": {"rows": rows, "cols": cols, "dtype": dtype, "transform": transform},
                   **facts, **evaluate(facts, spec, x)}


def write(stem, records):
    """One record per line, so that a change of one case is a change of one line."""
    records = list(records)
    names = [r["id"] for r in records]
    assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
    lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in records)
    path = HERE / f"{stem}.json"
    path.write_text(f"[\n{lines}\n]\n")
    print(f"{path.name}: {len(records)} records, {sum(r['sound'] for r in records)} sound, {path.stat().st_size} bytes")


def main(wanted):
    from activation_cases import records as activation_records
    from ct_cases import compressed_records
    from quark_cases import tables

    torch.set_num_threads(1)
    for stem, inputs, table in tables():
        if not wanted or stem in wanted:
            write(stem, quark_records(inputs, table))
    if not wanted or "quark_activations" in wanted:
        write("quark_activations", activation_records())
    if not wanted or "compressed_tensors" in wanted:
        write("compressed_tensors", compressed_records())


if __name__ == "__main__":
    with torch.no_grad():
        main(sys.argv[1:])
