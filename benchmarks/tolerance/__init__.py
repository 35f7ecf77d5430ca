"""How the law of `tiebreak.tolerance` keeps its promise: ``python -m benchmarks.tolerance [--quick]``."""
