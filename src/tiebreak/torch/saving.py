"""The state of an optimizer: saved whole, and checked before anything is replaced by it."""

from typing import TYPE_CHECKING, Any

from tiebreak.torch.context import copied, store

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier

__all__ = ["load", "state_of"]


def state_of(opt: "DynamicBarrier") -> dict[str, Any]:
    """The base's state, and the optimizer's own under "barrier"."""
    for before in opt._optimizer_state_dict_pre_hooks.values():
        before(opt)
    own: dict[str, Any] = {"count": opt.count, "estimates": opt.estimates.state_dict(opt.gradients)}
    own |= {"noise": copied(opt.noise.state), "memory": opt.memory.state_dict()}
    if (given := opt.decision.tolerance) is not None:
        own["tolerance"] = (given.amount, given.relative)
    if opt.target.copy is not None:
        opt.target.copy.catch_up(opt)
        numbers = {p: i for i, p in enumerate(opt.gradients.parameters())}
        own["copy"] = opt.target.copy.state_dict(numbers)
    state: dict[str, Any] = {**opt.base.state_dict(), "barrier": own}
    for after in opt._optimizer_state_dict_post_hooks.values():
        state = after(opt, state) or state
    return state


def load(opt: "DynamicBarrier", state: dict[str, Any]) -> None:
    """Take up a state; one of another kind is refused before anything is changed."""
    for before in opt._optimizer_load_state_dict_pre_hooks.values():
        state = before(opt, state) or state
    if "barrier" not in state:
        raise ValueError("this state was saved by another optimizer: it has no 'barrier' (load it into `base` instead)")
    own, copy = state["barrier"], opt.target.copy
    opt.estimates.check(own["estimates"])
    opt.memory.check(own["memory"])
    if (copy is None) != ("copy" not in own) or (copy is not None and own["copy"]["twin"] != copy.twin):
        raise ValueError('the state was saved with another reference=: "twin", "start", or neither')
    opt.base.load_state_dict({name: value for name, value in state.items() if name != "barrier"})
    opt.count = own["count"]
    opt.estimates.load_state_dict(own["estimates"], opt.gradients)
    opt.memory.load_state_dict(own["memory"])
    for name, value in own["noise"].items():
        there = opt.noise.state[name]
        store(opt.noise.state, name, value if there is None or value is None else value.to(there))
    if "tolerance" in own:
        opt.allow(*own["tolerance"])
    if copy is not None:
        copy.load_state_dict(own["copy"], opt)
    opt.forget()
    for after in opt._optimizer_load_state_dict_post_hooks.values():
        after(opt)
