"""The constants of the paper's assumptions."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from tiebreak.checks import floating

__all__ = ["Constants"]


@dataclass(frozen=True)
class Constants:
    """What the theory needs to know of a problem (Assumptions 1 and 2).

    Parameters
    ----------
    L_f, L_g : float
        Smoothness: how fast ∇f and ∇g change; > 0.
    G_f : float
        A bound on ‖∇f‖; > 0.
    sigma_f, sigma_g : float
        σ² is the *total* variance of one stochastic gradient, E‖∇f_ξ − ∇f‖²: for noise of standard deviation s in each
        of d coordinates, σ = s√d.
    delta_f, delta_g : float
        f(x₀) − inf f and g(x₀) − inf g.

    Examples
    --------
    >>> import tiebreak
    >>> constants = tiebreak.problems.paper().constants
    >>> round(constants.sigma_f**2, 12)  # 0.5² in each of two coordinates
    0.5
    """

    L_f: float
    L_g: float
    G_f: float
    sigma_f: float
    sigma_g: float
    delta_f: float
    delta_g: float

    def __post_init__(self) -> None:
        for item in fields(Constants):
            value = getattr(self, item.name)
            positive = item.name in ("L_f", "L_g", "G_f")
            number = math.nan if isinstance(value, (bool, str)) else floating(value)
            if not math.isfinite(number) or number < 0 or (positive and number == 0):
                raise ValueError(f"{item.name}={value!r} must be finite and {'> 0' if positive else '≥ 0'}")

    @property
    def largest_step_size(self) -> float:
        """1 / (2(L_f + 2L_g)), the theorem's cap on η."""
        return 1 / (2 * (self.L_f + 2 * self.L_g))

    def replace(self, **changes: Any) -> "Constants":
        """These constants with some changed."""
        return replace(self, **changes)
