"""AMD Quark's interface: replace `from quark.` by `from kvant.compat.quark.`."""
