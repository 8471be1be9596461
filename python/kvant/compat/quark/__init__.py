"""AMD Quark's interface: replace `from quark.` by `from kvant.compat.quark.`."""

from kvant.compat.quark._absent import refuse_modules

refuse_modules()
