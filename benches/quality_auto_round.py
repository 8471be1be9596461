"""AutoRound's side of quality.py: quantizes models to the scheme of each cell. See held_out.serve.

Symmetric integers have signed scales in AutoRound, as in Kvant's searched ones. The inputs of MXFP4 and W4A8 get their scales at run time,
those of NVFP4 too but below a scale of the tensor that is measured in calibration.
"""

BATCH = 8

SCHEMES = {
    "int4 g128": {"bits": 4, "group_size": 128},
    "int3 g128": {"bits": 3, "group_size": 128},
    "int2 g64": {"bits": 2, "group_size": 64},
    "W4A4 MXFP4": "MXFP4",
    "W4A4 NVFP4": "NVFP4",
    "W4A8": {"bits": 4, "group_size": 128, "act_bits": 8, "act_group_size": -1, "act_sym": True, "act_dynamic": True, "act_data_type": "int"},
}


class Tokenizer:
    """What AutoRound asks of a tokenizer where the data are tokens already."""

    pad_token_id = None
    eos_token_id = None


def quantized(model, cell, calibration):
    """The model with weights, and inputs where the scheme has them, rounded as those of the cell's scheme."""
    import torch
    from auto_round import AutoRound
    from auto_round.schemes import QuantizationScheme

    scheme = SCHEMES[cell["scheme"]]
    scheme = scheme if isinstance(scheme, str) else QuantizationScheme.from_dict(scheme)
    loader = torch.utils.data.DataLoader([{"input_ids": row} for row in calibration], batch_size=BATCH)
    rounder = AutoRound(
        model,
        Tokenizer(),
        scheme=scheme,
        dataset=loader,
        iters=cell["iterations"],
        seqlen=calibration.shape[1],
        nsamples=len(calibration),
        batch_size=BATCH,
        enable_torch_compile=False,
        device_map="cpu",
    )
    return rounder.quantize()[0]


if __name__ == "__main__":
    from held_out import serve

    serve(quantized)
