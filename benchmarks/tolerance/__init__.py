"""The study of `tiebreak.tolerance`: ``python -m benchmarks.tolerance``."""
