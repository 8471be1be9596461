"""Single tensors: quantization, fake quantization, observers, and codes chosen by an algorithm.

Arrays are numpy's (float16, float32, and bfloat16 and float8 of ml_dtypes) or CPU tensors of torch (float16, bfloat16,
float32, float8_e4m3fn, float8_e5m2). They are read without a copy if they are contiguous. Results come as arrays of the
same library.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy
import numpy.typing

from kvant import _kvant
from kvant._errors import UnsupportedError, usage_error

Array: TypeAlias = Any
"""An array of numpy or a tensor of torch."""

# The names of types in safetensors files.
_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}

# The types of packed tensors in numpy. bfloat16 and eight-bit floats, which numpy lacks, come as bits.
_PACKED = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I8": "i1",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "U32": "<u4",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
}

# Other types of packed tensors in torch.
_TORCH_PACKED = {
    "I8": "int8",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U32": "uint32",
    "F8_E8M0": "float8_e8m0fnu",
}

# Formats of `kvant list formats` that have no tensors for one layer: what they have, and what to do.
_WHOLE_MODELS = {
    "fake": (
        "holds floats, which are the values of the codes, and no codes",
        "dequantize() gives these values; kvant.quantize and kvant.torch.export write models in this format",
    ),
    "onnx": ("is that of whole graphs", "use kvant.quantize(model, scheme, format='onnx', output='out.onnx')"),
}


class QuantTensor:
    """A quantized tensor: codes, scales, zero points.

    Attributes:
        scheme: The spelling of the scheme, such as `int4:g128`.
        shape: The shape of the tensor.
        dtype: The dtype of the codes, such as `int4` or `e4m3`; None for schemes without codes.
        codes: The codes, of the tensor's shape: int8 or uint8 for at most eight bits, otherwise int16 or int32; the
            bits of small floats as uint8. For GGUF types the blocks, uint8 [rows, bytes of a row]. None for schemes
            whose values have no codes of their own (mx6, mx9, bfp16, mxint8, bf16, f16).
        scale: The scales, float32: a number for the tensor, [channels], [rows, groups] or [row blocks, column blocks].
            None without scales.
        zero_point: The zero points, of the scales' shape: int32, or float32 for float zero points. None where the code
            of zero is 0.
        global_scale: The scale over block scales (NVFP4), otherwise None.
        loss: The squared error of the layer's outputs over all tokens, if an algorithm that knows it chose the codes.

    The value of a code is `(code - zero_point) * scale * global_scale`.
    """

    def __init__(self, made: _kvant.QuantTensor, origin: _Origin, loss: float | None = None) -> None:
        self._made = made
        self._origin = origin
        self.scheme: str = made.scheme
        self.shape: tuple[int, ...] = origin.shape
        self.dtype: str | None = made.dtype
        self.loss = loss

    def __copy__(self) -> QuantTensor:
        return self

    def __deepcopy__(self, _: object) -> QuantTensor:
        return self

    def __repr__(self) -> str:
        return f"QuantTensor(scheme={self.scheme!r}, shape={self.shape})"

    @property
    def codes(self) -> Array | None:
        """The codes; see the class."""
        wide = self._made.wide_codes
        if wide is not None:
            kind = numpy.int16 if self.dtype == "int16" else numpy.int32
            return self._origin.like(wide.astype(kind).reshape(self.shape))
        data = self._made.bytes
        if data is None:
            return None
        if self.dtype is None:
            return self._origin.like(data.reshape(self._origin.rows, -1))
        if self.dtype.startswith("int"):
            data = data.view(numpy.int8)
        return self._origin.like(data.reshape(self.shape))

    @property
    def scale(self) -> Array | None:
        """The scales; see the class."""
        scales = self._made.scales
        return None if scales is None else self._origin.like(scales.reshape(self._scale_shape()))

    @property
    def zero_point(self) -> Array | None:
        """The zero points; see the class."""
        points = self._made.zero_points
        if points is None:
            return None
        whole = bool((points == numpy.floor(points)).all())
        points = points.astype(numpy.int32 if whole else numpy.float32)
        return self._origin.like(points.reshape(self._scale_shape()))

    @property
    def global_scale(self) -> float | None:
        """The scale over block scales; see the class."""
        return self._made.global_scale

    def _scale_shape(self) -> tuple[int, ...]:
        rows, columns = self._made.scale_shape
        if rows == 1 and columns == 1 and self._origin.rows * self._origin.columns != 1:
            return ()
        if columns == 1:
            return (rows,)
        return (columns,) if rows == 1 and self._origin.rows != 1 else (rows, columns)

    def dequantize(self) -> Array:
        """The values of the codes: an array of the shape, type and library of what was quantized."""
        if self._origin.dtype in ("float16", "bfloat16"):
            return self._origin.halves(self._made.dequantize_to_half(self._origin.dtype == "bfloat16"))
        return self._origin.floats(self._made.dequantize())

    def packed(self, format: str, name: str = "") -> dict[str, Array]:
        """The tensors of a checkpoint that it becomes, by their names.

        Args:
            format: A checkpoint format (`kvant list formats`; not `fake` and `onnx`), or `gguf` for GGUF types.
            name: The name of the layer, with which the names of the tensors begin.

        Types that numpy does not have come as bits: bfloat16 as uint16, eight-bit floats as uint8. Tensors of torch
        have their own types.

        Raises:
            UnsupportedError: The format has no place for the scheme, or its scales need another type: then quantize
                with `format`.
        """
        _check_format(format)
        packed = self._made.packed(format, name)
        return {name: self._origin.stored(data, dtype, shape) for name, dtype, shape, data in packed}


class Hessian:
    """The sums over a layer's inputs that `gptq` and its variants need: `H = X^T X`, where rows of `X` are tokens.

    With `mismatch=True` the sums `D = (X' - X)^T X` are kept too, where `X'` are the inputs in the float model.
    """

    def __init__(self, features: int, *, mismatch: bool = False) -> None:
        self._made = _kvant.Hessian(features, mismatch)

    @classmethod
    def from_matrix(cls, hessian: Array, mismatch: Array | None = None) -> Hessian:
        """Sums that were computed elsewhere.

        Args:
            hessian: [features, features], symmetric; a factor such as `2 / tokens` makes no difference.
            mismatch: [features, features], with the same factor.

        Raises:
            InvalidError: The matrices are not square, or differ in size.
        """
        made = cls.__new__(cls)
        whole = _float32(hessian)
        other = None if mismatch is None else numpy.ascontiguousarray(_float32(mismatch)).reshape(-1)
        features = whole.shape[0] if whole.ndim else 0
        made._made = _kvant.Hessian.of_matrices(features, numpy.ascontiguousarray(whole).reshape(-1), other)
        return made

    @property
    def features(self) -> int:
        """Input channels of the layer."""
        return self._made.features

    def add(self, inputs: Array, float_inputs: Array | None = None) -> None:
        """Adds the inputs of some tokens, [..., features], and for `mismatch` the same tokens' in the float model.

        Raises:
            InvalidError: Another number of features.
            UsageError: `float_inputs` are missing or in excess.
        """
        float_data = None if float_inputs is None else _activations(float_inputs).data
        self._made.add(_activations(inputs).data, float_data)

    def matrix(self) -> numpy.typing.NDArray[numpy.float32]:
        """The Hessian, [features, features]."""
        return self._made.matrix().reshape(self.features, self.features)


class Observer:
    """An observer of activations, from whose batches static scales follow.

    Args:
        scheme: The scheme of the activations: `int8:tensor`, `uint8:tensor:zp`, `int8:channel@1` (a scale for each
            feature).
        method: The observer, as `kvant list observers` shows them: `minmax`, `percentile99.9`, `mse`, `entropy`. The
            scheme may name it too: `int8:tensor:mse`.

    Raises:
        UsageError: An unknown scheme or observer.
        UnsupportedError: The scheme stores nothing.
    """

    def __init__(self, scheme: str, method: str | None = None) -> None:
        self._made = _kvant.Observer(scheme if method is None else f"{scheme}:{method}")
        self._like: _Origin | None = None

    @property
    def scheme(self) -> str:
        """The spelling of the scheme."""
        return self._made.scheme

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest value of all batches; None before the first."""
        return self._made.range

    @property
    def not_finite(self) -> int:
        """Values that were NaN or infinite. They are left out."""
        return self._made.not_finite

    def update(self, batch: Array) -> None:
        """Takes a batch in, [..., features]."""
        given = _activations(batch)
        self._like = self._like or given.origin
        self._made.update(given.data)

    def parameters(self) -> tuple[Array, Array | None]:
        """Scale and zero point (None where the code of zero is 0): numbers, or [features]. float32.

        Raises:
            UsageError: There was no batch with a finite value.
        """
        scales, points = self._made.parameters()
        origin = self._like or _Origin((), 1, 1, None, "float32")
        shape = () if scales.size == 1 else (scales.size,)
        return origin.like(scales.reshape(shape)), origin.like(points.reshape(shape)) if points.size else None


def quantize_tensor(
    array: Array,
    scheme: str,
    scale: Array | None = None,
    zero_point: Array | None = None,
    *,
    format: str | None = None,
) -> QuantTensor:
    """Rounds a weight to nearest, as `quantize` does with each weight of a model.

    Args:
        array: The weight, [outputs, ...]: further axes count as input channels. One axis is one row.
        scheme: A name or spelling of `kvant list schemes`; of a layer's scheme the part for weights. GGUF types too.
        scale: The scales, if they are known; otherwise they follow from the weight.
        zero_point: The zero points that belong to them.
        format: The checkpoint format that the tensor will be packed in, as for `QuantTensor.packed`: scales get the
            type that it stores.

    Raises:
        UsageError: An unknown scheme or format, scales of a wrong number.
        InvalidError: NaN or infinite values, or groups that do not divide the input channels.
        UnsupportedError: A type of numbers that is not read, or scales beyond the type that stores them.
    """
    _check_format(format)
    given = _weight(array)
    made = _kvant.quantize_tensor(given.data, scheme, format, _known(scale, zero_point))
    return QuantTensor(made, given.origin)


def fake_quantize(array: Array, scheme: str, scale: Array | None = None, zero_point: Array | None = None) -> Array:
    """The values of a tensor after quantization, in its own type.

    Args:
        array: A weight, [outputs, ...], or activations, [..., features].
        scheme: That of a weight (`int4:g128`), or of activations, with its timing: `int8:tensor!static`,
            `e4m3:channel!dynamic` (a scale for each token).
        scale: The scales, if they are known; otherwise they follow from the tensor.
        zero_point: The zero points that belong to them.

    Raises:
        UsageError: An unknown scheme, scales of a wrong number, or none for static activations.
        InvalidError: NaN or infinite values in a weight, groups that do not divide the input channels.
        UnsupportedError: A type of numbers that is not read.
    """
    given = _activations(array) if "!" in scheme else _weight(array)
    return given.origin.floats(_kvant.fake_quantize(given.data, scheme, _known(scale, zero_point)))


def _known(scale: Array | None, zero_point: Array | None) -> tuple[list[float], list[float]] | None:
    """Scales and zero points that are known."""
    if scale is None:
        if zero_point is not None:
            raise usage_error("zero_point was given without scale", "give both, or neither")
        return None
    points = [] if zero_point is None else _float32(zero_point).reshape(-1).tolist()
    return _float32(scale).reshape(-1).tolist(), points


def round_tensor(
    weight: Array,
    scheme: str,
    algorithm: str,
    hessian: Hessian | Array | None = None,
    *,
    format: str | None = None,
) -> QuantTensor:
    """Chooses the codes of a weight with an algorithm.

    Args:
        weight: [outputs, ...]: further axes count as input channels.
        scheme: As for `quantize_tensor`.
        algorithm: A rounding of `kvant list algorithms` with its options: `gptq:damping=0.05`, `qronos`, `hqq`.
        hessian: The sums over the layer's inputs, [input channels, input channels], or a `Hessian`; with the mismatch
            for `gptaq`, `qronos`, `adaround` and `adaquant`.
        format: As for `quantize_tensor`.

    Raises:
        UsageError: An unknown scheme, algorithm, option or format.
        InvalidError: As `quantize_tensor`; sums that are missing, of another size or not finite.
    """
    _check_format(format)
    given = _weight(weight)
    sums = hessian if hessian is None or isinstance(hessian, Hessian) else Hessian.from_matrix(hessian)
    made, loss = _kvant.round_tensor(given.data, scheme, algorithm, None if sums is None else sums._made, format)
    return QuantTensor(made, given.origin, loss)


def gptq(
    weight: Array,
    hessian: Hessian | Array,
    scheme: str,
    *,
    format: str | None = None,
    **options: float | int | str,
) -> QuantTensor:
    """Chooses the codes of a weight with GPTQ (arXiv 2210.17323).

    Args:
        weight: [outputs, ...]: further axes count as input channels.
        hessian: `X^T X` over the layer's inputs `X`, [input channels, input channels], or a `Hessian`.
        scheme: As for `quantize_tensor`.
        format: As for `quantize_tensor`.
        options: Those of `kvant list algorithms`: `damping=0.01`, `order="activation"`, `groups="static"`, `block=128`.

    Raises:
        As `round_tensor`.
    """
    algorithm = ":".join(["gptq", *(f"{name}={value}" for name, value in options.items())])
    return round_tensor(weight, scheme, algorithm, hessian, format=format)


def _check_format(format: str | None) -> None:
    """Refuses formats that have no tensors for one layer."""
    if format in _WHOLE_MODELS:
        reason, remedy = _WHOLE_MODELS[format]
        raise UnsupportedError(f"the format {format} {reason}", kind="unsupported", remedy=remedy)


class _Origin:
    """What an array was: results are made like it."""

    def __init__(self, shape: tuple[int, ...], rows: int, columns: int, torch: Any, dtype: str) -> None:
        self.shape = shape
        self.rows = rows
        self.columns = columns
        self.torch = torch
        self.dtype = dtype

    def __deepcopy__(self, memo: object) -> _Origin:
        """Itself: it does not change, and the module of torch has no copy."""
        return self

    def like(self, array: numpy.typing.NDArray[Any]) -> Array:
        """An array of the same library."""
        return array if self.torch is None else self.torch.from_numpy(array)

    def floats(self, values: numpy.typing.NDArray[numpy.float32]) -> Array:
        """Values of the same shape, type and library."""
        values = values.reshape(self.shape)
        if self.torch is not None:
            return self.torch.from_numpy(values).to(getattr(self.torch, self.dtype))
        return values.astype(_numpy_dtype(self.dtype), copy=False)

    def halves(self, data: numpy.typing.NDArray[numpy.uint8]) -> Array:
        """Values of two bytes of the same shape, type and library."""
        if self.torch is not None:
            return self.torch.from_numpy(data).view(getattr(self.torch, self.dtype)).reshape(self.shape)
        return data.view(_numpy_dtype(self.dtype)).reshape(self.shape)

    def stored(self, data: numpy.typing.NDArray[numpy.uint8], dtype: str, shape: Sequence[int]) -> Array:
        """A tensor of a checkpoint."""
        if self.torch is None:
            return data.view(_PACKED[dtype]).reshape(shape)
        name = next((name for name, known in _DTYPES.items() if known == dtype), None)
        # Older versions of torch lack block scales, which are bytes.
        kind = getattr(self.torch, name or _TORCH_PACKED[dtype], self.torch.uint8)
        return self.torch.from_numpy(data).view(kind).reshape(tuple(shape))


class _Given(NamedTuple):
    """An array as the extension takes it."""

    data: tuple[numpy.typing.NDArray[numpy.uint8], str, int, int]
    origin: _Origin


def _weight(array: Array) -> _Given:
    """A weight: the first axis is that of output channels."""
    shape = tuple(array.shape) if hasattr(array, "shape") else numpy.shape(array)
    rows = shape[0] if len(shape) > 1 else 1
    return _given(array, shape, rows, math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape))


def _activations(array: Array) -> _Given:
    """Activations: the last axis is that of features."""
    shape = tuple(array.shape) if hasattr(array, "shape") else numpy.shape(array)
    columns = shape[-1] if shape else 1
    return _given(array, shape, math.prod(shape[:-1]), columns)


def _given(array: Array, shape: tuple[int, ...], rows: int, columns: int) -> _Given:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.device.type != "cpu":
            raise UnsupportedError(
                f"a tensor on the device {array.device} is not read",
                kind="unsupported",
                remedy="move it to the CPU with .cpu()",
            )
        tensor = array.detach().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "float64":
            tensor, dtype = tensor.to(torch.float32), "float32"
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        origin = _Origin(shape, rows, columns, torch, str(array.dtype).removeprefix("torch."))
    else:
        values = numpy.ascontiguousarray(array)
        if values.dtype == numpy.float64:
            values = values.astype(numpy.float32)
        dtype = values.dtype.name
        data = values.reshape(-1).view(numpy.uint8)
        origin = _Origin(shape, rows, columns, None, numpy.asarray(array).dtype.name)
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"numbers of type {dtype} are not quantized",
            kind="unsupported",
            remedy="convert them to float32, float16 or bfloat16 first",
        )
    return _Given((data, _DTYPES[dtype], rows, columns), origin)


def _float32(array: Array) -> numpy.typing.NDArray[numpy.float32]:
    """An array in float32."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        array = array.detach().to("cpu", torch.float32).numpy()
    return numpy.asarray(array, dtype=numpy.float32)


def _numpy_dtype(name: str) -> Any:
    """A type of numpy, or one that ml_dtypes has added to it."""
    known: Mapping[str, Any] = {"float16": numpy.float16, "float32": numpy.float32, "float64": numpy.float64}
    if name in known:
        return known[name]
    return numpy.dtype(getattr(sys.modules["ml_dtypes"], name))
