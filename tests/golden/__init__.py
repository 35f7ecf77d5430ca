"""Golden traces: recorded runs of every mode, which a test replays and compares bit for bit."""
