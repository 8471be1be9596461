"""The model `kvant` of lm-evaluation-harness: checkpoints and GGUF files with Kvant's own forward pass.

`pip install kvant[lm-eval]` makes it known to the program:

    lm_eval --model kvant --model_args pretrained=DIR --tasks hellaswag

In Python, importing this module registers it for `lm_eval.simple_evaluate(model="kvant", ...)`. Where the program was
installed otherwise, `python -m kvant.lm_eval` takes the arguments of `lm_eval`.
"""

from __future__ import annotations

from typing import Any

from kvant._errors import InvalidError, UnsupportedError, missing_extra
from kvant._language_model import LanguageModel

try:
    # The models of the harness, which it looks for only while none is registered.
    import lm_eval.models  # noqa: F401
    from lm_eval.api import registry
    from lm_eval.api.model import TemplateLM
except ModuleNotFoundError as error:
    raise missing_extra(error, "kvant.lm_eval", "lm-eval") from error

__all__ = ["KvantLM"]

# The limit on new tokens where the task sets none, as for `--model hf`.
_NEW_TOKENS = 256


class KvantLM(TemplateLM):  # type: ignore[misc]
    """A language model of Kvant for lm-evaluation-harness. Results do not depend on batches or threads.

    Args:
        pretrained: Hugging Face directory or GGUF file, float or quantized.
        tokenizer: Directory of tokenizer.json [default: the model].
        max_length: The longest sequence in tokens [default: the model's context].
        dtype: Precision of activations: float32, or bfloat16, which computes as a bf16 model does in torch.
        lora: LoRA adapter, which is merged as weights are read.
        add_bos_token: Whether texts begin with the special tokens of the tokenizer [default: as the tokenizer does].
        prefix_token_id: The token before texts without a context [default: the one that begins texts].
        max_gen_toks: The limit on new tokens where the task sets none.
        threads: Threads to work with.
        max_memory: Memory for keys, values and quantized weights [default: 1GB].
        batch_size, max_batch_size, device: Taken and ignored: Kvant chooses batches itself and runs on the CPU.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        tokenizer: str | None = None,
        max_length: int | None = None,
        dtype: str = "float32",
        lora: str | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        max_gen_toks: int = _NEW_TOKENS,
        threads: int | None = None,
        max_memory: int | str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        precisions = {"float32": "f32", "f32": "f32", "bfloat16": "bf16", "bf16": "bf16", "auto": "f32"}
        if dtype not in precisions:
            raise ValueError(f"dtype must be float32 or bfloat16, not {dtype!r}")
        self._lm = LanguageModel(
            pretrained,
            tokenizer=tokenizer,
            max_length=max_length,
            precision=precisions[dtype],  # type: ignore[arg-type]
            lora=lora,
            threads=threads,
            max_memory=max_memory,
        )
        self._tokenizer_path = tokenizer or pretrained
        self._adds_special = True if add_bos_token is None else add_bos_token
        self._prefix_token = prefix_token_id
        self._max_gen_toks = max_gen_toks

    @property
    def eot_token_id(self) -> int:
        """The token that ends texts."""
        return self._lm.end_tokens[0] if self._lm.end_tokens else 0

    @property
    def prefix_token_id(self) -> int:
        """The token before texts without a context."""
        if self._prefix_token is not None:
            return self._prefix_token
        return self.eot_token_id if self._lm.begin_token is None else self._lm.begin_token

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens."""
        return self._lm.max_length

    @property
    def max_gen_toks(self) -> int:
        """The limit on new tokens where the task sets none."""
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness keeps requests."""
        return self._tokenizer_path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The text of the chat template, if one is to be applied."""
        if isinstance(chat_template, str) and chat_template != "default":
            raise UnsupportedError(
                f"the chat template {chat_template!r} is not chosen by its name",
                kind="unsupported",
                remedy="apply the default one with --apply_chat_template alone",
            )
        return self._lm.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation in the model's chat template; without system messages where it refuses these."""
        try:
            return self._lm.apply_chat_template(chat_history, continue_final=not add_generation_prompt)
        except InvalidError:
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history):
                raise
            return self._lm.apply_chat_template(others, continue_final=not add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The tokens of a text. One that begins with the token before texts gets no other special tokens."""
        special = self._adds_special if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None:
            prefix = self._lm.detokenize([self.prefix_token_id], skip_special_tokens=False)
            special = special and not (prefix and string.startswith(prefix))
        return self._lm.tokenize(string, special_tokens=special)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        found = self._lm.loglikelihood(pairs, progress=not disable_tqdm)
        scores = [(float(score.log_likelihood), bool(score.is_greedy)) for score in found]
        for (strings, _, _), score in zip(requests, scores, strict=True):
            if strings is not None:
                self.cache_hook.add_partial("loglikelihood", strings, score)
        return scores

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text as a whole."""
        prefix = self.prefix_token_id
        texts = [self.tok_encode(request.args[0]) for request in requests]
        found = self._lm._call("loglikelihood_rolling", not disable_tqdm, texts, prefix)
        for request, score in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, score)
        return [float(score) for score in found]

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Continues each context up to where its arguments say."""
        texts: list[str] = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(index)
        for indices in groups.values():
            options = self._options(dict(requests[indices[0]].args[1]))
            prompts = [self.tok_encode(requests[index].args[0]) for index in indices]
            found = self._lm.generate_until(prompts, progress=not disable_tqdm, **options)
            for index, text in zip(indices, found, strict=True):
                texts[index] = text.text
                self.cache_hook.add_partial("generate_until", requests[index].args, text.text)
        return texts

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a request as `LanguageModel.generate_until` takes them."""
        until = given.pop("until", None) or []
        counts = [given.pop(name, None) for name in ("max_gen_toks", "max_new_tokens", "max_tokens")]
        samples = given.pop("do_sample", None)
        temperature = float(given.pop("temperature", None) or 0.0)
        if samples and not temperature:
            temperature = 1.0
        if samples is False:
            temperature = 0.0
        # What only matters to samples says nothing about the likeliest token.
        choice = {name: given.pop(name, None) for name in ("top_k", "top_p", "seed")}
        if given.get("num_beams") == 1:
            del given["num_beams"]
        if given:
            raise ValueError(f"the model kvant does not know the generation arguments {', '.join(sorted(given))}")
        if not temperature:
            choice = {}
        return {
            "until": [until] if isinstance(until, str) else list(until),
            "max_new_tokens": next((count for count in counts if count is not None), self._max_gen_toks),
            "temperature": temperature,
            **{name: value for name, value in choice.items() if value is not None},
        }


if "kvant" not in registry.MODEL_REGISTRY:
    registry.register_model("kvant")(KvantLM)

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
