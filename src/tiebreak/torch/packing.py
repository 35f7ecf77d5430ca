"""What an optimizer keeps beside its base's state, in the two places that every checkpoint carries along.

``torch.distributed.checkpoint`` takes of an optimizer the state of each parameter, resharded with it, and the options
of each group, and nothing else. So what belongs to a parameter (a twin's value and its optimizer's state, an average)
stands in that parameter's state, under names that begin with "tiebreak"; the numbers of the whole optimizer stand in
every group, as one text in JSON: such a checkpoint loads by key, and a text is one key whatever is in it.
"""

import base64
import json
from collections import ChainMap
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


KEY = "tiebreak"  # of a group's text and of a parameter's flags; the beginning of every name
KINDS = (
    "copy",
    "base",
    "upper",
    "lower",
)  # what there may be for a parameter, in the order of the flags

#: What is kept for one parameter: by kind, values by name.
Kept = dict[str, dict[str, Any]]


def entries(opt: "DynamicBarrier", parameters: list[Tensor]) -> list[dict[str, Any]]:
    """What is kept for each parameter, under the names of a state.

    A checkpoint is read into the state of an optimizer that has not begun. Hence all parameters that are trained have
    the same entries: where there is nothing yet stand zeros, and the flags say so.
    """
    kept = [
        opt.estimates.kept(p)
        | ({} if opt.target.copy is None else opt.target.copy.kept(p))
        for p in parameters
    ]
    if not opt.asked and not any(kept):
        return [{} for _ in parameters]
    return [
        _named(mine, blank(opt, p) if p.requires_grad else {})
        for p, mine in zip(parameters, kept, strict=True)
    ]


def blank(opt: "DynamicBarrier", p: Tensor) -> Kept:
    """Places for everything that may be kept for a parameter."""
    copy = opt.target.copy
    return opt.estimates.blank(p) | (
        {} if copy is None else copy.blank(p, opt.base.state.get(p, {}))
    )


def _named(kept: Kept, blank: Kept) -> dict[str, Any]:
    all_of_it = blank | kept
    if not all_of_it:
        return {}
    flags = sum(1 << KINDS.index(kind) for kind in kept)
    named = {
        f"{KEY}_{kind}_{name}": value
        for kind, values in all_of_it.items()
        for name, value in values.items()
    }
    return {KEY: flags} | named


class Parts(NamedTuple):
    """The state of one parameter: the base's, and the optimizer's own."""

    base: dict[str, Any]
    own: Kept


def split(state: dict[str, Any]) -> Parts:
    """Divide the state of one parameter; zeros that only kept a place are left out."""
    theirs = {name: value for name, value in state.items() if not _ours(name)}
    try:
        flags = int(state.get(KEY, 0))
    except (ValueError, OverflowError):
        raise ValueError(
            f"the flags {KEY!r} of a parameter are {state[KEY]!r}; they must be a whole number"
        ) from None
    kept: Kept = {}
    for number, kind in enumerate(KINDS):
        if flags >> number & 1:
            begin = f"{KEY}_{kind}_"
            kept[kind] = {
                name.removeprefix(begin): v
                for name, v in state.items()
                if str(name).startswith(begin)
            }
    return Parts(theirs, kept)


def _ours(name: Any) -> bool:
    return isinstance(name, str) and (name == KEY or name.startswith(f"{KEY}_"))


class Together(MutableMapping[Any, Any]):
    """The base's state and ours, by parameter; what is written goes to the base's, ours is read only.

    It counts as true, empty or not, as soon as there is nothing left to begin: an optimizer without any state is not to
    be asked for one at every checkpoint.
    """

    def __init__(self, opt: "DynamicBarrier") -> None:
        parameters = list(opt.gradients.parameters())
        named = zip(parameters, entries(opt, parameters), strict=True)
        self._base, self._own = opt.base.state, {p: mine for p, mine in named if mine}
        self._begun = bool(opt.asked or opt.count)

    def __getitem__(self, p: Any) -> Any:
        return (
            ChainMap(self._base[p], self._own[p]) if p in self._own else self._base[p]
        )

    def __setitem__(self, p: Any, state: Any) -> None:
        self._base[p] = {
            name: value for name, value in state.items() if not _ours(name)
        }

    def __delitem__(self, p: Any) -> None:
        del self._base[p]

    def __iter__(self) -> Iterator[Any]:
        yield from self._base
        yield from (p for p in self._own if p not in self._base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return self._begun or len(self) > 0


# --- a group's text ---------------------------------------------------------------------------------------------------


def text(values: dict[str, Any]) -> str:
    """As JSON, exact: Python writes a float so that it reads the same one."""
    return json.dumps(values, separators=(",", ":"))


def as_numbers(what: str, values: dict[str, Any]) -> dict[str, Any]:
    """Values that JSON takes, a tensor of one element as its number; anything else is refused by name."""
    found = {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in values.items()
    }
    for name, value in found.items():
        try:
            json.dumps(value)
        except TypeError:
            raise TypeError(
                f"{what} has {name}={value!r}, which cannot be saved: it must be a number, a word, or a list of them"
            ) from None
    return found


def written_tensor(tensor: Tensor) -> list[Any]:
    """A small tensor as text: its dtype, its shape and its bytes."""
    held = tensor.detach().cpu().contiguous()
    data = held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b""
    return [
        str(held.dtype).removeprefix("torch."),
        list(held.shape),
        base64.b64encode(data).decode("ascii"),
    ]


def read_tensor(written: list[Any]) -> Tensor:
    """What `written_tensor` wrote.

    Examples
    --------
    >>> read_tensor(written_tensor(torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16)))
    tensor([[1.5000, 2.5000]], dtype=torch.bfloat16)
    """
    dtype, shape, data = (
        getattr(torch, written[0]),
        written[1],
        base64.b64decode(written[2]),
    )
    if not data:
        return torch.zeros(shape, dtype=dtype)
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)
    )
