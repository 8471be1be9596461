"""Makes tiny random diffusers pipelines and compares their denoisers. Runs in a separate process that can import diffusers.

python diffusers_pipelines.py make NAME FOLDER
python diffusers_pipelines.py load FLOAT QUANTIZED [EXPECTED]   prints JSON: per component the largest difference of outputs
python diffusers_pipelines.py capture FOLDER COMPONENT FILE     captures statistics of the component's inputs over two steps
python diffusers_pipelines.py static FLOAT COMPONENT QUANTIZED  prints JSON: layers with static scales, and the error of a step
"""

import json
import sys
from pathlib import Path

import diffusers
import torch
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel


def clip(hidden=32):
    config = CLIPTextConfig(
        vocab_size=99, hidden_size=hidden, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        projection_dim=32, max_position_embeddings=16, bos_token_id=0, eos_token_id=2,
    )
    return CLIPTextModel(config)


def t5():
    return T5EncoderModel(T5Config(vocab_size=99, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4))


def vae():
    return diffusers.AutoencoderKL(
        block_out_channels=(8,), down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
        latent_channels=4, norm_num_groups=4, sample_size=16,
    )


def flux():
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )
    return diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=vae(), text_encoder=clip(), tokenizer=None,
        text_encoder_2=t5(), tokenizer_2=None, transformer=transformer,
    )


def unet(cross=32, **more):
    return diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=16, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=cross, attention_head_dim=8, norm_num_groups=8, **more,
    )


def sd():
    return diffusers.StableDiffusionPipeline(
        vae=vae(), text_encoder=clip(), tokenizer=None, unet=unet(), scheduler=diffusers.DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )


def sdxl():
    from transformers import CLIPTextModelWithProjection

    second = CLIPTextModelWithProjection(clip().config)
    return diffusers.StableDiffusionXLPipeline(
        vae=vae(), text_encoder=clip(), text_encoder_2=second, tokenizer=None, tokenizer_2=None,
        unet=unet(64, addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=80,
                  use_linear_projection=True, transformer_layers_per_block=1),
        scheduler=diffusers.EulerDiscreteScheduler(),
    )


def pixart():
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=4, in_channels=4,
        out_channels=8, caption_channels=32, cross_attention_dim=32, use_additional_conditions=False,
    )
    return diffusers.PixArtSigmaPipeline(
        tokenizer=None, text_encoder=t5(), vae=vae(), transformer=transformer, scheduler=diffusers.DDIMScheduler(),
    )


def sd3():
    from transformers import CLIPTextModelWithProjection

    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=1, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=64, out_channels=4,
    )
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=vae(),
        text_encoder=CLIPTextModelWithProjection(clip().config), tokenizer=None,
        text_encoder_2=CLIPTextModelWithProjection(clip().config), tokenizer_2=None, text_encoder_3=t5(), tokenizer_3=None,
    )


def qwen_image():
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=32, axes_dims_rope=(4, 6, 6),
    )
    return diffusers.QwenImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=None, text_encoder=None, tokenizer=None,
        transformer=transformer,
    )


def wan():
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=24, in_channels=16, out_channels=16, text_dim=32,
        freq_dim=32, ffn_dim=64, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
    )
    return diffusers.WanPipeline(
        tokenizer=None, text_encoder=None, vae=None, transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )


PIPELINES = {"flux": flux, "sd": sd, "sdxl": sdxl, "sd3": sd3, "pixart": pixart, "qwen_image": qwen_image, "wan": wan}


def weights(component):
    """Every parameter in f32, of torchao's tensors their codes times their scales."""
    found = {}
    for name, parameter in component.named_parameters():
        data = parameter.data
        if hasattr(data, "qdata"):
            data = data.qdata.float() * data.scale.float()
        found[name] = data.float()
    return found


def denoise(pipeline, name, seed=1):
    """One step of the denoiser, whose inputs follow from its class."""
    torch.manual_seed(seed)
    model = getattr(pipeline, name)
    kind, dtype = type(model).__name__, torch.bfloat16
    draw = lambda *shape: torch.randn(*shape).to(dtype)  # noqa: E731
    if kind == "FluxTransformer2DModel":
        return model(draw(1, 16, 16), encoder_hidden_states=draw(1, 5, 32), pooled_projections=draw(1, 32),
                     timestep=torch.tensor([0.5]), img_ids=torch.zeros(16, 3), txt_ids=torch.zeros(5, 3))[0]
    if kind == "SD3Transformer2DModel":
        return model(draw(1, 4, 16, 16), encoder_hidden_states=draw(1, 5, 32), pooled_projections=draw(1, 64),
                     timestep=torch.tensor([5.0]))[0]
    if kind == "PixArtTransformer2DModel":
        return model(draw(1, 4, 8, 8), encoder_hidden_states=draw(1, 5, 32), timestep=torch.tensor([5]),
                     added_cond_kwargs={"resolution": None, "aspect_ratio": None})[0]
    if kind == "QwenImageTransformer2DModel":
        return model(draw(1, 16, 16), encoder_hidden_states=draw(1, 5, 32), encoder_hidden_states_mask=torch.ones(1, 5),
                     timestep=torch.tensor([0.5]), img_shapes=[(1, 4, 4)])[0]
    if kind == "WanTransformer3DModel":
        return model(draw(1, 16, 1, 8, 8), timestep=torch.tensor([5]), encoder_hidden_states=draw(1, 5, 32))[0]
    more = {}
    if model.config.addition_embed_type == "text_time":
        more["added_cond_kwargs"] = {"text_embeds": draw(1, 32), "time_ids": draw(1, 6)}
    return model(draw(1, 4, 16, 16), 5, encoder_hidden_states=draw(1, 5, model.config.cross_attention_dim), **more)[0]


def load(folder):
    """The pipeline; components that its index does not name (tokenizers) are None."""
    index = json.loads((Path(folder) / "model_index.json").read_text())
    absent = {name: None for name, stated in index.items() if isinstance(stated, list) and stated[0] is None}
    return diffusers.DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.bfloat16, **absent)


def run(verb, *arguments):
    torch.manual_seed(0)
    if verb == "make":
        name, folder = arguments
        PIPELINES[name]().to(torch.bfloat16).save_pretrained(folder)
        return None
    if verb == "capture":
        import kvant.torch

        folder, name, path = arguments
        pipeline = load(folder)
        steps = lambda: [denoise(pipeline, name, seed) for seed in (2, 3)]  # noqa: E731
        kvant.torch.capture_statistics({name: getattr(pipeline, name)}, steps, path)
        return None
    if verb == "static":
        import kvant.torch

        folder, name, quantized = arguments
        source, loaded = load(folder), load(folder)
        model = kvant.torch.load(getattr(loaded, name), Path(quantized) / name)
        layers = [layer for _, layer in kvant.torch.quantized_modules(model)]
        with torch.no_grad():
            ours, theirs = denoise(loaded, name).float(), denoise(source, name).float()
        return {
            "layers": len(layers),
            "static": sum(layer.input_quantizer is not None and layer.input_quantizer.scale is not None for layer in layers),
            "error": ((ours - theirs).square().sum() / theirs.square().sum()).item(),
        }
    source, quantized, *expected = map(load, arguments)
    expected = expected[0] if expected else None
    report = {}
    for name, component in quantized.components.items():
        if not isinstance(component, torch.nn.Module):
            continue
        codes = sum(hasattr(parameter.data, "qdata") for parameter in component.parameters())
        entry = {"codes": codes}
        if expected is not None:
            ours, theirs = weights(component), weights(getattr(expected, name))
            assert ours.keys() == theirs.keys(), name
            entry["weights"] = max(
                ((ours[key] - theirs[key]).abs().max() / theirs[key].abs().max().clamp(min=1e-9)).item() for key in ours
            )
        if name in ("transformer", "unet"):
            with torch.no_grad():
                mine, float_one = denoise(quantized, name).float(), denoise(source, name).float()
            assert torch.isfinite(mine).all()
            entry["error"] = ((mine - float_one).square().sum() / float_one.square().sum()).item()
            entry["cosine"] = torch.nn.functional.cosine_similarity(mine.flatten(), float_one.flatten(), dim=0).item()
        report[name] = entry
    return report


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
