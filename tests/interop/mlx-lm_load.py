"""Loads checkpoints with mlx-lm and runs them on MLX's CPU backend: a line of JSON for each, its logits in `CHECKPOINT.npy`.

python mlx_load.py CHECKPOINT...
"""

import json
import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

TOKENS = np.random.default_rng(1).integers(0, 512, (1, 48)).astype(np.uint32)


def run(checkpoint):
    model, _ = load_model(pathlib.Path(checkpoint))
    # 16-bit products of CPUs are summed in another order than Kvant's.
    model.set_dtype(mx.float32)
    logits = model(mx.array(TOKENS))
    np.save(f"{checkpoint}.npy", np.array(logits.astype(mx.float32)))
    return dict(ok=True)


for checkpoint in sys.argv[1:]:
    try:
        report = run(checkpoint)
    except Exception as error:  # Whatever mlx-lm raises is its answer.
        report = dict(ok=False, error=f"{type(error).__name__}: {error}"[:500])
    print(json.dumps(dict(report, checkpoint=checkpoint)), flush=True)
