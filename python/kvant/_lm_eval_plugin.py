"""Makes the model `kvant` known to the program `lm_eval`, which has no plugin mechanism.

`kvant-lm-eval.pth` imports this module when Python starts with that program, and never otherwise.
"""

from __future__ import annotations


def _register() -> None:
    import lm_eval.models  # noqa: F401
    from lm_eval.api import registry

    if hasattr(registry, "model_registry"):
        # The class is imported if it is asked for.
        registry.model_registry.register("kvant", target="kvant.lm_eval:KvantLM")
    else:
        import kvant.lm_eval  # noqa: F401


try:
    _register()
except Exception as error:  # The program works without the model, and its start is no place for a traceback.
    import warnings

    warnings.warn(f"the model kvant is not available in lm_eval: {error}", stacklevel=1)
