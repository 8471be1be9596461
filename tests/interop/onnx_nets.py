"""Networks of the ONNX tests that no package brings, and the settling of untrained ones.

Weights are random but not degenerate: initialised as for training, the gains of batch norms related to their inputs as
training relates them, and the norms' statistics measured, so that activations keep their size from the first layer to the last.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def follow(norm, inputs):
    """Sets the gains of `norm` from what comes in: in trained nets a channel's gain goes with its deviation, most of the way."""
    deviation = inputs[0].std(dim=(0, 2, 3)).clamp_min(1e-3)
    gain = (deviation / deviation.log().mean().exp()) ** 0.7 * torch.randn_like(deviation).mul(0.2).exp()
    norm.weight.data.copy_(getattr(norm, "share", 1.0) * gain / gain.pow(2).mean().sqrt())
    nn.init.normal_(norm.bias, std=0.2)


def quieten(net, share=0.25):
    """Residual branches of torchvision's nets add `share` of what their sums hold; untrained ones of full size are chaotic."""
    for block in net.modules():
        if type(block).__name__ == "Bottleneck":
            block.bn3.share = share
        if type(block).__name__ == "InvertedResidual" and block.use_res_connect:
            block.conv[-1].share = share
    return net


def settle(net, batch):
    """Gains and offsets for the batch norms of `net`, then their statistics, both measured on `batch` layer by layer."""
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    net.train()
    with torch.no_grad():
        hooks = [m.register_forward_pre_hook(follow) for m in norms]
        net(batch)
        for hook in hooks:
            hook.remove()
        for m in norms:
            m.momentum = None  # the plain average
            m.reset_running_stats()
        net(batch)
    return net.eval()


class ConvBlock(nn.Sequential):
    def __init__(self, c_in, c_out, kernel=3, stride=1, activation=nn.SiLU):
        super().__init__(nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(c_out), activation())


class CrossStage(nn.Module):
    """A cross-stage block: half of the channels pass by, the others go through bottlenecks, all of them are joined."""

    def __init__(self, c, depth=1):
        super().__init__()
        self.first, self.last = ConvBlock(c, c, 1), ConvBlock(c // 2 * (2 + depth), c, 1)
        self.inner = nn.ModuleList(nn.Sequential(ConvBlock(c // 2, c // 2), ConvBlock(c // 2, c // 2)) for _ in range(depth))

    def forward(self, x):
        parts = list(torch.split(self.first(x), x.shape[1] // 2, dim=1))
        for block in self.inner:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class PyramidPool(nn.Module):
    """Three max pools in a row, all stages joined."""

    def __init__(self, c):
        super().__init__()
        self.first, self.last = ConvBlock(c, c // 2, 1), ConvBlock(c * 2, c, 1)

    def forward(self, x):
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class YoloLike(nn.Module):
    """A one-stage detector: backbone, top-down neck with Resize, two heads; outputs boxes and scores."""

    def __init__(self, c=16, classes=8, bins=8):
        super().__init__()
        self.bins = bins
        self.stem = nn.Sequential(ConvBlock(3, c, 3, 2), ConvBlock(c, 2 * c, 3, 2), CrossStage(2 * c))
        self.middle = nn.Sequential(ConvBlock(2 * c, 4 * c, 3, 2), CrossStage(4 * c, 2))
        self.deep = nn.Sequential(ConvBlock(4 * c, 8 * c, 3, 2), CrossStage(8 * c), PyramidPool(8 * c))
        self.up = nn.Sequential(ConvBlock(12 * c, 4 * c, 1), CrossStage(4 * c))
        self.heads = nn.ModuleList(nn.Sequential(ConvBlock(k, 4 * c), nn.Conv2d(4 * c, 4 * bins + classes, 1)) for k in (4 * c, 8 * c))

    def boxes(self, raw):
        """Expected distances over `bins`, [n, 4, anchors]."""
        n, _, anchors = raw.shape
        share = raw.reshape(n, 4, self.bins, anchors).softmax(2)
        return (share * torch.arange(self.bins, dtype=raw.dtype)[None, None, :, None]).sum(2)

    def forward(self, x):
        middle = self.middle(self.stem(x))
        deep = self.deep(middle)
        up = self.up(torch.cat([F.interpolate(deep, scale_factor=2.0, mode="nearest"), middle], 1))
        raw = torch.cat([head(f).flatten(2) for head, f in zip(self.heads, (up, deep))], 2)
        box, score = torch.split(raw, [4 * self.bins, raw.shape[1] - 4 * self.bins], 1)
        return self.boxes(box), score.sigmoid()


class UNet(nn.Module):
    """Two levels down and up again through ConvTranspose, with skips; outputs one map per class."""

    def __init__(self, c=16, classes=4):
        super().__init__()
        relu = dict(activation=nn.ReLU)
        double = lambda a, b: nn.Sequential(ConvBlock(a, b, **relu), ConvBlock(b, b, **relu))  # noqa: E731
        self.down = nn.ModuleList([double(3, c), double(c, 2 * c)])
        self.bottom = double(2 * c, 4 * c)
        widen = lambda a, b: nn.Sequential(nn.ConvTranspose2d(a, b, 2, 2), nn.BatchNorm2d(b))  # noqa: E731
        self.raise_ = nn.ModuleList([widen(4 * c, 2 * c), widen(2 * c, c)])
        self.up = nn.ModuleList([double(4 * c, 2 * c), double(2 * c, c)])
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for raise_, block in zip(self.raise_, self.up):
            x = block(torch.cat([raise_(x), skips.pop()], 1))
        return self.head(x)


class Recurrent(nn.Module):
    """A linear layer, a bidirectional LSTM, a GRU and a classifier of the last step."""

    def __init__(self, features=12, hidden=48, classes=6):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        x, _ = self.lstm(torch.relu(self.first(x)))
        x, _ = self.gru(x)
        return self.head(x[:, -1])


def wide_init(net, gain):
    """Matrices scaled to inputs of unit size times `gain`: attention that attends, layers that say something."""
    for p in net.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=gain / math.sqrt(p.shape[1]))
        else:
            nn.init.normal_(p, mean=float(p.mean()), std=0.1)
    return net


class RmsNorm(nn.Module):
    def __init__(self, weight, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def linear(weight):
    layer = nn.Linear(*reversed(weight.shape), bias=False)
    layer.weight = nn.Parameter(weight)
    return layer


class DecoderBlock(nn.Module):
    """Attention with rotary positions and grouped keys, then a gated feed-forward."""

    def __init__(self, weights, heads, kv_heads, eps):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.norm1 = RmsNorm(weights["input_layernorm"], eps)
        self.norm2 = RmsNorm(weights["post_attention_layernorm"], eps)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            setattr(self, name.split(".")[1], linear(weights[name]))

    def split_heads(self, x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def attend(self, x, cos, sin):
        turn = lambda v: v * cos + torch.cat([-v[..., v.shape[-1] // 2 :], v[..., : v.shape[-1] // 2]], -1) * sin  # noqa: E731
        q = turn(self.split_heads(self.q_proj(x), self.heads))
        k = turn(self.split_heads(self.k_proj(x), self.kv_heads)).repeat_interleave(self.heads // self.kv_heads, 1)
        v = self.split_heads(self.v_proj(x), self.kv_heads).repeat_interleave(self.heads // self.kv_heads, 1)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm1(x), cos, sin)
        h = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Decoder(nn.Module):
    """A llama of the checkpoint's tensors; tokens [n, length] to logits [n, length, vocabulary]."""

    def __init__(self, config, tensors, length):
        super().__init__()
        get = lambda name: tensors[name + ".weight"].float()  # noqa: E731
        inner = [k[len("model.layers.0.") : -len(".weight")] for k in tensors if k.startswith("model.layers.0.")]
        heads = (config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"])
        self.embed = nn.Embedding.from_pretrained(get("model.embed_tokens"))
        self.blocks = nn.ModuleList(
            DecoderBlock({n: get(f"model.layers.{i}.{n}") for n in inner}, *heads) for i in range(config["num_hidden_layers"])
        )
        self.norm, self.head = RmsNorm(get("model.norm"), config["rms_norm_eps"]), linear(get("lm_head"))
        angles = torch.arange(length)[:, None] * config["rope_parameters"]["rope_theta"] ** -(torch.arange(0, config["head_dim"], 2) / config["head_dim"])
        self.register_buffer("cos", angles.repeat(1, 2).cos())
        self.register_buffer("sin", angles.repeat(1, 2).sin())

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))
