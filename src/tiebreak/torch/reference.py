"""What the lower loss is compared with, at each step.

Every kind of reference is a subclass of :class:`Reference`. Kinds without a copy of the model are here, and those with a
copy in :mod:`~tiebreak.torch.model_copy`. To add a kind, write a class, and a line in ``REFERENCE_KINDS`` of
:mod:`~tiebreak.torch.arguments` if it has a word of its own.
"""

import bisect
import hashlib
import os
from collections.abc import Callable
from typing import Any

from tiebreak.options import GIVEN, recorded
from tiebreak.torch.backward import Loss, single_loss
from tiebreak.torch.diagnostics import warn_at_caller


class Reference:
    """A reference; subclasses say what they measure at a step, what they do after it, and what they save.

    Attributes
    ----------
    same_batch : bool
        Whether the reference is measured on the batch of the step.
    is_known : bool
        Whether the optimizer finds the reference itself; otherwise the user gives it with each loss.
    needs_model : bool
        Whether the reference is a copy of the model, so that ``model=`` must be given.
    number : float or None
        The reference, if it is one number for the whole run.
    """

    same_batch = True
    is_known = True
    needs_model = False
    number: float | None = None

    def value(self, step: int, loss: Loss) -> Loss:
        """Return the reference of a step; `loss` is what was measured or given on its batch."""
        raise NotImplementedError  # each kind has its own

    def describe(self) -> object:
        """Return what all ranks must agree on: a text, a number, or a function of the step."""
        return str(self)


class GivenReference(Reference):
    """The user gives the reference with each loss."""

    is_known = False

    def value(self, step: int, loss: Loss) -> Loss:
        """Return the loss that was given."""
        if loss is None:
            raise missing_reference()
        return loss

    def __repr__(self) -> str:
        return repr(GIVEN)


def missing_reference(advice: str = "") -> RuntimeError:
    """Return the error about a lower loss without a reference; `advice` is another way to give one."""
    return RuntimeError(
        f"the tolerance needs a reference for this step's lower loss: {advice}`with opt.lower(loss, reference=r):`"
    )


class FunctionReference(Reference):
    """A function of the step.

    Parameters
    ----------
    function : callable
        Returns the reference of a step.
    """

    same_batch = False

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def value(self, step: int, loss: Loss) -> Loss:
        """Return the function's value."""
        return single_loss(f"the reference at step {step}", self.function(step))

    def describe(self) -> object:
        """Return the function, whose values at a few steps are compared."""
        return self.function

    def __repr__(self) -> str:
        return str(self.function)


class NumberReference(Reference):
    """One number for the whole run."""

    same_batch = False

    def __init__(self, number: float) -> None:
        self.number: float = number

    def value(self, step: int, loss: Loss) -> Loss:
        """Return the number."""
        return self.number

    def describe(self) -> object:
        """Return the number."""
        return self.number

    def __repr__(self) -> str:
        return repr(self.number)


class CurveReference(Reference):
    """The column ``lower_loss`` of a CSV log by step: between two recorded steps that of the earlier one.

    Parameters
    ----------
    path : str or path

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.csv"
    >>> _ = path.write_text("step,lower_loss\\n0,2.0\\n10,1.0\\n")
    >>> curve = CurveReference(path)
    >>> curve.value(0, None), curve.value(9, None), curve.value(500, None)
    (2.0, 2.0, 1.0)
    """

    same_batch = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._steps, self._losses = recorded(path)

    def value(self, step: int, loss: Loss) -> Loss:
        """Return the loss of the last recorded step before this one."""
        if step == self._steps[-1] + 1:
            warn_at_caller(
                f"the recorded reference ends at step {step - 1}: from here on its last loss stands for all"
            )
        place = bisect.bisect_right(self._steps, step) - 1
        return self._losses[max(0, place)]

    def describe(self) -> object:
        """Return a digest: a curve may be long."""
        content = repr((self._steps, self._losses)).encode()
        return f"{self}, {hashlib.sha256(content).hexdigest()[:12]}"

    def __repr__(self) -> str:
        return f"a curve of {len(self._steps)} steps"
