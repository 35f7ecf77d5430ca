"""What the rule sees of the gradients: the mini-batch, an exponential average of ∇g, or STORM estimates of both."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tiebreak.torch.gradients import LEVELS, Gradients
from tiebreak.torch.rows import Row

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier

__all__ = ["KINDS", "Estimates"]

KINDS = ("minibatch", "average", "storm")


class Estimates:
    """Holds what an estimator remembers: nothing, one tensor per parameter (average), or three (storm)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.weights: dict[Tensor, float] = {}
        self.memory: dict[str, dict[Tensor, Tensor]] = {}

    @property
    def own(self) -> bool:
        """Whether the rule sees the batch's own gradient, with all its noise."""
        return self.kind == "minibatch"

    def averaged(self, rows: Sequence[Row], momentum: float, unit: float) -> list[Row]:
        """The rows as the rule sees them: with the average of ∇g, which takes in `unit` times this step's."""
        kept, seen = self.memory.setdefault("lower", {}), []
        for row in rows:
            p, g = row.parameter, row.lower
            # The share of the newest gradient that makes all weights add up to 1 from the first step on; per parameter,
            # because groups may join late.
            total = self.weights[p] = (1 - momentum) * self.weights.get(p, 0.0) + momentum
            share = momentum / total if total > 0 else 1.0
            if p in kept:
                kept[p].mul_(1 - share)
                if g is not None:
                    kept[p].add_(g, alpha=share * unit)
            elif g is not None:
                kept[p] = share * unit * g.detach()
            seen.append(row._replace(lower=kept.get(p)))
        return seen

    def evaluate(
        self, optimizer: "DynamicBarrier", upper: Callable[[], Tensor], lower: Callable[[], Tensor], momentum: float
    ) -> None:
        """Gradients from closures; for STORM at two points, the same batch and the same random numbers at both."""
        gradients = optimizer.gradients
        if self.kind != "storm":
            _backward(optimizer, upper, lower)
            return
        parameters = list(gradients.parameters())
        state = _random_state()
        if "x" in self.memory:
            here = [p.detach().clone() for p in parameters]
            _set(parameters, [self.memory["x"].get(p, p) for p in parameters])
            try:
                _backward(optimizer, upper, lower)
                before = {level: gradients.of(level, parameters) for level in LEVELS}
            finally:  # whatever a closure does, the parameters are where they were
                optimizer.forget()
                _set(parameters, here)
            _restore(state)
        _backward(optimizer, upper, lower)
        if "x" in self.memory:
            for level in LEVELS:
                now = gradients.of(level, parameters)
                for p, new, old in zip(parameters, now, before[level], strict=True):
                    estimate = self.memory[level].get(p)
                    if new is not None and estimate is not None and old is not None:
                        new.add_(estimate - old, alpha=1 - momentum)  # v = G(x) + (1 − α)(v₋ − G(x₋))

    def accept(self, gradients: Gradients) -> None:
        """The step will be made: remember what STORM found. A batch that is skipped leaves nothing behind."""
        if self.kind == "storm":
            parameters = list(gradients.parameters())
            self.memory = {"x": {p: p.detach().clone() for p in parameters}}
            for level in LEVELS:
                found = zip(parameters, gradients.of(level, parameters), strict=True)
                self.memory[level] = {p: g.detach().clone() for p, g in found if g is not None}

    def state_dict(self, gradients: Gradients) -> dict[str, Any]:
        """Tensors by the number of their parameter, as torch optimizers save them."""
        numbers = {p: i for i, p in enumerate(gradients.parameters())}
        memory = {name: {numbers[p]: t for p, t in kept.items()} for name, kept in self.memory.items()}
        return {"kind": self.kind, "weights": {numbers[p]: w for p, w in self.weights.items()}, "memory": memory}

    def load_state_dict(self, state: dict[str, Any], gradients: Gradients) -> None:
        """Take up what `state_dict` gave."""
        if state["kind"] != self.kind:
            raise ValueError(f"estimator={self.kind!r} cannot load a state of estimator={state['kind']!r}")
        parameters = list(gradients.parameters())
        self.weights = {parameters[i]: w for i, w in state["weights"].items()}
        self.memory = {
            name: {parameters[i]: t.clone().to(device=parameters[i].device) for i, t in kept.items()}
            for name, kept in state["memory"].items()
        }


def _backward(optimizer: "DynamicBarrier", upper: Callable[[], Tensor], lower: Callable[[], Tensor]) -> None:
    # Forward and backward of one level, then of the other: the only order that DistributedDataParallel averages right.
    try:
        _both(optimizer, upper, lower)
    except BaseException:  # half a step is none: the next one begins anew
        optimizer.forget()
        raise


def _both(optimizer: "DynamicBarrier", upper: Callable[[], Tensor], lower: Callable[[], Tensor]) -> None:
    for level, closure in (("lower", lower), ("upper", upper)):
        with torch.enable_grad():
            loss = closure()
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise TypeError(
                    f"the {level} closure returned {type(loss).__name__}; it must return its loss, one number"
                )
            with getattr(optimizer, level)(loss):
                torch.autograd.backward(loss)


@torch.no_grad()
def _set(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for p, value in zip(parameters, values, strict=True):
        if p is not value:
            p.copy_(value)


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _restore(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
