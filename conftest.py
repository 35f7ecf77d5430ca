"""Settings that every test shares."""

import os

from threadpoolctl import threadpool_limits

# The tests compute with small arrays, in two processes at a time: threads inside them would only wait for each other.
# NumPy may already be imported by a plugin of pytest; later libraries and other processes read the variables.
threadpool_limits(1)
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
