"""Every method of the gallery, in the order of its tables. The same code for every example."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gallery.example import Example, OwnMethod
from gallery.methods import ours, peers, plain, projections
from gallery.methods.method import Method
from tiebreak.checks import one_of

__all__ = ["METHODS", "AnyMethod", "chosen"]

AnyMethod: TypeAlias = Method | OwnMethod

METHODS: Mapping[str, Method] = {
    "lower-only": plain.LOWER_ONLY,
    "upper-only": plain.UPPER_ONLY,
    "weighted-sum": plain.WEIGHTED_SUM,
    "fixed-penalty": plain.FIXED_PENALTY,
    "dual-ascent": peers.DUAL_ASCENT,
    "nupi": peers.NUPI,
    "pdu": peers.PDU,
    "pcd": peers.PCD,
    "upgrad": peers.UPGRAD,
    "pcgrad": projections.PCGRAD,
    "bloop": projections.BLOOP,
    "blur": projections.BLUR,
    "barrier": ours.BARRIER,
    "tolerance-twin": ours.TOLERANCE_TWIN,
    "tolerance-start": ours.TOLERANCE_START,
    "tolerance-trained": ours.TOLERANCE_TRAINED,
    "tolerance-number": ours.TOLERANCE_NUMBER,
}


def chosen(names: Sequence[str], example: Example) -> dict[str, AnyMethod]:
    """The methods of these names, the example's own among them; all that fit its reference, if none is named.

    Lower-only training is always there: it is what the others are judged by.
    """
    own: dict[str, AnyMethod] = {method.name: method for method in example.methods}
    clash = [name for name in own if name in METHODS]
    if clash or len(own) < len(example.methods):
        raise ValueError(
            f"methods of {example.name!r}: {', '.join(clash) or 'two of them'} must have another name; taken are "
            f"{', '.join(METHODS)}"
        )
    legal: dict[str, AnyMethod] = {
        n: m for n, m in METHODS.items() if m.only in (None, example.reference)
    }
    legal |= own
    for name in names:
        if name in METHODS and name not in legal:
            only = METHODS[name].only
            ours = ", ".join(n for n in legal if n.startswith("tolerance-"))
            text = f"method={name!r} is for examples whose reference is {only!r}, not {example.reference!r}"
            raise ValueError(f"{text}: ours has {ours} there")
        one_of("method", name, tuple(legal))
    wanted = {"lower-only", *(names or legal)}
    return {name: method for name, method in legal.items() if name in wanted}
