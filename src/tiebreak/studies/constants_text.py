"""Constants of a problem and of its noise as a command line writes them."""

from dataclasses import asdict, fields

from tiebreak.problems import paper
from tiebreak.theory import Constants
from tiebreak.theory.reduction import noise_smoothness_of


def constants_from(text: str) -> Constants:
    """The constants in a text: "paper", all seven of them by name, or "paper" and those that differ.

    >>> constants_from("paper,sigma_g=2").sigma_g
    2.0
    >>> constants_from("L_f=1,G_f=1,sigma_f=1,sigma_g=1,delta_f=1,delta_g=1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: constants='L_f=1,...' must set L_f, ..., delta_g, or begin with 'paper'; it does not set L_g
    """
    names = [field.name for field in fields(Constants)]
    legal = f"constants={text!r} must set {', '.join(names)}, or begin with 'paper'"
    of_paper = paper().constants
    assert of_paper is not None
    parts = [part.strip() for part in text.split(",")]
    values: dict[str, float] = {}
    if parts[0] == "paper":
        values = asdict(of_paper)
        del parts[0]
    for part in parts:
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in names:
            raise ValueError(f"{legal}; {part!r} is none of them")
        try:
            values[name] = float(value)
        except ValueError:
            raise ValueError(f"{legal}; {name}={value!r} is no number") from None
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"{legal}; it does not set {', '.join(missing)}")
    return Constants(**values)


def smoothness_from(text: str | None) -> float | tuple[float, float] | None:
    """ℓ in a text: a number for both levels, or two with a comma between them.

    >>> smoothness_from("1"), smoothness_from("0.5,2")
    (1.0, (0.5, 2.0))
    """
    if text is None:
        return None
    try:
        values = [float(word) for word in text.split(",")]
        single = len(values) == 1
        pair = noise_smoothness_of(values[0] if single else tuple(values))
    except ValueError:
        raise ValueError(
            f"noise_smoothness={text!r} must be a number ≥ 0, or two: ℓ_f,ℓ_g"
        ) from None
    if single:
        return values[0]
    return pair
