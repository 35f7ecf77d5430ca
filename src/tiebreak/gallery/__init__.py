"""Real problems: where the library pays, and where it does not."""
