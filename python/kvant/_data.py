"""Data in memory as files that the library reads.

They are written to a private temporary directory, in the formats of `docs/reference/calibration-data.md` and of the
samples of graphs, and removed after the call. The name and the time of such a file follow from its content, so that
an interrupted run resumes with the same data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvant import _kvant
from kvant._errors import usage_error

if TYPE_CHECKING:
    import numpy

# How names of files with data end. A list of such strings is a list of files, whether or not they exist.
_FILE_NAME = re.compile(r"[^\n]+\.(txt|jsonl|ndjson|json|parquet|npy|npz|safetensors)(\.(gz|zst))?", re.IGNORECASE)

# The keywords with data of each command. Texts that are only measured on are one document.
_ROWS, _DOCUMENT = "rows", "document"
_DATA: dict[str, dict[str, str]] = {
    "quantize": {"data": _ROWS, "eval": _DOCUMENT},
    "plan": {"data": _ROWS},
    "sensitivity": {"data": _ROWS, "eval": _ROWS},
    "search": {"data": _ROWS, "eval": _DOCUMENT},
    "eval": {"data": _DOCUMENT},
}


@contextlib.contextmanager
def as_files(command: str, given: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """The arguments with paths for data in memory, and the identity of the calibration data if they are in memory."""
    in_memory = {
        keyword: purpose
        for keyword, purpose in _DATA.get(command, {}).items()
        if keyword in given and not _names_files(given[keyword])
    }
    if not in_memory:
        yield given, None
        return
    import tempfile

    models = given.get("model", [])
    models = [models] if isinstance(models, str | os.PathLike) else list(models)
    is_graph = _kvant.is_graph(models[0]) if models else False
    with tempfile.TemporaryDirectory(prefix="kvant-") as directory:
        written = {}
        for keyword, purpose in in_memory.items():
            write = _write_arrays if is_graph else _write_rows if purpose == _ROWS else _write_document
            written[keyword] = _written(Path(directory), keyword, write, given[keyword])
        identity = f"data in memory, {written['data'].stem}" if "data" in written else None
        yield {**given, **{keyword: str(path) for keyword, path in written.items()}}, identity


def _names_files(data: Any) -> bool:
    """Whether the data are files: a path, `random`, or a list of paths."""
    if isinstance(data, str | os.PathLike):
        return True
    if not isinstance(data, list | tuple) or not data:
        return False
    if all(isinstance(entry, os.PathLike) for entry in data):
        return True
    if not all(isinstance(entry, str | os.PathLike) for entry in data):
        return False
    files = [isinstance(entry, os.PathLike) or _is_file_name(entry) for entry in data]
    if any(files) and not all(files):
        raise usage_error(
            f"the data are texts and files: {data[files.index(True)]!r} looks like a file",
            "give one or the other; a text that looks like a file can be given as {'text': ...}",
        )
    return all(files)


def _is_file_name(text: str) -> bool:
    return len(text) < 4096 and (_FILE_NAME.fullmatch(text) is not None or os.path.exists(text.replace("\0", "")))


def _written(directory: Path, keyword: str, write: Any, data: Any) -> Path:
    """The file of data, with a name and a time that follow from its content."""
    path = directory / keyword
    with path.open("wb") as file:
        ending = write(file, keyword, data)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    # The file system may keep only seconds, and no time after 2038.
    seconds = int.from_bytes(digest.digest()[:4], "big") % (1 << 30)
    os.utime(path, (seconds, seconds))
    return path.rename(directory / f"{digest.hexdigest()[:32]}{ending}")


def _write_rows(file: IO[bytes], keyword: str, data: Any) -> str:
    """Texts, conversations, tokens or rows with fields of a language model."""
    tokens = _array(data)
    if tokens is not None:
        import numpy

        numpy.lib.format.write_array(file, _tokens(tokens, keyword), allow_pickle=False)
        return ".npy"
    if _is_turn(next(iter(data), None) if isinstance(data, list | tuple) else None):
        raise usage_error(f"{keyword} is one conversation", f"give a list of conversations: {keyword}=[conversation]")
    count = 0
    for row in [data] if isinstance(data, Mapping) else _elements(data, keyword):
        for line in _lines(row, keyword):
            file.write(json.dumps(line).encode() + b"\n")
            count += 1
    if count == 0:
        raise usage_error(f"{keyword} is empty", "give at least one text, conversation or sequence of tokens")
    return ".jsonl"


def _lines(row: Any, keyword: str) -> Iterable[Any]:
    """The rows of one element: a batch has several."""
    if isinstance(row, str):
        return [{"text": row}]
    if isinstance(row, Mapping):
        if "input_ids" in row:
            return _sequences(row["input_ids"], row.get("attention_mask"), keyword)
        try:
            return [json.loads(json.dumps(dict(row)))]
        except (TypeError, ValueError):
            names = ", ".join(map(repr, row))
            remedy = "give input_ids, or fields of text such as text or messages"
            raise usage_error(f"{keyword} has rows that are no JSON, with {names}", remedy) from None
    if isinstance(row, list | tuple) and row and _is_turn(row[0]):
        return [{"messages": list(row)}]
    return _sequences(row, None, keyword)


def _sequences(tokens: Any, mask: Any, keyword: str) -> Iterable[Any]:
    """Tokens of one sequence, or of a batch of them, without those that the mask leaves out."""
    tokens, mask = _plain(tokens), _plain(mask)
    if not isinstance(tokens, list):
        raise usage_error(f"{keyword} has an element of type {type(tokens).__name__}", _ACCEPTED)
    is_batch = bool(tokens) and isinstance(tokens[0], list)
    sequences = tokens if is_batch else [tokens]
    masks = [[True] * len(sequence) for sequence in sequences] if mask is None else mask if is_batch else [mask]
    if [len(sequence) for sequence in sequences] != [len(kept) for kept in masks]:
        raise usage_error(f"attention_mask and input_ids of {keyword} differ in shape", "give a mask for each token")
    for sequence, kept in zip(sequences, masks, strict=True):
        odd = next((token for token in sequence if type(token) is not int), None)
        if odd is not None:
            raise usage_error(f"{keyword} has the token {odd!r}, which is no whole number", _ACCEPTED)
        yield {"input_ids": [token for token, keep in zip(sequence, kept, strict=True) if keep]}


def _plain(value: Any) -> Any:
    """Arrays, tensors and tuples as lists, their elements as numbers of Python."""
    if isinstance(value, list | tuple):
        is_plain = all(type(element) is int for element in value)
        return list(value) if is_plain else [_plain(element) for element in value]
    array = _array(value)
    return value if array is None else array.tolist()


_ACCEPTED = "give files, texts, conversations, lists of tokens, arrays, or an iterable of dicts with input_ids"


def _write_document(file: IO[bytes], keyword: str, data: Any) -> str:
    """Texts that are measured on, as one document."""
    texts = list(_elements(data, keyword))
    if not texts or not all(isinstance(text, str) for text in texts):
        raise usage_error(f"{keyword} of a language model must be text", "give a file with text or a list of strings")
    file.write("\n\n".join(texts).encode())
    return ".txt"


def _write_arrays(file: IO[bytes], keyword: str, data: Any) -> str:
    """Samples of a graph: an array for each input, whose first axis counts them."""
    import numpy

    array = _array(data)
    if array is not None:
        numpy.lib.format.write_array(file, array, allow_pickle=False)
        return ".npy"
    if not isinstance(data, Mapping):
        batches = list(_elements(data, keyword))
        if not batches:
            raise usage_error(f"{keyword} is empty", "give at least one batch")
        if not all(isinstance(batch, Mapping) for batch in batches):
            numpy.lib.format.write_array(
                file, _joined([_needed(batch, keyword) for batch in batches], keyword), allow_pickle=False
            )
            return ".npy"
        names = list(batches[0])
        if any(set(batch) != set(names) for batch in batches):
            raise usage_error(f"the batches of {keyword} have different inputs", "give all inputs in each batch")
        data = {name: _joined([_needed(batch[name], keyword) for batch in batches], keyword) for name in names}
    arrays = {name: _needed(value, keyword) for name, value in data.items()}
    numpy.savez(file, allow_pickle=False, **arrays)
    return ".npz"


def _joined(batches: list[numpy.ndarray], keyword: str) -> numpy.ndarray:
    import numpy

    if len({batch.shape[1:] for batch in batches}) > 1:
        shapes = sorted({str(batch.shape) for batch in batches})
        remedy = "pad them, or give a directory of .npz files"
        raise usage_error(f"the batches of {keyword} have different shapes: {', '.join(shapes)}", remedy)
    return numpy.concatenate(batches)


def _needed(value: Any, keyword: str) -> numpy.ndarray:
    """The array of an input; lists of numbers become one."""
    import numpy

    array = _array(value)
    if array is None:
        array = numpy.asarray(value)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise usage_error(f"{keyword} has values of type {type(value).__name__}", "give arrays of numbers")
    return array


def _array(value: Any) -> numpy.ndarray | None:
    """An array or a tensor of torch as an array; None for anything else. Only what the caller has imported is used."""
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    if not hasattr(value, "__array_interface__") or not hasattr(value, "dtype"):
        return None
    import numpy

    return numpy.asarray(value)


def _tokens(array: numpy.ndarray, keyword: str) -> numpy.ndarray:
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        found = f"{array.dtype} of shape {array.shape}"
        raise usage_error(
            f"{keyword} must have whole numbers, [tokens] or [sequences, tokens], and is {found}", _ACCEPTED
        )
    return array


def _is_turn(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _elements(data: Any, keyword: str) -> Iterable[Any]:
    """The elements of an iterable, or of a data set that is indexed."""
    is_iterable = isinstance(data, Iterable) or hasattr(data, "__getitem__")
    if isinstance(data, bytes) or not is_iterable:
        raise usage_error(f"{keyword} is of type {type(data).__name__}", _ACCEPTED)
    elements: Iterable[Any] = iter(data)
    return elements
