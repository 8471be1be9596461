"""The order in which layers are rounded on data: block after block, each on what the rounded model before it makes.

Blocks are the entries of module lists. Where the inputs of each are the outputs of the one before it, besides what all
of them are given, they run one by one; otherwise the model runs from its beginning up to the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kvant.torch._routing import ALL, Rows, RowTracker
from kvant.torch._runs import Calibration, Reached

Seen = Callable[[str, Tensor, Rows], None]
"""Takes the name of a layer, the inputs of one of its calls, and how their rows were chosen."""


@dataclass
class Stage:
    """Layers that are rounded together.

    Attributes:
        layers: Their names.
        calls: How often each of them is called with one batch.
        chain: The chain of blocks that they belong to, if there is one.
        position: The place of their block in it.
    """

    layers: list[str]
    calls: dict[str, int] = field(default_factory=dict)
    chain: _Chain | None = None
    position: int = 0


class _Source(NamedTuple):
    """Where an argument of a block comes from.

    It has a place in the outputs of the block before it, or else in the arguments of the first block. Otherwise it is
    None.
    """

    output: int | None = None
    first: int | None = None

    def value(self, before: _Call, first: _Call) -> Any:
        if self.output is not None:
            return before.outputs[self.output]
        return None if self.first is None else first.arguments[self.first]


@dataclass
class _Call:
    """A call of a block: its arguments and outputs, flattened."""

    arguments: list[Any]
    spec: Any
    outputs: list[Any] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    output_versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        call = cls(*pytree.tree_flatten((args, kwargs)))
        call.versions = versions(call.arguments)
        return call

    def run(self, block: nn.Module) -> None:
        args, kwargs = pytree.tree_unflatten(self.arguments, self.spec)
        self.outputs = pytree.tree_leaves(block(*args, **kwargs))


def versions(values: list[Any]) -> list[int]:
    """Numbers that change when tensors are changed in place."""
    return [value._version if isinstance(value, Tensor) and not value.is_inference() else 0 for value in values]


@dataclass
class _Chain:
    """Blocks each of which reads what the one before it makes.

    Attributes:
        blocks: The blocks.
        sources: Where the arguments of each come from, none for the first.
        specs: How they are put together.
        firsts: The calls of the first block, by whether the model is the float one.
        calls: Those of the block that was entered last.
        places: The place of that block.
    """

    blocks: list[nn.Module]
    sources: list[list[_Source]]
    specs: list[Any]
    firsts: dict[bool, list[_Call]] = field(default_factory=dict)
    calls: dict[bool, list[_Call]] = field(default_factory=dict)
    places: dict[bool, int] = field(default_factory=dict)

    def enter(self, position: int, is_float: bool, calibration: Calibration) -> None:
        """Finds the arguments of a block for all batches, after those of a block before it that has run."""
        if is_float not in self.calls or position == 0:
            self.firsts[is_float] = self.calls[is_float] = _captured(self.blocks[0], calibration)
            self.places[is_float] = 0
        while self.places[is_float] < position:
            place = self.places[is_float]
            self.places[is_float] += 1
            sources, spec = self.sources[place + 1], self.specs[place + 1]
            following = []
            for call, first in zip(self.calls[is_float], self.firsts[is_float], strict=True):
                if not call.outputs:
                    call.run(self.blocks[place])
                following.append(_Call([source.value(call, first) for source in sources], spec))
            self.calls[is_float] = following


class Walk:
    """The stages of a model, and runs of them.

    Args:
        calibration: The model and its data.
        layers: The names of the layers that are rounded.
    """

    def __init__(self, calibration: Calibration, layers: Iterable[str]) -> None:
        self._calibration = calibration
        self._modules = {name: calibration.model.get_submodule(name) for name in layers}
        self.stages = _stages(calibration, self._modules)

    def collect(self, stage: Stage, seen: Seen, float_seen: Seen | None = None) -> None:
        """Shows the inputs that the layers of a stage meet to `seen`, and before them, batch by batch, those in the
        float model to `float_seen`. Choices of rows are followed only with the latter."""
        shown = {False: seen} if float_seen is None else {True: float_seen, False: seen}
        for is_float in shown if stage.chain else ():
            with self._calibration.weights(is_float):
                stage.chain.enter(stage.position, is_float, self._calibration)  # type: ignore[union-attr]
        for number in range(len(self._calibration.batches)):
            for is_float, show in shown.items():
                tracker = RowTracker() if float_seen is not None else None
                # What a float block makes is kept for the next one; the others run again once they are rounded.
                is_whole = is_float and stage.chain is not None
                handles = self._hooks(stage, show, tracker, is_whole)
                try:
                    with self._calibration.weights(is_float), tracker or contextlib.nullcontext():
                        self._run(stage, is_float, number)
                finally:
                    for handle in handles:
                        handle.remove()

    def _run(self, stage: Stage, is_float: bool, number: int) -> None:
        """Runs the block of a stage on a batch, or the model up to the end of the stage."""
        if stage.chain is None:
            self._calibration.run(number)
            return
        self._calibration.batch = number
        with contextlib.suppress(Reached):
            stage.chain.calls[is_float][number].run(stage.chain.blocks[stage.position])

    def leave(self, stage: Stage) -> None:
        """Forgets what a block made before its weights were rounded."""
        if stage.chain is not None:
            for call in stage.chain.calls[False]:
                call.outputs = []

    def _hooks(self, stage: Stage, show: Seen, tracker: RowTracker | None, is_whole: bool) -> list[Any]:
        """Shows the inputs of layers, until each has been called as often as it is or `is_whole`."""
        left = dict(stage.calls)

        def hook(name: str) -> Callable[..., None]:
            def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                x = input_of(args, kwargs)
                show(name, x, ALL if tracker is None else tracker.of(x))
                left[name] -= 1
                if not is_whole and max(left.values()) <= 0:
                    raise Reached

            return see

        return [self._modules[name].register_forward_pre_hook(hook(name), with_kwargs=True) for name in stage.layers]


def _stages(calibration: Calibration, modules: dict[str, nn.Module]) -> list[Stage]:
    """The stages in the order in which their layers are called first. Consecutive layers outside of blocks are a
    stage."""
    blocks = _blocks(calibration.model, modules)
    trace = _Trace(calibration, modules, set(blocks.values()))
    chains = {listed: _chain(trace, listed, _of_list(listed, set(blocks.values()))) for listed in trace.lists}
    stages: dict[str, Stage] = {}
    outside = ""
    for name, count in trace.layers.items():
        block = blocks.get(name, "")
        outside = "" if block else outside or f"before {name}"
        stage = stages.setdefault(block or outside, Stage([]))
        stage.layers.append(name)
        stage.calls[name] = count
        chain = chains.get(_list_of(block)) if block else None
        if chain is not None:
            stage.chain, stage.position = chain, chain.blocks.index(calibration.model.get_submodule(block))
    return list(stages.values())


def _list_of(block: str) -> str:
    """The name of the list that a block belongs to."""
    return block.rpartition(".")[0]


def _of_list(listed: str, blocks: Iterable[str]) -> list[str]:
    """The blocks of a list, in their order."""
    return [block for block in blocks if _list_of(block) == listed]


def _blocks(model: nn.Module, layers: Iterable[str]) -> dict[str, str]:
    """The block of each layer that has one: an entry of the outermost list with several entries that have layers."""
    found: dict[str, str] = {}
    for listed, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or not listed:
            continue
        inside = [name for name in layers if name.startswith(f"{listed}.") and name not in found]
        entries = {name: f"{listed}.{name[len(listed) + 1 :].split('.')[0]}" for name in inside}
        if len(set(entries.values())) > 1:
            found.update(entries)
    if isinstance(model, nn.Sequential):
        # Entries of the model itself, but those with blocks of their own.
        divided = {block.split(".")[0] for block in found.values()}
        found.update((name, name.split(".")[0]) for name in layers if name.split(".")[0] not in divided)
    return found


class _Trace:
    """What batches call: one of each structure, and others while there are layers that none has called.

    Attributes:
        layers: The greatest number of calls of each layer with one batch, in the order of first calls.
        blocks: The calls of each block with the first batch, with its module.
        lists: The lists that the blocks belong to.
        changing: Lists with blocks that change their arguments in place, or that batches call in different orders.
    """

    def __init__(self, calibration: Calibration, layers: dict[str, nn.Module], blocks: set[str]) -> None:
        self.layers: dict[str, int] = {}
        self._wanted = layers.keys()
        self.blocks: dict[str, tuple[nn.Module, list[_Call]]] = {}
        self.lists = {_list_of(block) for block in blocks}
        self.changing: set[str] = set()
        self._calls: dict[str, int] = {}
        self._order: list[str] = []
        self._is_first = True
        handles = [module.register_forward_pre_hook(self._count(name)) for name, module in layers.items()]
        for listed in self.lists:
            for place, block in calibration.model.get_submodule(listed).named_children():
                before, after = self._record(f"{listed}.{place}" if listed else place)
                handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
                handles.append(block.register_forward_hook(after))
        try:
            self._run(calibration)
        finally:
            for handle in handles:
                handle.remove()

    def _run(self, calibration: Calibration) -> None:
        orders = []
        structures: set[str] = set()
        for number, batch in enumerate(calibration.batches):
            structure = _structure(batch)
            if structure in structures and self.layers.keys() == self._wanted:
                continue
            structures.add(structure)
            self._calls, self._order = {}, []
            calibration.run(number)
            self._is_first = False
            orders.append(self._order)
            for name, count in self._calls.items():
                self.layers[name] = max(self.layers.get(name, 0), count)
        for listed in self.lists:
            if any(_of_list(listed, order) != _of_list(listed, orders[0]) for order in orders):
                self.changing.add(listed)

    def _count(self, name: str) -> Callable[[nn.Module, Any], None]:
        def count(_: nn.Module, args: Any) -> None:
            self._calls[name] = self._calls.get(name, 0) + 1

        return count

    def _record(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._order.append(name)
            if self._is_first:
                self.blocks.setdefault(name, (block, []))[1].append(_Call.of(args, kwargs))

        def after(block: nn.Module, args: Any, outputs: Any) -> None:
            if not self._is_first:
                return
            call = self.blocks[name][1][-1]
            call.outputs = pytree.tree_leaves(outputs)
            call.output_versions = versions(call.outputs)
            if versions(call.arguments) != call.versions:
                self.changing.add(_list_of(name))

        return before, after


def _structure(batch: Any) -> str:
    """Identifies what a batch has besides the values of its tensors."""
    leaves, spec = pytree.tree_flatten(dict(batch) if isinstance(batch, Mapping) else batch)
    known = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    return f"{spec} {known}"


def _chain(trace: _Trace, listed: str, wanted: list[str]) -> _Chain | None:
    """The blocks of a list as a chain; None if one of them is not called once with each batch, or reads what cannot be
    traced to the one before it."""
    if not set(wanted) <= trace.blocks.keys():
        return None
    called = [trace.blocks[name] for name in _of_list(listed, trace.blocks)]
    if listed in trace.changing or any(len(calls) != 1 for _, calls in called):
        return None
    calls = [calls[0] for _, calls in called]
    if not all(_is_stateless(argument) for argument in calls[0].arguments):
        return None
    sources: list[list[_Source]] = [[]]
    for before, call in zip(calls, calls[1:], strict=False):
        traced = [_source(call, place, before, calls[0]) for place in range(len(call.arguments))]
        known = [source for source in traced if source is not None]
        if len(known) != len(traced) or not any(source.output is not None for source in known):
            return None
        sources.append(known)
    return _Chain([block for block, _ in called], sources, [call.spec for call in calls])


def _source(call: _Call, place: int, before: _Call, first: _Call) -> _Source | None:
    """Where an argument comes from, as it was; None if that is not known."""
    argument = call.arguments[place]
    if isinstance(argument, Tensor):
        for index, output in enumerate(before.outputs):
            if output is argument and before.output_versions[index] == call.versions[place]:
                return _Source(output=index)
        for index, other in enumerate(first.arguments):
            if other is argument and first.versions[index] == call.versions[place]:
                return _Source(first=index)
        return None
    if not _is_stateless(argument):
        return None
    if place < len(first.arguments) and type(first.arguments[place]) is type(argument):
        return _Source(first=place) if first.arguments[place] == argument else None
    return _Source() if argument is None else None


def _is_stateless(argument: Any) -> bool:
    """Whether an argument is the same in each run: other objects may hold a state that runs change."""
    return argument is None or isinstance(argument, Tensor) or type(argument) in _PLAIN


_PLAIN = (bool, int, float, str, torch.dtype, torch.device)


def input_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The input of a call of a layer."""
    found: Tensor = args[0] if args else kwargs["x"] if "x" in kwargs else kwargs["input"]
    return found


def _captured(block: nn.Module, calibration: Calibration) -> list[_Call]:
    """The calls of a block, one for each batch."""
    calls: list[_Call] = []

    def capture(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(_Call.of(args, kwargs))
        raise Reached

    handle = block.register_forward_pre_hook(capture, with_kwargs=True)
    try:
        calibration.run_all()
    finally:
        handle.remove()
    return calls
