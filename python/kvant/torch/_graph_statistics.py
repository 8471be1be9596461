"""Ranges, scales and zero points of tensors of graphs.

`kvant.Observer` follows PyTorch's definitions, as checkpoints do. Presets follow those of Kvant's ONNX flow, which are
ONNX Runtime's: bins have equal widths and grow with the samples, infinities count as 1e37, and a symmetric int8 scale
spans 254 steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

import kvant
from kvant.torch._graph_presets import TensorRecipe

Floats = NDArray[numpy.float32]
Doubles = NDArray[numpy.float64]

_LARGEST = numpy.float32(1e37)
_BINS = 2048
# A histogram that would grow beyond this is counted anew in wider bins.
_MOST_BINS = 1 << 18
_EMA_WEIGHT = numpy.float32(1.0 - 0.99)


class Range(NamedTuple):
    """The least and the greatest value."""

    min: numpy.float32
    max: numpy.float32


class Affine(NamedTuple):
    """`value = scale * (code - zero_point)`."""

    scale: numpy.float32
    zero_point: int


def affine(found: Range, recipe: TensorRecipe) -> Affine:
    """Scale and zero point of a range, widened so that it includes zero."""
    low, high = recipe.codes
    limit = numpy.finfo(numpy.float32).max / numpy.float32(2)
    least, greatest = max(min(found.min, numpy.float32(0)), -limit), min(max(found.max, numpy.float32(0)), limit)
    if recipe.symmetric:
        greatest = max(abs(least), greatest)
        least = -greatest
    scale = float(numpy.float32(greatest - least)) / (high - low)
    if scale < float(numpy.finfo(numpy.float32).tiny):
        made = Affine(numpy.float32(1), 0)
    else:
        made = Affine(numpy.float32(scale), round(low - float(least) / scale))
    if recipe.power_of_two:
        scaled = power_of_two(position(float(made.scale)))
        lowest = min(numpy.float32(low - made.zero_point) * scaled, numpy.float32(0))
        made = Affine(scaled, round(low - float(lowest) / float(scaled)))
    return made


def position(scale: float) -> int:
    """`-log2(scale)`, rounded to the nearest integer."""
    return round(-math.log2(min(max(scale, 2.0**-127), 2.0**127)))


def power_of_two(position: int) -> numpy.float32:
    """`2^-position`."""
    return numpy.float32(2.0**-position)


def weight_affine(values: Floats, recipe: TensorRecipe) -> Affine:
    """Scale and zero point of all values of a weight, or of one channel."""
    flat = values.reshape(-1)
    if recipe.scheme is not None:
        made = kvant.quantize_tensor(flat, _of_tensor(recipe.scheme))
        point = made.zero_point
        return Affine(numpy.float32(made.scale), 0 if point is None else int(numpy.asarray(point).reshape(-1)[0]))
    whole = _range(flat) or Range(numpy.float32(0), numpy.float32(0))
    plain = affine(whole, recipe)
    if recipe.observer != "mse":
        return plain
    assert recipe.power_of_two
    low, high = recipe.codes

    def error(candidate: Affine) -> float:
        code = numpy.clip(numpy.rint(flat / candidate.scale) + candidate.zero_point, low, high)
        return _sum(((code - candidate.zero_point).astype(numpy.float32) * candidate.scale - flat).astype(float) ** 2)

    return min(_candidates(plain), key=error)


def _of_tensor(scheme: str) -> str:
    """The same scheme with one scale for what is given."""
    return ":".join("tensor" if part == "channel" else part for part in scheme.split(":"))


def _candidates(plain: Affine) -> list[Affine]:
    """Twice the scale, itself and three halvings."""
    return [Affine(plain.scale * numpy.float32(2.0 ** (1 - i)), plain.zero_point) for i in range(5)]


def _sum(values: Doubles) -> float:
    """The sum in order, as the search for the least error adds."""
    return float(numpy.cumsum(values)[-1]) if values.size else 0.0


def _range(values: Floats) -> Range | None:
    numbers = values[~numpy.isnan(values)] if numpy.isnan(values).any() else values
    if not numbers.size:
        return None
    least, greatest = numpy.clip([numbers.min(), numbers.max()], -_LARGEST, _LARGEST).astype(numpy.float32)
    return Range(least, greatest)


class GraphStatistic:
    """What an observer keeps of the samples of an activation.

    Args:
        recipe: How the activation is quantized.
    """

    def __init__(self, recipe: TensorRecipe) -> None:
        self.recipe = recipe
        self.full: Range | None = None
        self.average: Range | None = None
        self._histogram: _Histogram | None = None
        self._found: Affine | None = None
        if recipe.observer == "mse":
            self._histogram = _SignedHistogram()
        elif recipe.observer == "percentile":
            self._histogram = _Magnitudes() if recipe.symmetric else _CentredHistogram()

    def observe(self, values: Floats) -> None:
        """Takes a sample in: values of any shape."""
        flat = values.reshape(-1)
        seen = _range(flat)
        if seen is None:
            return
        self._found = None
        full = self.full or seen
        self.full = Range(min(full.min, seen.min), max(full.max, seen.max))
        old = self.average
        mixed = seen if old is None else Range(*(o + _EMA_WEIGHT * (n - o) for o, n in zip(old, seen, strict=True)))
        self.average = mixed
        if self._histogram is not None:
            self._histogram.observe(numpy.clip(flat[~numpy.isnan(flat)], -_LARGEST, _LARGEST), seen)

    def affine(self) -> Affine | None:
        """Scale and zero point; None before any sample."""
        if self._found is None and self.full is not None:
            self._found = affine(self._search(self.full), self.recipe)
        return self._found

    def _search(self, full: Range) -> Range:
        if self.recipe.observer == "ema":
            assert self.average is not None
            return self.average
        if self._histogram is None:
            return full
        if self.recipe.observer == "mse":
            return self._least_error(full, self._histogram)
        return self._percentile(full, self._histogram)

    def _percentile(self, full: Range, histogram: _Histogram) -> Range:
        if self.recipe.symmetric:
            bound = histogram.quantile(self.recipe.percentile / 100.0)
            least, greatest = -bound, bound
        else:
            cut = (100.0 - self.recipe.percentile) / 200.0
            least, greatest = histogram.quantile(cut), histogram.quantile(1.0 - cut)
        least = max(least, full.min)
        return Range(least, max(min(greatest, full.max), least))

    def _least_error(self, full: Range, histogram: _Histogram) -> Range:
        low, high = self.recipe.codes
        filled = histogram.counts > 0
        centres, counts = histogram.centres()[filled].astype(numpy.float32), histogram.counts[filled]

        def error(candidate: Affine) -> float:
            code = numpy.clip(numpy.rint(centres / candidate.scale) + candidate.zero_point, low, high)
            away = centres.astype(float) - (code.astype(float) - candidate.zero_point) * float(candidate.scale)
            return _sum(counts * away * away)

        best = min(_candidates(affine(full, self.recipe)), key=error)
        ends = [numpy.float32((code - best.zero_point) * float(best.scale)) for code in (low, high)]
        return Range(ends[0], ends[1])


class SchemeStatistic:
    """The same for a scheme, with the definitions of `kvant.Observer`.

    Args:
        scheme: The spelling.
    """

    def __init__(self, scheme: str) -> None:
        self._observer = kvant.Observer(scheme)

    def observe(self, values: Floats) -> None:
        """Takes a sample in: values of any shape."""
        self._observer.update(values)

    def affine(self) -> Affine | None:
        """Scale and zero point; None before any sample."""
        if self._observer.range is None:
            return None
        scale, point = self._observer.parameters()
        return Affine(numpy.float32(scale), 0 if point is None else int(point))


class _Histogram:
    """Counts between edges. A bin includes its lower edge, the last one both."""

    counts: NDArray[numpy.int64]
    edges: Doubles

    def __init__(self) -> None:
        self.counts = numpy.zeros(0, numpy.int64)
        self.edges = numpy.zeros(0)

    def observe(self, values: Floats, seen: Range) -> None:
        """Takes a sample in, whose range is known."""
        raise NotImplementedError

    def quantile(self, share: float) -> numpy.float32:
        """The lower edge of the first bin up to which that share of the values is counted."""
        reached = numpy.cumsum(self.counts / self.counts.sum()) >= share
        return numpy.float32(self.edges[int(reached.argmax()) if reached.any() else len(self.counts)])

    def centres(self) -> Doubles:
        """The middle of every bin."""
        return (self.edges[:-1] + self.edges[1:]) / 2.0

    def _count(self, values: Floats | Doubles, times: NDArray[numpy.int64] | None = None) -> None:
        counted: Doubles = values.astype(numpy.float64)
        inside = (counted >= self.edges[0]) & (counted <= self.edges[-1])
        if not inside.all():
            counted, times = counted[inside], None if times is None else times[inside]
        found = numpy.bincount(self._bins(counted), times, len(self.counts))
        self.counts = self.counts + found.astype(numpy.int64)

    def _bins(self, values: Doubles) -> NDArray[numpy.int64]:
        """The bin of each value between the edges: by their equal width, and where that misses by a search."""
        first, last, most = self.edges[0], self.edges[-1], len(self.counts) - 1
        if first == last:
            return numpy.full(len(values), most)
        bins: NDArray[numpy.int64] = numpy.minimum(
            ((values - first) * (len(self.counts) / (last - first))).astype(numpy.int64), most
        )
        bins -= values < self.edges[bins]
        bins += (values >= self.edges[bins + 1]) & (bins < most)
        missed = (values < self.edges[bins]) | ((values >= self.edges[bins + 1]) & (bins < most))
        if missed.any():
            found = numpy.searchsorted(self.edges, values[missed], side="right") - 1
            bins[missed] = numpy.minimum(found, most)
        return bins

    def _rebin(self, edges: Doubles) -> None:
        centres, counts = numpy.clip(self.centres(), edges[0], edges[-1]), self.counts
        self.edges, self.counts = edges, numpy.zeros(len(edges) - 1, numpy.int64)
        self._count(centres, counts)


def _edges32(first: numpy.float32, last: numpy.float32, bins: int) -> Doubles:
    """`bins + 1` edges, computed in float32."""
    step = (last - first) / numpy.float32(bins)
    edges = (numpy.arange(bins + 1).astype(numpy.float32) * step + first).astype(numpy.float64)
    edges[bins] = last
    return edges


def _edges64(first: float, last: float, bins: int) -> Doubles:
    edges: Doubles = numpy.arange(bins + 1, dtype=numpy.float64) * ((last - first) / bins) + first
    edges[bins] = last
    return edges


def _apart(low: numpy.float32, high: numpy.float32) -> tuple[numpy.float32, numpy.float32]:
    half = numpy.float32(0.5)
    return (low, high) if low < high else (low - half, high + half)


class _Magnitudes(_Histogram):
    """Magnitudes: bins of the first sample's width are added above."""

    def observe(self, values: Floats, seen: Range) -> None:
        """See the base class."""
        magnitudes, largest = abs(values), max(abs(seen.min), abs(seen.max))
        if not len(self.counts):
            first, last = _apart(magnitudes.min(), largest)
            self.edges, self.counts = _edges32(first, last, _BINS), numpy.zeros(_BINS, numpy.int64)
        elif largest > numpy.float32(self.edges[-1]):
            self._widen(largest)
        self._count(magnitudes)
        self.edges = self.edges.astype(numpy.float32).astype(numpy.float64)

    def _widen(self, largest: numpy.float32) -> None:
        last, bins = numpy.float32(self.edges[-1]), len(self.counts)
        width = numpy.float32(self.edges[1]) - numpy.float32(self.edges[0])
        start, stop = float(last + width), float(largest + width)
        step = float(last + width + width) - start
        is_wide = step > 0 and width > 0
        more = max(math.ceil((stop - start) / float(width)), 0) if is_wide else _MOST_BINS
        if more + bins > _MOST_BINS:
            self._rebin(_edges32(numpy.float32(0), largest, bins))
            return
        self.edges = numpy.concatenate([self.edges, start + numpy.arange(more) * step])
        self.counts = numpy.concatenate([self.counts, numpy.zeros(more, numpy.int64)])


class _CentredHistogram(_Histogram):
    """Values within `[-bound, bound]`: later samples add as many bins below as above."""

    _bound = numpy.float32(0)

    def observe(self, values: Floats, seen: Range) -> None:
        """See the base class."""
        bound = max(abs(seen.min), abs(seen.max))
        if not len(self.counts):
            self._start(bound, _BINS)
        elif bound > self._bound:
            self._widen(bound)
        self._count(values)

    def _start(self, bound: numpy.float32, bins: int) -> None:
        self.edges, self.counts = _edges32(*_apart(-bound, bound), bins), numpy.zeros(bins, numpy.int64)
        self._bound = bound

    def _widen(self, bound: numpy.float32) -> None:
        old, bins = self.counts, len(self.counts)
        if self._bound == 0:
            self._start(bound, bins)
            self.counts = old
            return
        stride = numpy.float32(2) * self._bound / numpy.float32(bins)
        with numpy.errstate(over="ignore", divide="ignore"):
            more = int(min((bound - self._bound) / stride, numpy.float32(_MOST_BINS))) + 1
        if bins + 2 * more > _MOST_BINS:
            self._rebin(_edges32(-bound, bound, bins))
            self._bound = bound
            return
        self._start(numpy.float32(more) * stride + self._bound, bins + 2 * more)
        self.counts[more : more + bins] = old


class _SignedHistogram(_Histogram):
    """Values: whole bins of the first sample's width are added on either side."""

    def observe(self, values: Floats, seen: Range) -> None:
        """See the base class."""
        low, high = float(seen.min), float(seen.max)
        if not len(self.counts):
            ends = (low, high) if low < high else (low - 0.5, high + 0.5)
            self.edges, self.counts = _edges64(*ends, _BINS), numpy.zeros(_BINS, numpy.int64)
        elif low < self.edges[0] or high > self.edges[-1]:
            self._widen(low, high)
        self._count(values)

    def _widen(self, low: float, high: float) -> None:
        first, last, bins = float(self.edges[0]), float(self.edges[-1]), len(self.counts)
        width = float(self.edges[1] - self.edges[0])
        far = (max(first - low, 0.0), max(high - last, 0.0))
        left, right = (math.ceil(distance / width) for distance in far) if width > 0 else (_MOST_BINS, 0)
        if left + right + bins > _MOST_BINS:
            self._rebin(_edges64(min(first, low), max(last, high), bins))
            return
        self.edges = _edges64(first - left * width, last + right * width, bins + left + right)
        self.counts = numpy.pad(self.counts, (left, right))
