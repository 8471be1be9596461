"""Which layers of a model are quantized, and how."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

import kvant
from kvant._errors import usage_error
from kvant.torch._algorithms import LayerRecipe, Wanted
from kvant.torch._layouts import is_lookup
from kvant.torch._modules import LAYER_TYPES, is_kind, names_of, quantized_class, quantized_modules


@dataclass(frozen=True)
class Selection:
    """What a caller wants for which layers.

    Attributes:
        scheme: Of all layers but embeddings.
        exclude: Patterns of names of layers that stay as they are.
        overrides: Schemes for patterns of names; the last match wins.
        layer_types: Schemes for types, or names of types.
        head: A layer that stays as it is unless it is named.
    """

    scheme: Wanted
    exclude: tuple[str, ...]
    overrides: Mapping[str, Wanted]
    layer_types: Mapping[type[nn.Module] | str, Wanted]
    head: nn.Module | None

    def of(self, module: nn.Module, names: Iterable[str]) -> LayerRecipe | None:
        """What is wanted for a module with these names; a pattern matches if it matches one of them."""
        if any(matches(pattern, name) for pattern in self.exclude for name in names):
            return None
        wanted = None if is_lookup(module) or module is self.head else self.scheme
        for kind, of_type in self.layer_types.items():
            if is_kind(module, kind):
                wanted = of_type
        for pattern, of_name in self.overrides.items():
            if any(matches(pattern, name) for name in names):
                wanted = of_name
        return wanted if isinstance(wanted, LayerRecipe) or wanted is None else LayerRecipe(wanted)


def select(model: nn.Module, selection: Selection) -> dict[str, LayerRecipe]:
    """The layers that are quantized, by the first of their names, with what is wanted for them.

    Warns of weights that stay floats though they are wanted.

    Raises:
        UsageError: The model is quantized already, no layer is selected, or a pattern or type has none.
    """
    if any(True for _ in quantized_modules(model)):
        raise usage_error("the model is quantized already", "quantize the float model")
    modules = names_of(model)
    layers = {module: names for module, names in modules.items() if quantized_class(module) is not None}
    others = _others(modules)
    _check_patterns(selection, layers, others)
    for kind in selection.layer_types:
        known = [*layers, *(other.module for other in others)]
        if not any(is_kind(module, kind) for module in known) and not _is_layer_type(kind):
            name = kind if isinstance(kind, str) else kind.__name__
            raise usage_error(f"`layer_types` names {name!r}", f"types of layers are {', '.join(LAYER_TYPES)}")
    found = {names[0]: selection.of(module, names) for module, names in layers.items()}
    chosen = {name: recipe for name, recipe in found.items() if recipe is not None}
    if not chosen:
        raise usage_error("no layer is left to quantize", "give a scheme, or schemes for the types that the model has")
    _warn_of_floats(model, [other for other in others if selection.of(other.module, other.names) is not None])
    return chosen


@dataclass(frozen=True)
class _Other:
    """Weights that are not quantized in place.

    Attributes:
        module: The module that has them.
        names: The names by which it may be excluded; the first one is shown.
        weights: The weights.
    """

    module: nn.Module
    names: list[str]
    weights: list[Tensor]


def _others(modules: Mapping[nn.Module, list[str]]) -> list[_Other]:
    """Layers of other types and experts in one tensor, by which a model is larger than it seems."""
    found = []
    for module, names in modules.items():
        if quantized_class(module) is not None:
            continue
        own = {
            name: parameter
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.is_floating_point() and parameter.dim() >= 2
        }
        if isinstance(module, _OTHER_LAYERS):
            found.append(_Other(module, names, list(own.values())))
            continue
        for name, parameter in own.items():
            # [experts, ..., ...]; tables of positions have one entry along their first axis.
            if parameter.dim() == 3 and min(parameter.shape) > 1:
                found.append(_Other(module, [f"{names[0]}.{name}".lstrip("."), *names], [parameter]))
    return [other for other in found if other.weights]


# Types of torch with weights of their own. Subclasses of those that can be quantized are among them where they compute
# otherwise.
_OTHER_LAYERS = (
    nn.Linear,
    nn.modules.conv._ConvNd,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)


def _warn_of_floats(model: nn.Module, others: list[_Other]) -> None:
    """Names weights that stay floats, with their share."""
    weights = {id(weight): weight.numel() for other in others for weight in other.weights}
    if not weights:
        return
    total = {id(weight): weight.numel() for weight in model.parameters() if weight.dim() >= 2}
    names = list(dict.fromkeys(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", other.names[0]) for other in others))
    share = 100 * sum(weights.values()) / sum(total.values())
    warnings.warn(
        f"{share:.2g} % of the weights stay floats, in types that are not quantized in place: {', '.join(names)}. "
        "kvant.quantize on a checkpoint splits experts in one tensor; `exclude` leaves layers out without a warning",
        kvant.KvantWarning,
        stacklevel=4,
    )


def _is_layer_type(kind: type[nn.Module] | str) -> bool:
    """Whether layers of a type can be quantized, in other models at least."""
    if isinstance(kind, str):
        return kind in LAYER_TYPES
    return any(base.__name__ in LAYER_TYPES for base in kind.__mro__) or issubclass(nn.Linear, kind)


def _check_patterns(selection: Selection, layers: Mapping[nn.Module, list[str]], others: Iterable[_Other]) -> None:
    """Refuses patterns that match nothing."""
    names = [name for given in layers.values() for name in given]
    excludable = [*names, *(name for other in others for name in other.names)]
    for patterns, known in ((selection.exclude, excludable), (selection.overrides, names)):
        for pattern in patterns:
            if not any(matches(pattern, name) for name in known):
                raise usage_error(f"no layer matches {pattern!r}", _advice(pattern, names))


def matches(pattern: str, name: str) -> bool:
    """Whether a glob, or `re:` and a regular expression, matches a name."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error as error:
            raise usage_error(f"{pattern!r} is not a regular expression: {error}", "correct it") from error
    return fnmatchcase(name, pattern)


def _advice(pattern: str, names: list[str]) -> str:
    """What to write in place of a pattern that matches nothing."""
    if not names:
        return "leave it out: the model has no layer that can be quantized"
    near = difflib.get_close_matches(pattern.strip("*."), [name.rsplit(".")[-1] for name in names], 3, 0.5)
    if near:
        return f"did you mean {' or '.join(dict.fromkeys(near))}?"
    return f"names of layers are, for example, {', '.join(map(repr, names[:3]))}"
