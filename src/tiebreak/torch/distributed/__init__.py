"""What the ranks of a parallel run tell each other: one sum of a handful of floats a step.

Every rank makes the inner products of the pieces that it holds, and one all-reduce adds them up together with the
losses, the scaler's finding and what else the decision needs. So λ and every decision to skip are those of one process
with the whole batch, on every rank alike. Some of the floats are 0 where ranks that should hold the same do.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tiebreak.torch.context import cannot_repeat, capturing
from tiebreak.torch.distributed.consistency import compare_settings, folded, share_out
from tiebreak.torch.distributed.layout import (
    Layout,
    Wrappers,
    covered,
    flattened,
    held,
    is_dtensor,
    layout,
    local,
    placed,
    wrappers,
)
from tiebreak.torch.distributed.message import NAMES, Measured, Message, Shares, refuse
from tiebreak.torch.distributed.replicas import each, looks
from tiebreak.torch.host_copy import Later, on_host
from tiebreak.torch.kernels.foreach import Row, accumulation_dtype, squared_norm

_HELD = (
    "FSDP keeps the gradients of a pass without synchronisation to itself, and those of the next level would be added "
    "to them: do all micro-batches of one level, the last of them with set_requires_gradient_sync(True) or outside "
    "no_sync(), then those of the other"
)


class Ranks:
    """The other ranks, and what of the parameters they hold.

    Parameters
    ----------
    group : ProcessGroup, None or False
        The ranks that take part in a step; None to find them, False where this process trains alone.
    sharded : iterable of parameters, bool or mapping, optional
        Parameters of which every rank has others.
    modules : sequence of Module
        The model, with its wrappers.
    """

    def __init__(
        self, group: Any, sharded: Any, modules: Sequence[nn.Module] = ()
    ) -> None:
        if (
            group is not None
            and group is not False
            and not isinstance(group, dist.ProcessGroup)
        ):
            raise TypeError(
                f"process_group={group!r} must be a torch.distributed group, None or False"
            )
        if group is False and sharded:
            raise ValueError("sharded=… has no effect with process_group=False")
        self.given = group
        self.sharded = _named(sharded)
        self.modules = modules
        self._forget()

    def _forget(self) -> None:
        self._ids: list[int] = []
        self.layout, self.around = Layout(None, [], {}), Wrappers([], [], [])
        self._shares: Shares | None = None
        self._compared = False
        self._begun = 0
        self._sizes: Tensor | None = None  # ‖∇f‖² and ‖∇g‖² of the last step
        self.loaded = 0.0  # the numbers of the last state that was loaded, folded
        self.cut = False
        self.anew = frozenset[
            Tensor
        ]()  # parameters whose wrapper must find no gradient of an earlier block
        self._later: Later | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given, "sharded": self.sharded, "modules": self.modules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        modules = copy.deepcopy(self.modules, memo)
        if isinstance(self.sharded, Mapping):  # by group, and a group cannot be copied
            sharded = {
                group: copy.deepcopy(parameters, memo)
                for group, parameters in self.sharded.items()
            }
            return Ranks(self.given, sharded, modules)
        return Ranks(self.given, copy.deepcopy(self.sharded, memo), modules)

    # --- how the parameters lie --------------------------------------------------------------------------------------

    def look(self, parameters: Sequence[Tensor]) -> None:
        """See how they lie over the ranks, where that is not known yet."""
        ids = list(map(id, parameters))
        if ids == self._ids:
            return
        self.around = wrappers(() if self.given is False else self.modules)
        if self.given is not False:
            covered(parameters, self.modules, self.around)
        self.layout = layout(parameters, self.given, self.sharded, self.around)
        self._ids, self._shares, self._compared = ids, None, False
        self.cut = any(map(is_dtensor, parameters)) or len(self.layout.kinds) > 1
        self.anew = flattened(parameters, self.around)

    def between(self) -> None:
        """Another level or the step begins: no wrapper may still keep gradients of the level before to itself."""
        if held(self.around):
            raise RuntimeError(_HELD)

    @property
    def mute(self) -> bool:
        """Whether the versions of gradients say nothing of what was done to them."""
        return not self.alone and (self.cut or bool(self.anew))

    @property
    def alone(self) -> bool:
        """Whether there is nobody to ask."""
        return self.layout.group is None

    def divided(self, rows: Sequence[Row]) -> tuple[Sequence[Row], int]:
        """The rows with this rank's pieces, kind by kind, and the number of kinds."""
        if not self.cut:
            return rows, 1
        kinds: list[list[Row]] = [[] for _ in self.layout.kinds]
        for p, u, g, _, group in rows:
            kind = self.layout.of[p]
            kinds[kind].append(Row(local(p), local(u), local(g), kind, group))
        return [row for mine in kinds for row in mine], len(kinds)

    def squares(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Σ‖gradient‖² of the pieces here, of pairs of a parameter and its gradient; by kind, where there are ranks."""
        if self.alone:
            return squared_norm([local(grad) for _, grad in pairs])
        of, kinds = self.layout.of, len(self.layout.kinds)
        pairs = [(p, placed(grad, p)) for p, grad in pairs]
        home = next((local(grad).device for _, grad in pairs), torch.device("cpu"))
        by_kind = (
            squared_norm([local(grad) for p, grad in pairs if of[p] == kind])
            for kind in range(kinds)
        )
        return torch.stack(
            [square.to(home, accumulation_dtype(home)) for square in by_kind]
        )

    # --- one sum -----------------------------------------------------------------------------------------------------

    def compare(self, opt: Any) -> None:
        """Compare the settings, once: where closures are called before the first of them, which may wait for others."""
        self.look(opt.gradients.parameters())
        if not self.alone and not self._compared:
            compare_settings(opt, self.layout.group)
            self._compared = True

    def together(
        self, opt: Any, measured: Measured, inverse_scale: Tensor | None, waits: bool
    ) -> Measured:
        """What all ranks measured, from what each did; on the host if it `waits` for it."""
        if self.alone:
            measured = measured.of_one_rank()
            return measured.waited(opt.guard) if waits else measured
        self.between()
        if any(module._join_config.enable for module in self.around.ddp):
            raise RuntimeError(
                "DistributedDataParallel.join() does not know of the optimizer's sums over the ranks: give every rank "
                "as many batches, as DistributedSampler does"
            )
        group, home = self.layout.group, measured.own.device
        if capturing(home):
            cannot_repeat(
                "with several ranks some of them come from the host: capture the passes, not the step"
            )
        try:
            if self._shares is None:
                self.compare(opt)
                self._begun, self._sizes = opt.count, None
                self._shares = share_out(opt, self.layout, measured)
            noise = (
                None
                if opt.decision.tolerance is not None
                else opt.noise.sums(len(self.layout.kinds), measured.own)
            )
            levels = opt.gradients
            forgot = not levels.seen.issuperset(NAMES[:2])
            # What this rank alone knows must not be stepped with, where the others hear of it one step later.
            spoiled = opt.guard.looks and (forgot or levels.faulty)
            message = Message(
                shares=self._shares,
                measured=measured,
                noise=noise,
                present=levels.present(),
                forgot=forgot,
                spoiled=spoiled,
                each=self._each(levels, opt.count, inverse_scale),
                touched=levels.touched,
                count=opt.count,
                fingerprint=self._fingerprint(opt),
                found=opt.guard.found_inf,
                inverse_scale=inverse_scale,
            )
            vector = message.vector()
            there = vector.to(_reachable(group, home))
            dist.all_reduce(there, group=group)
            vector = there.to(home)
            vector = opt.guard.wait(vector) if waits else vector
            found, noise, bad, doubts = message.read(vector)
            if on_host(doubts):
                refuse(doubts.tolist())
        except BaseException:  # half a step is none: the next one begins anew
            opt.forget()
            raise
        if not on_host(doubts):
            self._later = Later(doubts)
        opt.guard.found_inf = bad
        self._sizes = found.own[[2, 1]]
        if noise is not None:
            opt.noise.take(noise)
        return found

    def _each(
        self, levels: Any, count: int, inverse_scale: Tensor | None
    ) -> Tensor | None:
        replicas = [
            p
            for p, kind in self.layout.of.items()
            if self.layout.kinds[kind].name == ("replica",)
        ]
        if not replicas or self._sizes is None or not looks(count - self._begun):
            return None
        return each(
            [levels.of(level, replicas) for level in NAMES[:2]],
            self._sizes,
            inverse_scale,
        )

    def _fingerprint(self, opt: Any) -> float:
        """What may change on a rank between two steps and enters the multiplier, as far as the host knows it."""
        given, shares = opt.decision.tolerance, self._shares
        changing = [] if given is None else [given.amount, given.relative]
        rate = opt.param_groups[0].get("lr", 0.0)
        if (
            shares is not None and shares.alike and isinstance(rate, Real)
        ):  # stages may have rates of their own
            changing.append(rate)
        return folded([self.loaded, *changing])

    def mean(self, numbers: Sequence[float], home: torch.device) -> list[float]:
        """The means over the ranks, the same on all of them."""
        if self.alone:
            return list(numbers)
        group = self.layout.group
        there = torch.tensor(
            numbers, dtype=torch.float32 if home.type == "mps" else torch.float64
        )
        there = there.to(_reachable(group, home))
        dist.all_reduce(there, group=group)
        return [number / dist.get_world_size(group) for number in there.tolist()]

    def settle(self, opt: Any) -> None:
        """What the device said of the last step: all ranks hear it at the same step, and none waits for long."""
        later, self._later = self._later, None
        if later is not None:
            try:
                refuse([bool(doubt) for doubt in later.read()], late=True)
            except RuntimeError:
                opt.forget()
                raise


def _reachable(group: Any, home: torch.device) -> torch.device:
    """The device whose tensors this group can add up: parameters may wait in the host's memory."""
    known = [
        part.partition(":")[0] for part in dist.get_backend_config(group).split(",")
    ]
    if home.type in known:
        return home
    return (
        torch.device("cuda", torch.cuda.current_device())
        if known[0] == "cuda"
        else torch.device(known[0])
    )


def _named(sharded: Any) -> Any:
    """The parameters that every rank has others of, as the user named them."""
    if sharded is None or isinstance(sharded, bool):
        return sharded
    if isinstance(sharded, Mapping):
        fine = all(
            group is None or isinstance(group, dist.ProcessGroup) for group in sharded
        )
        return (
            {group: _named(kept) for group, kept in sharded.items()}
            if fine
            else _named([None])
        )
    found = (
        list(sharded)
        if isinstance(sharded, Iterable) and not isinstance(sharded, (str, Tensor))
        else [None]
    )
    if not all(isinstance(p, Tensor) for p in found):
        raise TypeError(
            f"sharded={sharded!r} must be True, parameters, or a mapping of process groups to these"
        )
    return found
