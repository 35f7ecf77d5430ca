"""Settings that every test shares."""

import gc
import os

from threadpoolctl import threadpool_limits

# The tests compute with small arrays, in two processes at a time: threads inside them would only wait for each other.
# NumPy may already be imported by a plugin of pytest; later libraries and other processes read the variables.
threadpool_limits(1)
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at imported modules and collected tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter free everything when it ends."""
    gc.unfreeze()
