"""The units of a problem, in which every method runs as published.

The published constants are for the paper's problem, which has L_f = L_g = G_f = 1. Every problem has these in units of
its own: lengths in G_f/L_f, values of f in G_f²/L_f, values of g in L_g (G_f/L_f)². There a method runs as published;
translated back, its laws are multiplied by the powers of the constants in :class:`Units`, the same for all methods.
"""

from dataclasses import dataclass, replace

from tiebreak.methods import Method
from tiebreak.problems import Problem
from tiebreak.schedules import Law, Power


@dataclass(frozen=True)
class Units:
    """The factors between a problem's own units and the paper's; all ones if its constants are not known.

    Examples
    --------
    >>> from tiebreak.problems import named
    >>> Units.of(named("paper"))
    Units(step_size=1.0, barrier=1.0, length=1.0, upper_value=1.0, direction_squared=1.0, lower_gradient_squared=1.0)
    """

    step_size: float = 1.0
    barrier: float = 1.0
    length: float = 1.0
    upper_value: float = 1.0
    direction_squared: float = 1.0
    lower_gradient_squared: float = 1.0

    @classmethod
    def of(cls, problem: Problem) -> "Units":
        """The units of a problem: a length is G_f/L_f, and so on."""
        c = problem.constants
        if c is None:
            return cls()
        return cls(
            step_size=1 / c.L_f,
            barrier=c.L_f / c.L_g,
            length=c.G_f / c.L_f,
            upper_value=c.G_f**2 / c.L_f,
            direction_squared=float(c.G_f) ** 2,
            lower_gradient_squared=(c.G_f * c.L_g / c.L_f) ** 2,
        )

    def translated(self, method: Method, scale: float = 1.0) -> Method:
        """The method with its laws in these units, and its step size times a scale; momentum and batches have none."""
        factors = {
            "step_size": scale * self.step_size,
            "barrier": self.barrier,
            "regularizer": self.lower_gradient_squared,
            "penalty": 1 / self.lower_gradient_squared,
        }
        changed = {}
        for name, factor in factors.items():
            law = getattr(method.schedule, name)
            if law is not None and factor != 1:
                changed[name] = _times(law, factor)
        if changed:
            return method.replace(**changed)
        return method


def _times(law: Law, factor: float) -> Law:
    if isinstance(law, Power):
        return replace(law, constant=factor * law.constant)
    return lambda k: factor * law(k)
