"""The gradients of each level for every parameter.

``.grad`` holds the gradients of the level that was active last, so a scaler, a clipper or a hook finds real gradients
there, and no copy is made. The gradients of the other levels are stored here meanwhile.
"""

from collections.abc import Sequence
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebreak.torch.distributed import Ranks
from tiebreak.torch.distributed.consistency import ONE_LEVEL
from tiebreak.torch.distributed.layout import local_tensor, redistribute_like
from tiebreak.torch.kernels.torch_passes import Row, max_abs

LEVELS = ("upper", "lower")
REFERENCE = "reference"
#: Identity and version of the tensor in ``.grad``; two zeros if there is none.
_Version: TypeAlias = tuple[int, int]
_NO_VERSION: _Version = (0, 0)
#: Parameters, each with a gradient.
GradientPairs: TypeAlias = list[tuple[Tensor, Tensor]]
_SAMPLE = 64  # numbers of a gradient that are looked at if its version says nothing


class GradientChanged(RuntimeError):
    """``.grad`` was changed after its block."""


class NoGradient(RuntimeError):
    """A backward pass left nothing in ``.grad``."""


class Gradients:
    """The gradients of both levels, and those of a twin.

    Parameters
    ----------
    base : Optimizer
        The parameters are read from its groups at each use: loading a state replaces the list.
    ranks : Ranks
    """

    def __init__(self, base: Optimizer, ranks: Ranks) -> None:
        self._base = base
        self._ranks = ranks
        self.clear()

    def clear(self) -> None:
        """Forget all levels; ``.grad`` stays as it is."""
        self.finished: set[str] = set()
        self.owner: str | None = None
        # By level and by the parameter's id.
        self._stored: dict[str, dict[int, Tensor]] = {
            level: {} for level in (*LEVELS, REFERENCE)
        }
        self._after_block: list[_Version] = []
        self._before_block: list[_Version] = []
        self._sample: Tensor | None = None
        self.changed_here = False  # .grad was changed after its block
        # The same as a message to all ranks, if versions say nothing or other ranks wait.
        self.changed: Tensor | None = None

    def parameters(self) -> list[Tensor]:
        """Return every parameter, in the order of the groups."""
        return [p for group in self._base.param_groups for p in group["params"]]

    # --- blocks ---------------------------------------------------------------

    def enter(self, level: str) -> None:
        """Make ``.grad`` the place where the gradients of this level accumulate."""
        parameters = self.parameters()
        is_first = False
        if self.owner is None:
            # .grad has the direction of the last step.
            for p in parameters:
                p.grad = None
            is_first = True
        elif self.owner != level:
            self.check_unchanged()
            if any(self._ranks.wrappers):
                self._ranks.check_synchronized()
            stored = self._stored[level]
            self._stored[self.owner] |= {
                id(p): p.grad for p in parameters if p.grad is not None
            }
            is_first = not stored
            reset = self._ranks.reset_parameters
            for p in parameters:
                if p in reset:
                    p.grad = None
                else:
                    p.grad = stored.pop(id(p), None)
        else:
            self.check_kept()
        if is_first:
            self._before_block = [_NO_VERSION] * len(parameters)
        else:
            self._before_block = self._versions()
        self.owner = level
        self._after_block = []

    def leave(self, level: str) -> None:
        """End a block of this level; raise if it left no gradient."""
        # FSDP needs .grad to be None before a pass, so earlier micro-batches are added afterwards.
        for p in self._ranks.reset_parameters:
            before = self._stored[level].pop(id(p), None)
            if before is not None:
                if p.grad is None:
                    p.grad = before
                else:
                    p.grad = p.grad.add_(before)
        # Another rank may have some.
        if self._versions() == self._before_block and self._ranks.alone:
            self.clear()
            raise NoGradient(
                f"no gradient came out of `with opt.{level}(…):`: put loss.backward() inside, of a loss that depends "
                "on the parameters of this optimizer (was the model copied or re-created after it? are they frozen, "
                f"requires_grad=False?). DeepSpeed's ZeRO takes gradients away: use FSDP",
            )
        self.finished.add(level)
        self.mark()

    def mark(self) -> None:
        """Note the content of ``.grad``: :meth:`check_unchanged` finds later changes."""
        self._after_block = self._versions()
        self._sample = self._sample_norms()

    def _sample_norms(self) -> Tensor | None:
        """Norms of parts of the gradients of FSDP and DTensor, whose versions say nothing; clipping changes them."""
        if not self._ranks.versions_are_silent:
            return None
        grads = []
        for p in self.parameters():
            if p.grad is not None and is_usable(p.grad):
                grads.append(local_tensor(p.grad))
        parts = []
        for grad in grads[:: 1 + len(grads) // 8]:
            if grad.is_contiguous():
                parts.append(grad.view(-1)[:_SAMPLE])
        if not parts:
            return None
        norms = torch._foreach_norm(parts)
        return torch.stack([norm.to(parts[0].device, torch.float32) for norm in norms])

    def _versions(self) -> list[_Version]:
        reset = self._ranks.reset_parameters
        versions = []
        for p in self.parameters():
            grad = p.grad
            if grad is None:
                versions.append(_NO_VERSION)
            elif reset and p in reset:
                # A forward pass makes other views of the same memory.
                versions.append((grad.data_ptr(), 0))
            else:
                versions.append((id(grad), grad._version))
        return versions

    def check_unchanged(self) -> None:
        """Raise if ``.grad`` was changed after its block: the change reached one level and not the other."""
        if not self._after_block or torch.compiler.is_compiling():
            return
        self.check_kept()
        before = self._sample
        if before is None:
            after = None
        else:
            after = self._sample_norms()
        if before is not None and after is not None:
            # The all-reduce of the step reports the change on every rank.
            changed = torch.ones((), dtype=torch.bool, device=before.device)
            if len(before) == len(after):
                # Compare bits, because NaN differs from itself.
                changed = (before.view(torch.int32) != after.view(torch.int32)).any()
            if self.changed is not None:
                changed = changed | self.changed.to(changed.device)
            self.changed = changed
        # `rows` has a message of its own for a gradient that was set to None.
        pairs = zip(self._after_block, self._versions(), strict=False)
        if any(old != new != _NO_VERSION for old, new in pairs):
            if not self._ranks.alone:
                self.changed = torch.tensor(True)
                self.changed_here = True
                return
            raise GradientChanged(
                f"the {self.owner} gradients were changed after `with opt.{self.owner}():`, {ONE_LEVEL}"
            )

    def check_kept(self) -> None:
        """Raise if a gradient was set to None after its block."""
        if not self._ranks.alone:  # an error on one rank would leave the others waiting
            return
        pairs = zip(self._after_block, self.parameters(), strict=False)
        if any(old != _NO_VERSION and p.grad is None for old, p in pairs):
            raise RuntimeError(
                f"{self.owner} gradients were set to None after `with opt.{self.owner}():`, as by model.zero_grad(): a step "
                "needs no zero_grad(); opt.zero_grad() discards it and begins a new one"
            )

    def check_direction(self) -> None:
        """Raise if the direction of :meth:`settle_direction` is gone."""
        if all(p.grad is None for p in self.parameters()):
            raise RuntimeError(
                "the direction is gone: .grad was set to None between opt.combine() and opt.step(), as by "
                "model.zero_grad()"
            )

    def check_complete(self) -> None:
        """Raise unless both levels had a backward pass. With several ranks, the all-reduce of the step reports it."""
        for level in LEVELS:
            if level not in self.finished and (self._ranks.alone or not self.finished):
                raise RuntimeError(
                    f"no {level} gradients in this step: put the backward pass in `with opt.{level}():`, or give both "
                    "losses, opt.step(lower=lambda: …, upper=lambda: …)"
                )

    # --- reading --------------------------------------------------------------

    def of(self, level: str, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients of a level."""
        if self.owner == level:
            return [p.grad for p in parameters]
        stored = self._stored[level]
        return [stored.get(id(p)) for p in parameters]

    def put(self, level: str, parameter: Tensor, grad: Tensor) -> None:
        """Give a parameter a gradient of this level."""
        if self.owner == level:
            parameter.grad = grad
        else:
            self._stored[level][id(parameter)] = grad

    def are_present(self) -> tuple[bool, ...]:
        """Whether there are gradients of the upper level, and of the lower level."""
        parameters = self.parameters()
        return tuple(
            any(grad is not None for grad in self.of(level, parameters))
            for level in LEVELS
        )

    def rows(self) -> list[Row]:
        """Return every parameter with both gradients, in the order of the groups."""
        parameters = self.parameters()
        groups = []
        for i, group in enumerate(self._base.param_groups):
            groups += [i] * len(group["params"])
        uppers = self.of("upper", parameters)
        lowers = self.of("lower", parameters)
        # This runs for every gradient at every step, so the common case has no Python loop.
        if any(map(is_, uppers, lowers)):
            _refuse_shared_tensors(parameters, uppers, lowers)
        for level, grads in (("upper", uppers), ("lower", lowers)):
            self._check_level(level, parameters, grads)
        return list(map(Row, parameters, uppers, lowers, groups))

    def _check_level(
        self, level: str, parameters: list[Tensor], grads: list[Tensor | None]
    ) -> None:
        """Raise if gradients are lost or sparse; resolve lazy signs and placements in `grads`."""
        present = [g for g in grads if g is not None]
        if not present and self._ranks.alone:
            raise RuntimeError(
                f"the {level} gradients are gone: something set them to None between `with opt.{level}():` and the "
                "step (model.zero_grad(), a copy of the optimizer)"
            )
        if present and {g.layout for g in present} != {torch.strided}:
            pairs = zip(parameters, grads, strict=True)
            shape = next(
                tuple(p.shape)
                for p, g in pairs
                if g is not None and g.layout != torch.strided
            )
            raise TypeError(
                f"a parameter of shape {shape} has a sparse gradient; use sparse=False"
            )
        is_lazy = any(map(Tensor.is_neg, present)) or any(map(Tensor.is_conj, present))
        if is_lazy or self._ranks.is_split:
            pairs = zip(parameters, grads, strict=True)
            grads[:] = [self._resolve(level, p, g) for p, g in pairs]

    def pairs(self, level: str) -> GradientPairs:
        """Return each parameter that has a gradient of a level, with it, placed over the ranks as the parameter is."""
        parameters = self.parameters()
        pairs = []
        for p, grad in zip(parameters, self.of(level, parameters), strict=True):
            if self._ranks.is_split:
                grad = self._resolve(level, p, grad)
            if grad is not None and grad.layout == torch.strided:
                pairs.append((p, grad))
        return pairs

    def _resolve(self, level: str, p: Tensor, grad: Tensor | None) -> Tensor | None:
        """Apply lazy signs, which no kernel sees, and lazy sums over ranks."""
        if grad is None:
            return None
        resolved = grad
        if grad.is_neg() or grad.is_conj():
            resolved = grad.resolve_conj().resolve_neg()
        resolved = redistribute_like(resolved, p)
        if resolved is not grad:
            self.put(level, p, resolved)
        return resolved

    def settle_direction(self) -> None:
        """Point ``.grad`` to the direction, which was written over ∇f, or over ∇g if there is no ∇f."""
        parameters = self.parameters()
        uppers = self.of("upper", parameters)
        if self.owner == "upper" and all(u is not None for u in uppers):
            return
        lowers = self.of("lower", parameters)
        for p, upper, lower in zip(parameters, uppers, lowers, strict=True):
            if upper is None:
                p.grad = lower
            else:
                p.grad = upper

    def stored(self) -> list[Tensor]:
        """Return the gradients that are not in ``.grad``."""
        grads: list[Tensor] = []
        for level, by_parameter in self._stored.items():
            if level != self.owner:
                grads += by_parameter.values()
        return grads

    def show_nonfinite(self) -> None:
        """Let a non-finite stored gradient show in ``.grad``, where a gradient scaler looks for it."""
        stored = [local_tensor(g) for g in self.stored() if is_usable(g)]
        if not stored:
            return
        parameters = self.parameters()
        target = next((p.grad for p in parameters if is_usable(p.grad)), None)
        if target is None:
            # The pieces of this rank have no gradient of the level in .grad: zeros serve as well.
            p = next(
                p for p in parameters if local_tensor(p).numel() and p.requires_grad
            )
            p.grad = target = torch.zeros_like(p)
        target = local_tensor(target)
        # 0 · max|g| is 0, or NaN if a gradient is not finite.
        flag = (0 * max_abs(stored)).to(device=target.device, dtype=target.dtype)
        target[(0,) * target.dim()].add_(flag)
        self.mark()

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a parameter has no .grad, and another id.
        parameters = self.parameters()
        levels = {
            level: list(zip(parameters, self.of(level, parameters), strict=True))
            for level in self._stored
        }
        return self.__dict__ | {"_stored": levels, "_after_block": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        levels = state["_stored"]
        self.__dict__.update(state | {"_stored": {level: {} for level in levels}})
        for level, pairs in levels.items():
            for p, grad in pairs:
                if grad is not None:
                    self.put(level, p, grad)


def is_usable(grad: Tensor | None) -> bool:
    """Whether a gradient is dense and has numbers on this rank."""
    return (
        grad is not None
        and grad.layout == torch.strided
        and local_tensor(grad).numel() > 0
    )


def _refuse_shared_tensors(
    parameters: Sequence[Tensor],
    uppers: Sequence[Tensor | None],
    lowers: Sequence[Tensor | None],
) -> None:
    for p, upper, lower in zip(parameters, uppers, lowers, strict=True):
        if upper is lower and upper is not None:
            raise RuntimeError(
                f"both gradients of a parameter of shape {tuple(p.shape)} are one tensor, as with "
                "DistributedDataParallel(gradient_as_bucket_view=True): leave that at False"
            )
