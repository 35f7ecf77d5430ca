"""An optimizer around another one, with a place for the gradients and losses of each level."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from tiebreak.finishing import Finish
from tiebreak.torch import checkpoint, finishing, packing
from tiebreak.torch.combining import Held
from tiebreak.torch.distributed import Ranks
from tiebreak.torch.gradients import LEVELS, Gradients, usable
from tiebreak.torch.losses import Losses, positive_weight, single
from tiebreak.torch.noise import Noise
from tiebreak.torch.nonfinite import Guard
from tiebreak.torch.reference import Reference
from tiebreak.torch.wrapped import on_itself


class TwoLevels(Optimizer):
    """A base optimizer, and backward passes that belong to the upper level, the lower one or the reference.

    Parameters
    ----------
    base : torch.optim.Optimizer
    target : Reference
        What the lower loss is compared with.
    compares : bool
        Whether it is compared at all: with a tolerance.
    guard : Guard
    ranks : Ranks
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        base: Optimizer,
        target: Reference,
        compares: bool,
        guard: Guard,
        ranks: Ranks,
    ) -> None:
        self.base = base
        Optimizer.__setstate__(self, {"defaults": base.defaults})
        self._warned_capturable_if_run_uncaptured = True
        self.target = target
        self.guard = guard
        self.noise = Noise()
        self.ranks = ranks
        self.gradients, self.losses = Gradients(base, ranks), Losses()
        self.count = 0  # steps tried, those skipped too
        self.asked = False  # whether somebody has asked for a state before there was one, to read another into it
        self._compares, self._active = compares, ""
        self._held: Held | None = None  # between combine() and step()

    # --- being an optimizer: groups, state and learning rates are the base's ---------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # torch has an attribute there
        """The base's parameter groups."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # likewise
        """The base's state, and what is kept for each parameter beside it."""
        return packing.Together(self)  # type: ignore[arg-type]  # the one class of this kind there is

    @on_itself
    def state_dict(self) -> dict[str, Any]:
        """The base's state with this optimizer's own, by parameter and in each group under "tiebreak"."""
        return checkpoint.state_of(self)  # type: ignore[arg-type]  # likewise

    @on_itself
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state; bit for bit on the CPU. A state of another kind is refused before anything is changed."""
        checkpoint.load(self, state_dict)  # type: ignore[arg-type]  # likewise

    def __getstate__(self) -> dict[str, Any]:
        passing = {
            "step",
            "last",
        }  # a scheduler's wrapper belongs to this object, a record to this moment
        kept = {
            k: v
            for k, v in self.__dict__.items()
            if k not in passing and not k.startswith("_optimizer_")
        }
        return kept | {"last": None, "_held": None}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer."""
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients and losses of both levels."""
        self.base.zero_grad(set_to_none)
        self.forget()

    # --- the two levels ----------------------------------------------------------------------------------------------

    def upper(self, loss: Any = None) -> Any:
        """``with opt.upper(): loss_f.backward()``, any number of times before a step; gradients and losses add up."""
        return self._level("upper", loss, None, 1.0)

    def lower(
        self, loss: Any = None, *, reference: Any = None, weight: float = 1.0
    ) -> Any:
        """``with opt.lower(loss_g): loss_g.backward()``; the loss is needed with ``tolerance=`` only.

        Parameters
        ----------
        loss : tensor or float, optional
            The lower loss. A tensor counts as its backward pass weighs it, so ``(loss / n).backward()`` is one
            micro-batch of n; a number is the mean loss of its micro-batch.
        reference : tensor or float, optional
            The reference's loss on the same batch.
        weight : float
            A micro-batch's size or share, where they differ: the look at the noise needs it, and losses as numbers.
        """
        if reference is not None and not self._compares:
            raise ValueError(
                f"reference={reference!r} has no effect without tolerance="
            )
        if reference is not None and self.target.at is not None:
            raise ValueError(
                f"reference={reference!r} is given here and in the constructor: give one of them"
            )
        if reference is not None and loss is None:
            raise ValueError(
                f"reference={reference!r} needs the loss that it is compared with: opt.lower(loss, …)"
            )
        return self._level("lower", loss, reference, weight)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the model is its reference, the twin or the frozen copy: evaluate the batch's lower loss.

        For a twin call backward on it, too; then ``opt.lower(loss, reference=that_loss)``. Parameters, buffers and
        random numbers are as they were afterwards. Closures do all this by themselves. Under ``torch.no_grad()`` it is
        a look at the reference: evaluate it on whatever data you like.
        """
        copy = self.target.copy
        if copy is None:
            raise RuntimeError(
                'opt.reference() is for reference="twin" and reference="start"'
            )
        if self._active:
            raise RuntimeError(
                f"opt.reference() was entered inside opt.{self._active}(); leave one before the other"
            )
        with copy.exchanged(self):
            if copy.twin and torch.is_grad_enabled():
                with self._level("reference", None, None, 1.0):
                    yield
            else:
                yield

    @on_itself
    @contextmanager
    def _level(
        self,
        level: str,
        loss: Any,
        reference: Any,
        weight: Any,
        factor: float | None = None,
    ) -> Iterator[None]:
        if self._active:
            raise RuntimeError(
                f"opt.{level}() was entered inside opt.{self._active}(); leave one level before the other"
            )
        if self._held is not None:
            raise RuntimeError(
                f"opt.{level}() after opt.combine(): opt.step() comes next, or opt.zero_grad()"
            )
        loss = None if loss is None else single(f"the {level} loss", loss)
        reference = (
            None if reference is None else single("the reference loss", reference)
        )
        weight = positive_weight(weight)
        self.gradients.activate(level)
        self._active = level
        try:
            with self.losses.watch(level, loss, reference, weight, factor):
                yield
            self.gradients.finish(level)
        except BaseException:  # half a step is none: the next one begins anew
            self.forget()
            raise
        finally:
            self._active = ""
        if level == "lower" and not self._compares and self.noise.due(self.count):
            pairs = ((p, p.grad) for p in self.gradients.parameters())
            self.noise.add(
                self.ranks.squares(
                    [(p, g) for p, g in pairs if g is not None and usable(g)]
                ),
                weight,
            )
        if self.guard.scaled is not False:
            self.gradients.poison()
            self.gradients.mark()

    @on_itself
    def unscale_(self, scaler: Any) -> None:
        """Like ``scaler.unscale_(opt)``, for the gradients of both levels; after both blocks, before the step."""
        if self._active or not set(LEVELS) <= self.gradients.seen:
            raise RuntimeError(
                "opt.unscale_(scaler) belongs after both blocks, `with opt.lower():` and `with opt.upper():`"
            )
        self.guard.unscale(self, scaler)
        self.gradients.mark()

    @on_itself
    def finish(
        self,
        *,
        lower: Callable[[], Any],
        upper: Callable[[], Any] | None = None,
        anchor: Any = None,
        model: Any = None,
        steps: Iterable[Any] | None = None,
    ) -> Finish:
        """After the last step: move the model to where the tolerance is kept, and used, on the line from its reference.

        A model that is outside its tolerance goes back towards the reference until it is inside. One that is inside
        goes on, away from it, as long as the upper loss falls, or back, if it falls there instead. It takes some eight
        evaluations of both losses, 25 at most: no gradients, and one more copy of the parameters meanwhile.

        Parameters
        ----------
        lower, upper : callable
            Each returns its loss over as much data as the promise is made for: one number, or the losses of batches
            (a list, or a generator: ``lambda: (fit(model, batch) for batch in loader)``), of which the mean is taken.
            Without `upper` a model that is inside stays where it is. The model's mode (``train()``, ``eval()``) is
            yours, and the one in which the reference was measured; random numbers are the same at every place.
        anchor : Module or state_dict, or a list of them, optional
            For a reference that has no copy of its own, a number say: a model that is inside, such as the one that
            reached the number. As many as there are modules in `model`.
        model : Module or list of Modules, optional
            With `anchor`, the model that was trained, unless the optimizer was made with ``model=``.
        steps : iterable of losses, optional
            If training left the model outside its tolerance, the base first steps on the lower loss alone, once for
            each of these losses of a batch. They must be made one after another: ``(fit(model, batch) for batch in
            batches)``. Set the learning rate before: a tenth of the highest, falling to 0, over a twentieth of the
            training, did well where the reference is a number.

        Returns
        -------
        Finish
            Where on the line, both losses there, and before. ``print`` tells it in a sentence.

        Examples
        --------
        >>> import torch
        >>> from tiebreak.torch import DynamicBarrier
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)
        >>> inputs = torch.tensor([[1.0, -1.0]])
        >>> g, f = (lambda: model(inputs).square().sum()), (lambda: model.weight.square().sum())
        >>> for _ in range(100):
        ...     _ = opt.step(lower=g, upper=f)
        >>> opt.finish(lower=g, upper=f).excess <= 1
        True
        """
        return finishing.finish(self, lower, upper, anchor, model, steps)  # type: ignore[arg-type]  # likewise

    @on_itself
    def forget(self) -> None:
        """What was accumulated for this step does not count: it is over, or belongs to another point."""
        self.gradients.clear()
        self.noise.begin()
        self.losses.clear()
        self._held = None
