"""Loggers people have: wandb, trackio, TensorBoard, MLflow, and whatever looks like one of them, by one hook."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tiebreak.torch.logs import Row, StepLog


class Log(StepLog):
    """Writes what each step did to the logger that you have: ``opt.register_step_post_hook(Log(wandb.init()))``.

    Names are ``tiebreak/multiplier``, ``tiebreak/gg``, … by :class:`Step`. A number that is not there is left out: a
    loss that was not told, all of a step that was skipped.

    Parameters
    ----------
    logger : object
        A run of wandb, the module ``trackio``, a SummaryWriter, the module ``mlflow`` or a Lightning logger: anything
        with ``log(dict)``, ``add_scalar(tag, value, step)`` or ``log_metrics(dict, step=…)``. It stays yours to close.
    every : int
        Steps 0, `every`, 2·`every`, … are written, and each one that was skipped. None waits for the device.
    prefix : str
        Before every name.
    numbered : bool
        Whether ``log`` gets ``step=``, the optimizer's count. wandb drops what comes with a smaller step than what it
        has already: numbers from a GPU come a step late, so where you log each step with a number of your own say
        False, and take ``tiebreak/step`` for the axis; it is always among the numbers.

    Examples
    --------
    >>> import torch, tiebreak
    >>> from tiebreak.torch import DynamicBarrier
    >>> class Run:
    ...     def log(self, data, step=None):
    ...         print(step, data["tiebreak/multiplier"], data["tiebreak/lower_loss"])
    >>> x = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    >>> method = tiebreak.methods.sdbgd.replace(barrier=1.0, regularizer=0.0)
    >>> opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), method=method)
    >>> handle = opt.register_step_post_hook(Log(Run()))
    >>> info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    0 0.75 4.0
    """

    def __init__(
        self,
        logger: Any,
        every: int = 10,
        prefix: str = "tiebreak/",
        *,
        numbered: bool = True,
    ) -> None:
        if not isinstance(prefix, str):
            raise TypeError(f"prefix={prefix!r} must be a string")
        send = _sender(logger, prefix, numbered)

        def write(k: int, row: Row) -> None:
            send(
                {
                    f"{prefix}{name}": float(value)
                    for name, value in row.items()
                    if value is not None
                },
                k,
            )

        super().__init__(every, write, lambda: None)
        self.logger = logger
        self.prefix = prefix

    def close(self) -> None:
        """End the log; the logger is flushed, if it can be, not closed."""
        super().close()
        if callable(flush := getattr(self.logger, "flush", None)):
            flush()


def _sender(
    logger: Any, prefix: str, numbered: bool
) -> Callable[[dict[str, float], int], Any]:
    """Return a function that sends numbers by name and their step to the logger; the most particular method first."""

    def has(name: str) -> bool:
        return callable(getattr(logger, name, None))

    if has("add_scalar"):
        return partial(_add_scalars, logger)
    if has("log_metrics"):
        return lambda numbers, k: logger.log_metrics(numbers, step=k)
    if has("log"):
        if numbered:
            return lambda numbers, k: logger.log(numbers | {f"{prefix}step": k}, step=k)
        return lambda numbers, k: logger.log(numbers | {f"{prefix}step": k})
    raise TypeError(
        f"logger={logger!r} must have log(dict) (wandb, trackio), add_scalar(tag, value, step) (TensorBoard) or "
        "log_metrics(dict, step=…) (MLflow, Lightning's loggers)"
    )


def _add_scalars(writer: Any, numbers: dict[str, float], k: int) -> None:
    for name, value in numbers.items():
        writer.add_scalar(name, value, k)
