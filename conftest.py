"""Settings that every test shares."""

import os

# The tests compute with small arrays, in two processes at a time: threads inside them would only wait for each other.
# NumPy and torch read these variables when they are imported.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
