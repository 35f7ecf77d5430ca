"""The problems of the simple-bilevel literature: ``python -m benchmarks.classic`` remakes their tables and figures."""
