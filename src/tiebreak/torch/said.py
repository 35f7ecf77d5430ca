"""Warnings that point to the user's line, however many calls of torch and of ours lie between."""

import contextlib
import os
import sys
import warnings

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSIDE = tuple(folder + os.sep for folder in (_OURS, os.path.dirname(torch.__file__)))


def warn(text: str) -> None:
    """Warn at the newest line that is neither ours nor torch's: a scheduler or a profiler wraps the step it watches."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _inside(path: str) -> bool:
    return path.startswith(_INSIDE) or path == contextlib.__file__
