"""Language models that score and continue texts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from kvant import _kvant
from kvant._errors import InvalidError
from kvant._events import Listener

if TYPE_CHECKING:
    from kvant._types import Paths, StrPath

Text: TypeAlias = "str | Sequence[int]"
"""A text, or its tokens."""


# Marks where a message ends that is to be continued; the space shows whether the template trims messages.
_END = "END_OF_THE_MESSAGE "


class Likelihood(NamedTuple):
    """The likelihood of a text.

    Attributes:
        log_likelihood: The sum of the natural logarithms of its tokens' probabilities.
        is_greedy: Whether each token is the likeliest at its place.
    """

    log_likelihood: float
    is_greedy: bool


class GeneratedText(NamedTuple):
    """A continuation.

    Attributes:
        text: The text behind the prompt, without what ended it.
        tokens: Its tokens, those of a text that ended it included.
        finish: Why it ends: "eos", "length" or "stop".
    """

    text: str
    tokens: list[int]
    finish: str


class LanguageModel:
    """A float or quantized checkpoint, or a GGUF file, that scores and continues texts.

    Texts are strings or sequences of tokens. Calls release the GIL, and Ctrl-C stops them. Weights are mapped from the
    file, so a model takes memory only while a call runs.

    Args:
        model: Hugging Face directory or GGUF file.
        tokenizer: Directory of tokenizer.json [default: the model].
        max_length: The longest sequence in tokens [default: the model's context].
        precision: Precision of activations: f32, or bf16, which computes as a bf16 model does in torch.
        lora: LoRA adapters, as PEFT saves them, which are merged as weights are read.
        threads: Threads to work with. Results do not depend on it.
        max_memory: Memory for keys, values and quantized weights in bytes or as text ("4GB") [default: 1GB].

    Raises:
        KvantError: The model or its tokenizer cannot be used.
    """

    def __init__(
        self,
        model: StrPath,
        *,
        tokenizer: StrPath | None = None,
        max_length: int | None = None,
        precision: Literal["f32", "bf16"] = "f32",
        lora: Paths | None = None,
        threads: int | None = None,
        max_memory: int | str | None = None,
    ) -> None:
        if precision not in ("f32", "bf16"):
            raise TypeError(f"precision must be 'f32' or 'bf16', not {precision!r}")
        adapters = [lora] if isinstance(lora, str | os.PathLike) else list(lora or [])
        self._model = _kvant.LanguageModel(
            os.fspath(model),
            [os.fspath(adapter) for adapter in adapters],
            None if tokenizer is None else os.fspath(tokenizer),
            max_length,
            precision == "bf16",
            threads,
            None if max_memory is None else str(max_memory),
        )
        self.path = os.fspath(model)

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens."""
        return self._model.max_length

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens that there are."""
        return self._model.vocabulary

    @property
    def begin_token(self) -> int | None:
        """The token that begins a text, if the tokenizer has one."""
        return self._model.begin_token

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end a text."""
        return self._model.end_tokens

    def tokenize(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The tokens of a text, with the special tokens that the tokenizer adds unless these are not wanted."""
        return self._model.tokenize([text], special_tokens)[0]

    def detokenize(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens."""
        return self._model.detokenize(list(tokens), skip_special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template, if the model or its tokenizer has one."""
        return self._model.chat_template()

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, continue_final: bool = False) -> str:
        """The text of a conversation in the chat template, with its special tokens.

        Args:
            messages: Messages with `role` and `content`.
            continue_final: Whether the text ends with the last message, which the model is to continue; otherwise it
                ends where the model answers.

        Raises:
            UnsupportedError: There is no chat template.
            InvalidError: The template refuses the conversation, or leaves out the message to continue.
        """
        if not continue_final:
            return self._model.render_chat(json.dumps(list(messages)), True)
        *others, final = messages
        marked = {**final, "content": final["content"] + _END}
        rendered = self._model.render_chat(json.dumps([*others, marked]), False)
        before, mark, behind = rendered.rpartition(_END.strip())
        if not mark or final["content"].strip() not in rendered:
            raise InvalidError("the chat template leaves out the message to continue", kind="invalid")
        # Templates that trim messages trim the end of this one, as in transformers.
        return before if behind.startswith(" ") else before.rstrip()

    def loglikelihood(self, pairs: Sequence[tuple[Text, Text]], *, progress: bool = False) -> list[Likelihood]:
        """The likelihood of each second text, given the first. Pairs that are too long lose tokens at their beginning.

        Two strings are tokenized as one text, and the tokens behind those of the first are scored. An empty first
        text is the token that begins texts, or else one that ends them.

        Raises:
            KvantError: A second text is longer than `max_length`, or a token is unknown.
        """
        made = [self._pair(context, continuation) for context, continuation in pairs]
        return [Likelihood(*found) for found in self._call("loglikelihood", progress, made)]

    def loglikelihood_rolling(self, texts: Sequence[Text], *, progress: bool = False) -> list[float]:
        """The log-likelihood of each text as a whole, in windows of `max_length` of which each token is in one.

        The first window begins with the token that begins texts, or else with one that ends them.
        """
        tokens = [self._tokens(text) for text in texts]
        found: list[float] = self._call("loglikelihood_rolling", progress, tokens, self._prefix())
        return found

    def generate_until(
        self,
        prompts: Sequence[Text],
        until: Sequence[str] = (),
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> list[GeneratedText]:
        """Continues each prompt up to one of the texts `until`, a token that ends texts, or `max_new_tokens`.

        A `temperature` of 0 chooses the likeliest token always; above 0, `top_k`, `top_p` and `seed` count. Prompts
        that are too long lose tokens at their beginning. Which prompts are continued together changes nothing.
        """
        tokens = [self._tokens(prompt) for prompt in prompts]
        sampling = (float(temperature), top_k, top_p, seed)
        found = self._call("generate_until", progress, tokens, list(until), max_new_tokens, sampling)
        return [GeneratedText(*text) for text in found]

    def _call(self, name: str, progress: bool, *arguments: Any) -> Any:
        listener = Listener(progress)
        try:
            return getattr(self._model, name)(*arguments, listener)
        finally:
            listener.close()

    def _prefix(self) -> int:
        if self.begin_token is not None:
            return self.begin_token
        return self.end_tokens[0] if self.end_tokens else 0

    def _tokens(self, text: Text) -> list[int]:
        return self.tokenize(text) if isinstance(text, str) else list(text)

    def _pair(self, context: Text, continuation: Text) -> tuple[list[int], list[int]]:
        if isinstance(context, str) and isinstance(continuation, str) and context:
            before = self.tokenize(context)
            return before, self.tokenize(context + continuation)[len(before) :]
        if isinstance(continuation, str):
            continuation = self.tokenize(continuation, special_tokens=False)
        return (self._tokens(context) if context else [self._prefix()]), list(continuation)

    def __repr__(self) -> str:
        return f"LanguageModel({self.path!r})"
