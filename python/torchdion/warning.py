"""Warnings that point at the user's code."""

import os
import sys
import warnings

import torch

_LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))


def warn(message: str) -> None:
    """Warns as of the innermost line outside torch and torchdion, however many of their frames lie between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
