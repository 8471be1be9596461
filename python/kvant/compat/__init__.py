"""Other tools' interfaces, so that scripts for them run with only their imports changed."""
