"""The blocks of a study's sweep: a training, and the timing of all methods. By name and plain data, for any process."""

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache, lru_cache, partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gallery.example import Example, OwnMethod, Task
from gallery.methods import chosen
from gallery.methods.method import Knobs
from gallery.needs import Missing
from gallery.training import Goal, seconds_per_evaluation, train
from tiebreak.studies.task import Block
from tiebreak.studies.user_files import Source, SweepError, explained, in_files

__all__ = ["code_digest", "timed", "trained"]


@cache
def code_digest() -> str:
    """A checksum of every line of the gallery. It is an argument of each task, so that results of other code are not
    reused; that of the library is in the task's fingerprint anyway.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _example(where: Source, size: Any, seed: int, device: str) -> tuple[Example, Task]:
    torch.set_num_threads(1)  # else results depend on how many there are
    torch.manual_seed(seed)
    example: Example = where.load()
    task = example.build(size, seed, device)
    if not isinstance(task, Task):
        raise ValueError(f"build must return a Task, not {type(task).__name__}")
    # A copy: whoever keeps a model between two calls of build() would train on where the last method stopped.
    return example, replace(task, model=copy.deepcopy(task.model))


def _owned(make: Callable[..., Block]) -> Callable[..., Block]:
    """A block of this version of the gallery. What fails in a file of one's own is told with its line, whatever it is;
    what is not installed, as it is.
    """

    @wraps(make)
    def run(
        hear: Callable[[float], Any], *, example: Source, code: str, **given: Any
    ) -> Block:
        if code != code_digest():
            raise SweepError(
                "a worker has another version of the gallery than the process that asks it to work"
            )
        if not in_files([example]):
            return make(hear, example=example, **given)
        said = (
            f"{given['method']}, seed {given['seed']}"
            if "method" in given
            else "its timing"
        )

        def made() -> Block | Missing:
            try:
                return make(hear, example=example, **given)
            except Missing as missing:
                return missing

        block = explained(f"name={example.place!r}: {said}", [example], made)
        if isinstance(block, Missing):
            raise block
        return block

    return run


@_owned
def trained(
    hear: Callable[[float], Any],
    *,
    example: Source,
    size: str,
    device: str,
    method: str,
    seed: int,
    knobs: Knobs,
    evaluations: float | None,
    reference: float | None,
    finished: bool = False,
    alone: float | None = None,
) -> Block:
    """One training, as a block of a sweep; with `finished` its end, too, from the start or from lower-only training of
    `alone` gradient evaluations.
    """
    here = (example, size, seed, device)
    start = _start_loss(*here) if example.load().reference == "start" else None
    given, task = _example(example, size, seed, device)
    known = reference if start is None else start
    goal = Goal.of(
        math.nan if known is None else known, given.tolerance
    )  # lower-only training needs none
    how, anchor = chosen([], given)[method], None
    if finished and not (isinstance(how, OwnMethod) and not how.finishes):
        begin = copy.deepcopy(task.model.state_dict())
        alone_by = partial(_lower_only, *here, alone)
        anchor = alone_by if start is None else lambda: begin
    done = train(
        task,
        how,
        knobs,
        goal,
        evaluations=evaluations,
        seed=seed,
        anchor=anchor,
        hear=hear,
    )
    lacking = [
        metric.name for metric in given.metrics if metric.name not in done.metrics
    ]
    if lacking and done.status == "finished":
        raise ValueError(
            f"metrics() must give {', '.join(lacking)}; it gave {', '.join(done.metrics) or 'nothing'}"
        )
    facts = asdict(done) | {
        "finished": None if done.finished is None else done.finished._asdict()
    }
    curve = {name: np.array(column) for name, column in facts.pop("curve").items()}
    return Block({"curve": curve}, facts | {"reference": start})


@lru_cache(maxsize=8)
def _start_loss(example: Source, size: str, seed: int, device: str) -> float:
    """The lower loss of the model that all methods start from: once a seed and process."""
    _, task = _example(example, size, seed, device)
    return task.losses(task.model)[0]


@lru_cache(maxsize=8)
def _lower_only(
    example: Source,
    size: str,
    seed: int,
    device: str,
    evaluations: float | None,
) -> Mapping[str, Tensor]:
    """What training on g alone makes of the model: once a seed and process, for all methods that are finished there."""
    given, task = _example(example, size, seed, device)
    train(task, chosen([], given)["lower-only"], {}, Goal.of(math.nan, given.tolerance), evaluations=evaluations,
          seed=seed)  # fmt: skip
    return dict(task.model.state_dict())


@_owned
def timed(
    hear: Callable[[float], Any],
    *,
    example: Source,
    size: str,
    device: str,
    knobs: Mapping[str, Knobs],
) -> Block:
    """The steps of a training, and the seconds of a gradient evaluation by each of these methods."""
    given, task = _example(example, size, 0, device)
    seconds, own = {}, chosen([], given)
    start = task.losses(task.model)[0] if knobs else 1.0
    for k, name in enumerate(knobs):
        hear(k / len(knobs))
        _, fresh = _example(example, size, 0, device)
        goal = Goal.of(start, given.tolerance)
        seconds[name] = seconds_per_evaluation(fresh, own[name], knobs[name], goal)
    return Block({}, {"steps": task.steps, "seconds": seconds})
