"""The main job in one command: `journey` does it, `options` says what it can be asked for."""
