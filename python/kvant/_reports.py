"""Reports: the objects of `--json` as dataclasses, which notebooks show as tables."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Report:
    """What a call found or made. Fields that a kind of model does not have are None.

    `to_dict` has everything, as an object of the schema that `schema` names (`docs/schemas`). `str` gives the
    summary that the command line prints.
    """

    # The lists of the object that can be the rows of `to_pandas`: the first one that is there.
    _ROWS: ClassVar[tuple[str, ...]] = ()

    schema: str
    _object: dict[str, Any] = field(repr=False, compare=False)
    _sections: list[dict[str, Any]] = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The whole report, as a copy that may be changed."""
        import copy

        return copy.deepcopy(self._object)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows of the report, such as tensors or findings; or its values in one row. Needs pandas."""
        import pandas

        rows = next((self._object[name] for name in self._ROWS if self._object.get(name) is not None), None)
        if rows is None:
            rows = [{name: value for name, value in self._object.items() if not isinstance(value, dict | list)}]
        return pandas.DataFrame(rows)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, map(_text, self._sections)))

    def _repr_html_(self) -> str:
        return "".join(map(_html, self._sections))


@dataclass(frozen=True)
class QuantizeReport(Report):
    """A quantized model.

    Attributes:
        output: The path of the output, or of the first one.
        format: Its format.
        quantized_layers: Quantized layers or tensors.
        bits_per_weight: Bits of a quantized weight, scales included.
        source_bytes: Size of the source.
        output_bytes: Size of the output.
        seconds: Duration of the run.
        notices: Things that are worth knowing.
    """

    output: str | None = None
    format: str | None = None
    quantized_layers: int | None = None
    bits_per_weight: float | None = None
    source_bytes: int | None = None
    output_bytes: int | None = None
    seconds: float | None = None
    notices: list[str] | None = None

    @property
    def outputs(self) -> list[str]:
        """The paths of all outputs: one for each format."""
        also = self._object.get("also") or self._object.get("outputs") or []
        paths = [entry["output"] if isinstance(entry, dict) else entry for entry in also]
        main = [] if self.output is None or self.output in paths else [self.output]
        return main + paths


@dataclass(frozen=True)
class PlanReport(Report):
    """What a quantization would do. The rows are its tensors.

    Attributes:
        model: The path of the source.
        format: The format of the output.
        loaders: The loaders that read the output.
        quantized_layers: Layers or tensors that would be quantized.
        bits_per_weight: Bits of a quantized weight, scales included.
        source_bytes: Size of the source.
        output_bytes: Size of the output.
        peak_memory: Most memory in bytes.
        needs_data: Whether the run needs calibration data.
        tensors: An object for each tensor.
        notices: Things that are worth knowing.
    """

    _ROWS: ClassVar[tuple[str, ...]] = ("tensors",)

    model: str | None = None
    format: str | None = None
    loaders: list[str] | None = None
    quantized_layers: int | None = None
    bits_per_weight: float | None = None
    source_bytes: int | None = None
    output_bytes: int | None = None
    peak_memory: int | None = None
    needs_data: bool | None = None
    tensors: list[dict[str, Any]] | None = None
    notices: list[str] | None = None


@dataclass(frozen=True)
class ConvertReport(Report):
    """A converted model. The rows are the errors of layers that the target does not hold exactly, if there are any.

    Attributes:
        output: The path of the output.
        format: Its format.
        layers: Quantized layers.
        source_bytes: Size of the source.
        output_bytes: Size of the output.
        seconds: Duration of the run.
        notices: Things that are worth knowing.
    """

    output: str | None = None
    format: str | None = None
    layers: int | None = None
    source_bytes: int | None = None
    output_bytes: int | None = None
    seconds: float | None = None
    notices: list[str] | None = None


@dataclass(frozen=True)
class EvaluateReport(Report):
    """A measurement.

    The rows are the models where several were given, the blocks of a language model (with a reference), or of an
    encoder, or the outputs of a graph.

    Attributes:
        models: An object for each of several models, with the values of its evaluation; the others are None then.
        perplexity: Perplexity of a language model.
        perplexity_error: Its standard error over windows; None if there is one window only.
        reference_perplexity: That of the reference.
        kl_mean: Mean Kullback-Leibler divergence from the reference, in nats.
        top1_agreement: Share of tokens or samples for which both models agree on the most likely class.
        tokens: Tokens that were scored.
        positions: An object for each range of positions in the window, with the mean loss of its tokens.
        accuracy: Share of questions with choices (`choices`) that a language model answers right.
        accuracy_norm: The same by the likelihood per character of a choice.
        flips: Questions that it answers differently than the reference.
        samples: Samples of a graph that were run.
        outputs: An object for each output of a graph or an encoder, with its signal-to-noise ratio in dB.
        embedding_cosine_mean: Mean cosine of an encoder's embeddings of texts and those of the reference.
        embedding_cosine_min: The least of these.
        hidden_sqnr_db: Signal-to-noise ratio of an encoder's last hidden states in dB.
        seconds: Duration of the run.
    """

    _ROWS: ClassVar[tuple[str, ...]] = ("models", "blocks", "outputs")

    models: list[dict[str, Any]] | None = None
    perplexity: float | None = None
    perplexity_error: float | None = None
    reference_perplexity: float | None = None
    kl_mean: float | None = None
    top1_agreement: float | None = None
    tokens: int | None = None
    positions: list[dict[str, Any]] | None = None
    accuracy: float | None = None
    accuracy_norm: float | None = None
    flips: int | None = None
    samples: int | None = None
    outputs: list[dict[str, Any]] | None = None
    embedding_cosine_mean: float | None = None
    embedding_cosine_min: float | None = None
    hidden_sqnr_db: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class VerifyReport(Report):
    """The findings about a model, which are its rows.

    Attributes:
        model: The path of the model.
        passes: Whether no check found an error, and the loader of `for_`, if given, loads the model.
        method: The quantization method of the model.
        findings: An object for each finding.
        loaders: An object for each loader: whether it loads the model, and why not.
    """

    _ROWS: ClassVar[tuple[str, ...]] = ("findings",)

    model: str | None = None
    passes: bool = False
    method: str | None = None
    findings: list[dict[str, Any]] | None = None
    loaders: list[dict[str, Any]] | None = None

    def __bool__(self) -> bool:
        return self.passes


@dataclass(frozen=True)
class InspectReport(Report):
    """The contents of a model. The rows are its tensors.

    Attributes:
        model: The path of the model.
        architecture: Its architecture.
        family: The family of models that Kvant takes it for.
        bytes: Size of its tensors.
        quantization: How it is quantized.
        types: Tensors and bytes by type.
        tensors: An object for each tensor.
        notices: Things that are worth knowing.
    """

    _ROWS: ClassVar[tuple[str, ...]] = ("tensors",)

    model: str | None = None
    architecture: str | None = None
    family: str | None = None
    bytes: int | None = None
    quantization: dict[str, Any] | None = None
    types: dict[str, Any] | None = None
    tensors: list[dict[str, Any]] | None = None
    notices: list[str] | None = None


@dataclass(frozen=True)
class SensitivityReport(Report):
    """The layers of a graph by how much they suffer from quantization; they are the rows.

    Attributes:
        candidates: The types that were tried.
        layers: An object for each layer, in the order of the graph.
        recipe: How close the graph is with all layers quantized as the recipe says.
        mix: How close it is with the mix that was chosen; None without a target.
        trials: Graphs that were made and run.
    """

    _ROWS: ClassVar[tuple[str, ...]] = ("layers",)

    candidates: list[Any] | None = None
    layers: list[dict[str, Any]] | None = None
    recipe: dict[str, Any] | None = None
    mix: dict[str, Any] | None = None
    trials: int | None = None


@dataclass(frozen=True)
class SearchReport(Report):
    """The options of groups of layers, which are the rows, and the mix for the target.

    Attributes:
        format: Format of the recipe: a checkpoint format, or "gguf".
        loaders: Loaders that read all options together.
        options: What layers may become.
        method: How groups were measured: "measured" or "estimated".
        groups: An object for each group of layers, with its `choices`: each with its bytes and the KL divergence of the
            model with this group alone quantized so.
        front: Mixes that no other is predicted to beat, by rising size.
        compared: Every option everywhere, and with the first and last block one option higher; measured.
        chosen: The mix for the target, measured; None without a target.
        recipe: Recipe that was written.
        sensitivities: File in which measurements are kept.
    """

    _ROWS: ClassVar[tuple[str, ...]] = ("groups",)

    format: str | None = None
    loaders: list[str] | None = None
    options: list[str] | None = None
    method: str | None = None
    groups: list[dict[str, Any]] | None = None
    front: list[dict[str, Any]] | None = None
    compared: list[dict[str, Any]] | None = None
    chosen: dict[str, Any] | None = None
    recipe: str | None = None
    sensitivities: str | None = None


@dataclass(frozen=True)
class GenerateReport(Report):
    """Continued prompts, which are the rows.

    Attributes:
        prompts: An object for each prompt, with its `text`, `tokens` and `finish`: "eos", "length" or "stop"; and with
            `reference` and `first_difference` where there is a reference.
        new_tokens: Tokens that were generated.
        tokens_per_second: Speed after the prompts were read.
        reference_tokens_per_second: That of the reference.
        seconds: Duration of the run.
    """

    _ROWS: ClassVar[tuple[str, ...]] = ("prompts",)

    prompts: list[dict[str, Any]] | None = None
    new_tokens: int | None = None
    tokens_per_second: float | None = None
    reference_tokens_per_second: float | None = None
    seconds: float | None = None

    @property
    def texts(self) -> list[str]:
        """The continuation of each prompt."""
        return [prompt["text"] for prompt in self.prompts or []]


_CLASSES: dict[str, type[Report]] = {
    "quantize": QuantizeReport,
    "plan": PlanReport,
    "convert": ConvertReport,
    "eval": EvaluateReport,
    "verify": VerifyReport,
    "inspect": InspectReport,
    "sensitivity": SensitivityReport,
    "search": SearchReport,
    "generate": GenerateReport,
}


def report_of(command: str, found: dict[str, Any], sections: list[dict[str, Any]]) -> Report:
    """The report for an object of a command's schema."""
    made = _CLASSES[command]
    names = [entry.name for entry in fields(made) if not entry.name.startswith("_")]
    return made(_object=found, _sections=sections, **{name: found[name] for name in names if name in found})


def _text(section: dict[str, Any]) -> str:
    if "text" in section:
        return str(section["text"])
    if "lines" in section:
        return "\n".join(f"{title:<15}  {value}" for title, value in section["lines"])
    rows = [section["titles"], *section["rows"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=False)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    )


def _html(section: dict[str, Any]) -> str:
    from html import escape

    if "text" in section:
        return f"<p>{escape(section['text'])}</p>"
    if "lines" in section:
        rows = [f"<tr><th>{escape(title)}</th>{_cells([value])}</tr>" for title, value in section["lines"]]
        return f"<table>{''.join(rows)}</table>"
    titles = "".join(f"<th>{escape(title)}</th>" for title in section["titles"])
    rows = [f"<tr>{_cells(row)}</tr>" for row in section["rows"]]
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(values: list[str]) -> str:
    from html import escape

    return "".join(f'<td style="text-align: left">{escape(value)}</td>' for value in values)
