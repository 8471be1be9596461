"""Which rows of a layer's inputs are which tokens, in models that send tokens different ways (mixtures of experts).

GPTAQ and Qronos compare the inputs of a layer with those in the float model, row by row. Where rows are chosen by
values, such as the scores of a router, the two models may choose other rows, or the same number of other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Rows:
    """How the rows of a tensor were chosen.

    Attributes:
        path: Identifies the choices that led to the tensor; 0 if there were none. Tensors of two runs whose paths are
            equal have the same rows.
        tokens: The number of the row that each row was chosen from, if known.
        origin: The path of the tensor that it was chosen from.
    """

    path: int = 0
    tokens: Tensor | None = None
    origin: int = 0


ALL = Rows()
"""No row was chosen."""


class RowTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows choices of rows while a model runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Every operator that makes a tensor at an address replaces what is known of the one before it.
        self._rows: dict[_Place, Rows] = {}
        # Tensors that no values of the run went into, such as zeros.
        self._constants: set[_Place] = set()

    def of(self, tensor: Tensor) -> Rows:
        """How the rows of a tensor were chosen."""
        place = _place(tensor)
        return ALL if place is None else self._rows.get(place, ALL)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator, and notes the rows of its results."""
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        given = [self.of(tensor) for tensor in tensors]
        is_constant = all(self._is_constant(tensor) for tensor in tensors)
        # Before the operator, which may change its arguments in place.
        chosen = self._chosen(func, args, kwargs, given)
        made = func(*args, **kwargs)
        for index, tensor in enumerate(_tensors(made)):
            place = _place(tensor)
            if place is None:
                continue
            rows = chosen[min(index, len(chosen) - 1)] if chosen else self._kept(func, given, tensor, made)
            if rows.path:
                self._rows[place] = rows
            else:
                self._rows.pop(place, None)
            if is_constant:
                self._constants.add(place)
            else:
                self._constants.discard(place)
        return made

    def _is_constant(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or _place(tensor) in self._constants

    def _chosen(self, func: Any, args: Any, kwargs: Any, given: list[Rows]) -> list[Rows]:
        """The rows of the results of operators that choose rows, or put them back; none for other operators."""
        name = func.overloadpacket.__name__
        if name == "copy_":
            return [given[0]]
        if name in _WRITES:
            return [self._written(name, args, given)]
        if name in _SUMS and self._adds_to_all_rows(args):
            return [ALL]
        if name in ("index", "index_select"):
            return [self._indexed(args)]
        if name == "masked_select":
            return [Rows(_digest(name, args[0], args[1], self.of(args[0]).path))]
        if name == "gather":
            return [Rows(hash((name, args[1], _digest(args[2]), *(rows.path for rows in given))))]
        if name in ("slice", "select", "split", "split_with_sizes", "unbind"):
            return self._parts(name, args, kwargs)
        if name == "cat":
            return [self._joined(args, kwargs)]
        return []

    def _indexed(self, args: Any) -> Rows:
        """Rows that indices or a mask choose."""
        source = args[0]
        by_dimension = isinstance(args[1], int)
        indices = [None] * args[1] + [args[2]] if by_dimension else list(args[1])
        if isinstance(source, nn.Parameter):
            # A table: rows are those of the indices.
            return _combined([self.of(index) for index in indices if index is not None], "index")
        before = self.of(source)
        path = hash(("index", before.path, *(_digest(index) for index in indices)))
        first = indices[0]
        if first is None:
            return Rows(path)
        tokens = _places(first)
        return Rows(path) if tokens is None else _of(before, tokens, path)

    def _written(self, name: str, args: Any, given: list[Rows]) -> Rows:
        """The rows of a tensor after rows were written into it: the same ones if each was put where its token is."""
        into, by_dimension = self.of(args[0]), isinstance(args[1], int)
        axis, indices = (args[1], [args[2]]) if by_dimension else (0, list(args[1]) if _is_list(args[1]) else [args[1]])
        source = next((value for value in reversed(args) if isinstance(value, Tensor)), args[0])
        chosen = self.of(source)
        places = None if len(indices) != 1 or indices[0] is None else _places(indices[0])
        is_put_back = (
            axis == 0
            and places is not None
            and chosen.tokens is not None
            and chosen.origin == into.path
            and torch.equal(places.cpu(), chosen.tokens)
        )
        if is_put_back or not any(rows.path for rows in given):
            return into
        return Rows(hash((name, into.path, chosen.path, *(_digest(index) for index in indices))))

    def _adds_to_all_rows(self, args: Any) -> bool:
        """Whether a sum adds something to a tensor none of whose rows were chosen: a residual, so that rows of both are
        those of the same tokens."""
        terms = [value for value in args[:2] if isinstance(value, Tensor)]
        if len(terms) < 2 or terms[0].shape != terms[1].shape or terms[0].dim() < 2:
            return False
        return any(not self.of(term).path and not self._is_constant(term) for term in terms)

    def _parts(self, name: str, args: Any, kwargs: Any) -> list[Rows]:
        """Rows of parts along an axis."""
        source: Tensor = args[0]
        before = self.of(source)
        given = [*args[1:], *kwargs.items()]
        if name in ("slice", "select"):
            axis, *where = args[1:] if len(args) > 1 else [0]
            where = where or [None]
        else:
            where = [] if name == "unbind" else [args[1]]
            axis = (args[len(where) + 1 :] or [kwargs.get("dim", 0)])[0]
        axis %= source.dim()
        path = hash((name, repr(given), before.path, source.shape[axis]))
        if name == "slice" and source.shape[axis] == len(range(*slice(*where).indices(source.shape[axis]))):
            return [before]
        is_rows = axis == 0 and (source.dim() <= 2 or before.tokens is not None)
        numbers = torch.arange(source.shape[0])
        if name == "slice":
            return [_of(before, numbers[slice(*where)], path) if is_rows else Rows(path)]
        if name == "select":
            return [_of(before, numbers[where[0]].reshape(1), path) if is_rows else Rows(path)]
        if name == "unbind":
            return [Rows(hash((path, part))) for part in range(source.shape[axis])]
        parts = torch.split(torch.arange(source.shape[axis]), where[0])
        return [
            _of(before, part, hash((path, place))) if is_rows else Rows(hash((path, place)))
            for place, part in enumerate(parts)
        ]

    def _joined(self, args: Any, kwargs: Any) -> Rows:
        """Rows of tensors one after the other."""
        parts = [self.of(tensor) for tensor in args[0]]
        axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        rows = _combined(parts, "cat")
        tokens = [part.tokens for part in parts if part.tokens is not None]
        if axis != 0 or len(tokens) < len(parts) or len({part.origin for part in parts}) > 1:
            return Rows(rows.path) if axis == 0 else rows
        return Rows(rows.path, torch.cat(tokens), parts[0].origin)

    def _kept(self, func: Any, given: list[Rows], tensor: Tensor, made: Any) -> Rows:
        """The rows of a result of any other operator."""
        name = func.overloadpacket.__name__
        rows = _combined(given, name)
        if name in _ORDERS:
            # Their values choose rows, wherever they are used.
            whole = [result for result in _tensors(made) if not result.is_floating_point()]
            return Rows(hash((name, rows.path, *(_digest(result) for result in whole))))
        if rows.tokens is None:
            return rows
        keeps = name in _KEEPS or torch.Tag.pointwise in func.tags
        lengths = {tensor.shape[0], tensor.numel() // max(tensor.shape[-1], 1)} if tensor.dim() else set()
        return rows if keeps and len(rows.tokens) in lengths else Rows(rows.path)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _places(index: Tensor) -> Tensor | None:
    """The numbers of rows that an index or a mask names; None if it has several axes of numbers."""
    if index.dtype in (torch.bool, torch.uint8):
        return index.flatten().nonzero().flatten()
    return index if index.dim() == 1 else None


def _of(before: Rows, places: Tensor, path: int) -> Rows:
    """Rows at places of a tensor."""
    if before.tokens is not None:
        return Rows(path, before.tokens[places.cpu()], before.origin)
    return Rows(path, places.cpu(), before.path)


def _combined(given: Iterable[Rows], name: str) -> Rows:
    """The rows of a tensor that is computed from several tensors."""
    chosen = {rows.path: rows for rows in given if rows.path}
    if not chosen:
        return ALL
    if len(chosen) == 1:
        return next(iter(chosen.values()))
    path = hash((name, *chosen))
    known = [rows for rows in chosen.values() if rows.tokens is not None]
    return Rows(path, known[0].tokens, known[0].origin) if known else Rows(path)


def _place(tensor: Tensor) -> _Place | None:
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return None
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, Tensor)]


def _digest(*values: Any) -> int:
    """A number for the contents of indices and masks."""
    parts = (
        (value.shape, value.cpu().contiguous().numpy().tobytes())
        if isinstance(value, Tensor) and not value.is_floating_point()
        else None
        if isinstance(value, Tensor)
        else value
        for value in values
    )
    return hash(tuple(parts))


# Operators that write rows, or values, into a tensor.
_WRITES = frozenset(
    {
        "index_add",
        "index_add_",
        "index_copy",
        "index_copy_",
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "masked_scatter",
        "masked_scatter_",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "scatter_reduce",
        "scatter_reduce_",
    }
)
# Operators that may add a residual.
_SUMS = frozenset({"add", "add_"})
# Operators whose results say which values are greatest, or not zero.
_ORDERS = frozenset({"argsort", "nonzero", "nonzero_static", "sort", "topk", "unique_consecutive", "_unique2"})
# Operators that keep rows, besides those that work on each value on its own.
_KEEPS = frozenset(
    {
        "_fused_rms_norm",
        "_softmax",
        "_to_copy",
        "_unsafe_view",
        "addmm",
        "alias",
        "clone",
        "detach",
        "expand",
        "linear",
        "lift_fresh",
        "mm",
        "native_layer_norm",
        "squeeze",
        "unsqueeze",
        "view",
        "zeros_like",
    }
)
