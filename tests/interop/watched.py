"""What a loader does with the tensors of a checkpoint: which go where, and which parameters of the model they fill."""

import torch

# A loader may read its own parameters: of two scales that must be the same, say. Against NaN every such check passes.
PATTERNS = {torch.float32: (torch.int32, (-1, 0x7FFFFFFF))}
WRITES = (torch.Tensor.copy_, torch.Tensor.__setitem__, torch.Tensor.fill_, torch.Tensor.data.__set__)


class Watched(torch.Tensor):
    """A tensor of a checkpoint that notices when it, or what is made of it, is written to another tensor."""

    used = set()

    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), keywords=None):
        result = super().__torch_function__(function, kinds, arguments, keywords or {})
        sources = set().union(*(a.sources for a in leaves(arguments) if isinstance(a, Watched) and hasattr(a, "sources")))
        # A scale that is one number is filled in as a number of Python's.
        if function in WRITES or function is torch.Tensor.item:
            cls.used |= sources
        for made in leaves(result):
            if isinstance(made, Watched) and sources:
                made.sources = sources
        return result


def leaves(value):
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def watched(weights):
    for name, tensor in weights:
        tensor = tensor.as_subclass(Watched)
        tensor.sources = {name}
        yield name, tensor


def fill(model, which):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel():
                kind, values = PATTERNS.get(parameter.dtype, (torch.uint8, (0, 255)))
                parameter.data.contiguous().view(-1).view(kind).fill_(values[which])


def contents(model):
    return {name: p.data.contiguous().view(-1).view(torch.uint8).clone() for name, p in model.named_parameters() if p.numel()}


def observe(model, read, load, optional, unread):
    """`read()` yields the tensors of the checkpoint and `load(tensors)` puts them into the model -> (the parameters that the checkpoint does not
    fill, wholly or in part; its tensors that go nowhere), without those whose last name is in `optional` and in `unread`."""
    Watched.used.clear()
    found = []
    # What the checkpoint fills is the same whatever was there before.
    for which in (0, 1):
        fill(model, which)
        weights = list(watched(read()))
        load(iter(weights))
        found.append(contents(model))
    missing = [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]
    missing = sorted(name for name in missing if name.rsplit(".", 1)[-1] not in optional)
    unused = sorted(name for name in {name for name, _ in weights} - Watched.used if name.rsplit(".", 1)[-1] not in unread)
    return missing, unused


def methods(model):
    """How many layers get which of the loader's methods of quantization."""
    counts = {}
    for layer in model.modules():
        if getattr(layer, "quant_method", None) is not None:
            kind = type(getattr(layer, "scheme", None) or layer.quant_method).__name__
            counts[kind] = counts.get(kind, 0) + 1
    return counts
