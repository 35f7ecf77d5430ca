"""``torch.distributed.checkpoint``: nothing of the state is lost, and training goes on as if never stopped."""

import copy
import json
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from examples import two_base_optimizers
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from tiebreak.torch import CSVLog, DynamicBarrier
from tiebreak.torch.checkpoint import KEY
from training import simple_method

CASES = {
    "rule": {"method": simple_method(regularizer=1e-3)},
    "average": {"method": simple_method(estimator="average")},
    "number": {"tolerance": 0.05, "reference": 0.3},
    "start": {"tolerance": 0.05, "reference": "start"},
    "twin": {"tolerance": "5%", "reference": "twin"},
}
BASES = {
    "plain": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.02),
}


def network(seed=0):
    torch.manual_seed(seed)
    layers = [
        torch.nn.Linear(5, 7),
        torch.nn.BatchNorm1d(7),
        torch.nn.Tanh(),
        torch.nn.Linear(7, 3),
    ]
    return torch.nn.Sequential(*layers).double()


def data(steps=8):
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(12, n, generator=generator).double() for n in (5, 3)]
        for _ in range(steps)
    ]


def made(case, base, seed=0, groups=False):
    model = network(seed)
    first, rest = list(model.parameters())[:2], list(model.parameters())[2:]
    params = (
        [{"params": first}, {"params": rest, "lr": 0.03}]
        if groups
        else model.parameters()
    )
    return model, DynamicBarrier(BASES[base](params), model=model, **CASES[case])


def train(model, opt, batches):
    for x, y in batches:
        opt.step(
            lower=lambda x=x, y=y: (model(x) - y).square().mean(),
            upper=lambda x=x: model(x).abs().mean(),
        )
    return model, opt


def everything(model):
    return torch.cat(
        [value.detach().double().reshape(-1) for value in model.state_dict().values()]
    )


def save(folder, model, opt, **options):
    state = get_state_dict(model, opt, options=StateDictOptions(**options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save(dict(zip(("model", "opt"), state, strict=True)), checkpoint_id=folder)


def restore(folder, model, opt, **options):
    chosen = StateDictOptions(**options)
    state = dict(
        zip(("model", "opt"), get_state_dict(model, opt, options=chosen), strict=True)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model,
        opt,
        model_state_dict=state["model"],
        optim_state_dict=state["opt"],
        options=chosen,
    )
    return model, opt


@pytest.mark.parametrize(
    ("case", "base", "flat"),
    [
        ("rule", "plain", True),
        ("rule", "adamw", False),
        ("average", "momentum", False),
        ("average", "adamw", True),
        ("number", "plain", False),
        ("start", "plain", True),
        ("start", "momentum", False),
        ("twin", "plain", False),
        ("twin", "momentum", True),
        ("twin", "adamw", False),
        ("twin", "adamw", True),
    ],
)
def test_resumed_from_a_distributed_checkpoint(case, base, flat, tmp_path):
    """Bit for bit, two groups, into an optimizer that has not begun; and again, from the resumed one."""
    batches, options = data(), {"flatten_optimizer_state_dict": flat}
    whole, opt = train(*made(case, base, groups=True), batches)
    model, again = train(*made(case, base, groups=True), batches[:3])
    for at, until in ((3, 5), (5, 8)):
        save(tmp_path / f"{at}", model, again, **options)
        model, again = restore(
            tmp_path / f"{at}", *made(case, base, 10 + at, groups=True), **options
        )
        assert again.count == at
        train(model, again, batches[at:until])
    assert torch.equal(everything(model), everything(whole))
    assert torch.equal(again.last.multiplier, opt.last.multiplier)
    if opt.last.excess is not None:
        assert torch.equal(again.last.excess, opt.last.excess)


@pytest.mark.parametrize(
    "options",
    [{"full_state_dict": True}, {"full_state_dict": True, "cpu_offload": True}],
)
def test_a_full_state_dict_in_one_file(options, tmp_path):
    batches = data()
    whole, _ = train(*made("twin", "adamw"), batches)
    half = train(*made("twin", "adamw"), batches[:3])
    state = get_state_dict(*half, options=StateDictOptions(**options))
    torch.save(state, tmp_path / "state.pt")
    one, two = torch.load(tmp_path / "state.pt", weights_only=True)
    fresh = made("twin", "adamw", 9)
    set_state_dict(*fresh, model_state_dict=one, optim_state_dict=two)
    train(*fresh, batches[3:])
    assert torch.equal(everything(fresh[0]), everything(whole))


def test_saving_in_the_background(tmp_path):
    """What is written is the state when it was asked for, whatever the training does meanwhile."""
    batches = data()
    whole, _ = train(*made("twin", "adamw"), batches)
    model, opt = train(*made("twin", "adamw"), batches[:3])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        state = dict(zip(("model", "opt"), get_state_dict(model, opt), strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch about its own way of copying
            writing = dcp.async_save(state, checkpoint_id=tmp_path / "3")
        train(model, opt, batches[3:])
        writing.result()
    finally:
        torch.distributed.destroy_process_group()
    fresh = restore(tmp_path / "3", *made("twin", "adamw", 9))
    train(*fresh, batches[3:])
    assert torch.equal(everything(fresh[0]), everything(whole))


@pytest.mark.parametrize("case", CASES)
def test_asking_for_a_state_before_there_is_one_begins_nothing(case):
    """get_state_dict takes a step of its own on a fresh optimizer; the model that is loaded after it is the start."""
    batches = data()
    expected, opt = train(*made(case, "plain"), batches)
    model, again = made(case, "plain", 9)
    get_state_dict(model, again)
    assert again.count == 0
    model.load_state_dict(network().state_dict())
    train(model, again, batches)
    assert torch.equal(everything(model), everything(expected))
    assert torch.equal(again.last.multiplier, opt.last.multiplier)


def test_a_step_without_backward_passes_stays_an_error():
    model, opt = made("rule", "plain")
    with pytest.raises(RuntimeError, match="no upper gradients"):
        opt.step()
    opt.param_groups[0]["lr"] = 0.0  # as a warm-up begins
    with pytest.raises(RuntimeError, match="no upper gradients"):
        opt.step()
    model(data()[0][0]).sum().backward()
    with pytest.raises(RuntimeError, match="no upper gradients"):
        opt.step()


def test_a_log_has_no_line_for_a_checkpoint(tmp_path):
    model, opt = made("rule", "plain")
    with CSVLog(tmp_path / "log.csv") as log:
        opt.register_step_post_hook(log)
        get_state_dict(model, opt)
        for batch in data(3):
            train(model, opt, [batch])
            opt.zero_grad()
            get_state_dict(model, opt)
    assert len((tmp_path / "log.csv").read_text().split()) == 1 + 3


def test_what_is_missing_is_said():
    model, opt = train(*made("twin", "adamw"), data(2))
    states = get_state_dict(model, opt)

    def loaded(state, case="twin"):
        fresh = made(case, "adamw", 9)
        set_state_dict(*fresh, model_state_dict=states[0], optim_state_dict=state)

    lost = copy.deepcopy(states[1])
    for name in [
        name for name in lost["state"]["0.weight"] if name.startswith("tiebreak")
    ]:
        del lost["state"]["0.weight"][name]
    with pytest.raises(
        ValueError, match="the state lacks what was saved for 1 parameters"
    ):
        loaded(lost)
    foreign = copy.deepcopy(states[1])
    for group in foreign["param_groups"]:
        del group["tiebreak"]
    with pytest.raises(ValueError, match="saved by another optimizer"):
        loaded(foreign)
    newer = copy.deepcopy(states[1])
    for group in newer["param_groups"]:
        group["tiebreak"] = group["tiebreak"].replace('"version":1', '"version":7')
    with pytest.raises(ValueError, match="in this state version is 7; it must be 1"):
        loaded(newer)
    with pytest.raises(
        ValueError, match="the copy of the model is twin; it must be 'start'"
    ):
        loaded(states[1], "start")
    other = copy.deepcopy(states[1])
    other["state"]["0.weight"]["tiebreak_copy_value"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"copy of parameter 0 is .* shape \(3,\)"):
        loaded(other)


def test_frozen_parameters(tmp_path):
    """One that never moved belongs to the model, and a twin has no copy of it; one that was frozen on the way has."""
    batches = data()

    def frozen(seed=0):
        model = network(seed)
        model[0].requires_grad_(False)
        return model, DynamicBarrier(
            torch.optim.AdamW(model.parameters(), lr=0.02), model=model, **CASES["twin"]
        )

    whole, _ = train(*frozen(), batches)
    half = train(*frozen(), batches[:3])
    assert len(half[1].model_copy.values) == 4
    save(tmp_path / "1", *half)
    fresh = restore(tmp_path / "1", *frozen(9))
    train(*fresh, batches[3:])
    assert torch.equal(everything(fresh[0]), everything(whole))
    fresh[0][0].requires_grad_(True)
    train(*fresh, batches)
    assert len(fresh[1].model_copy.values) == 6
    fresh[0][3].requires_grad_(False)
    states = copy.deepcopy(
        get_state_dict(*fresh)
    )  # torch would let both train on the same averages
    model, opt = frozen(9)
    model[0].requires_grad_(True)
    model[3].requires_grad_(False)
    with pytest.raises(ValueError, match="unfreeze them"):
        set_state_dict(
            model, opt, model_state_dict=states[0], optim_state_dict=states[1]
        )
    model[3].requires_grad_(True)
    set_state_dict(model, opt, model_state_dict=states[0], optim_state_dict=states[1])
    model[3].requires_grad_(False)
    for pair in (fresh, (model, opt)):
        train(*pair, batches)
    assert torch.equal(everything(model), everything(fresh[0]))


def test_a_state_without_all_that_the_law_remembers_is_refused():
    """Nothing is changed by it."""
    _, opt = train(*made("twin", "adamw"), data(3))
    state = copy.deepcopy(opt.state_dict())
    for group in state["param_groups"]:
        text = json.loads(group[KEY])
        del text["law"]["mean_rise"]
        group[KEY] = json.dumps(text)
    _, again = made("twin", "adamw", 9)
    with pytest.raises(
        ValueError, match="remembers differs from this version's in mean_rise"
    ):
        again.load_state_dict(state)
    assert set(again.memory.values.values()) == {0.0}


def test_the_state_shows_the_bases_and_ours():
    model, opt = train(*made("twin", "adamw"), data(2))
    first = next(model.parameters())
    assert set(opt.base.state[first]) < set(opt.state[first])
    assert opt.state[first]["tiebreak_copy_value"] is opt.model_copy.values[first]
    opt.state[first]["step"] = torch.tensor(7.0)
    assert opt.base.state[first]["step"] == 7
    opt.state[first] = dict(
        opt.state[first]
    )  # as a framework moves a state to its device
    assert set(opt.base.state[first]) == {"step", "exp_avg", "exp_avg_sq"}
    assert list(opt.state) == list(model.parameters())
    fresh = made("rule", "plain")[1]
    assert not fresh.state


def test_a_state_that_was_loaded_can_be_saved_before_a_step():
    """The buffers of a twin, too."""
    batches = data()
    whole, _ = train(*made("twin", "adamw"), batches)
    model, opt = train(*made("twin", "adamw"), batches[:3])
    state = opt.state_dict()
    for _ in range(2):
        fresh, again = made("twin", "adamw", 9)
        again.load_state_dict(copy.deepcopy(state))
        state = again.state_dict()
    fresh.load_state_dict(model.state_dict())
    train(fresh, again, batches[3:])
    assert torch.equal(everything(fresh), everything(whole))


class Summing(torch.optim.Optimizer):
    """AdaGrad with one sum of squares for each group, which the group holds, with a count and the last two squares."""

    def __init__(self, params, total):
        super().__init__(
            params, {"lr": 0.5, "k": 0, "total": total, "last": (0.0, 0.0)}
        )

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            square = sum(p.grad.square().sum() for p in group["params"])
            group["k"] += 1
            group["total"] = group["total"] + (
                square if torch.is_tensor(group["total"]) else square.item()
            )
            group["last"] = (group["last"][1], square.item())
            length = group["lr"] / (
                float(group["total"]) ** 0.5 * (1 + group["last"][0] / group["k"])
            )
            for p in group["params"]:
                p.sub_(p.grad, alpha=length)


def summing(total, seed=0):
    model = network(seed)
    first, rest = list(model.parameters())[:2], list(model.parameters())[2:]
    base = Summing([{"params": first}, {"params": rest, "lr": 0.3}], total)
    return model, DynamicBarrier(base, model=model, **CASES["twin"])


TOTALS = {"number": 0.0, "tensor": torch.zeros((), dtype=torch.float64)}


@pytest.mark.parametrize("total", TOTALS.values(), ids=TOTALS)
def test_what_a_twin_counts_in_its_groups_is_in_the_state(total):
    """Base and twin have different gradients, hence different sums; each goes on with its own."""
    batches = data()
    whole, opt = train(*summing(total), batches)
    model, half = train(*summing(total), batches[:3])
    for own, twin in zip(
        half.base.param_groups, half.twin.optimizer.param_groups, strict=True
    ):
        assert (own["k"], twin["k"]) == (3, 3)
        assert own["total"] != twin["total"]
        assert own["last"] != twin["last"]
    state = half.state_dict()
    found = [json.loads(group[KEY])["options"] for group in state["param_groups"]]
    assert [set(options) for options in found] == [
        {"total", "last"}
    ] * 2  # not what both have
    fresh, again = summing(total, 9)
    fresh.load_state_dict(model.state_dict())
    again.load_state_dict(copy.deepcopy(state))
    for now, then in zip(
        again.twin.optimizer.param_groups,
        half.twin.optimizer.param_groups,
        strict=True,
    ):
        for name in ("lr", "k", "total", "last"):
            assert now[name] == then[name]
            assert type(now[name]) is type(then[name])
    train(fresh, again, batches[3:])
    assert torch.equal(everything(fresh), everything(whole))
    assert torch.equal(again.last.excess, opt.last.excess)


@pytest.mark.parametrize("total", TOTALS.values(), ids=TOTALS)
def test_an_option_of_a_twin_that_is_no_number_is_refused(total):
    """Where the base has one; nothing is changed by it."""
    batches = data()
    _, opt = train(*summing(total), batches[:3])
    state = copy.deepcopy(opt.state_dict())
    whole, _ = train(*summing(total, 9), batches)
    model, again = train(*summing(total, 9), batches[:2])
    for wrong in ("much", None, True, [1.0], float("nan")):
        text = json.loads(state["param_groups"][1][KEY])
        text["options"]["total"] = wrong
        state["param_groups"][1][KEY] = json.dumps(text)
        with pytest.raises(
            ValueError,
            match=r"in this state the twin's option total is .*; it must be a number, as",
        ):
            again.load_state_dict(state)
        assert again.count == 2
    train(model, again, batches[2:])
    assert torch.equal(everything(model), everything(whole))


def with_a_twin(seed=0):
    """A fit by three weights, beside two weights that only the upper loss reaches."""
    torch.manual_seed(seed)
    layers = {
        "a": torch.nn.Linear(3, 1, bias=False),
        "b": torch.nn.Linear(2, 1, bias=False),
    }
    model = torch.nn.ModuleDict(layers)
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    opt = DynamicBarrier(base, tolerance=5e-4, reference="twin", model=model)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 3, generator=generator)
    targets = inputs.sum(1) + torch.randn(64, generator=generator)

    def fit():
        return (model["a"](inputs)[:, 0] - targets).square().mean()

    def pull():
        weights = model["a"].weight.abs().sum()
        return weights + (model["b"].weight - 3).square().sum()

    return model, opt, {"lower": fit, "upper": pull}


def test_a_twin_that_has_moved_is_resumed_whatever_its_gradient_is():
    """Its loss is nearly the model's, and its gradient vanishes: only before the first step that is suspicious."""
    model, opt, losses = with_a_twin()
    for _ in range(600):
        opt.step(**losses)
    resumed, again, its_losses = with_a_twin(seed=1)
    resumed.load_state_dict(model.state_dict())
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert again.step(**its_losses).excess == opt.step(**losses).excess


def test_finishing_after_a_load_is_finishing_before_it():
    """Parameters that the lower loss never reached stay where they are."""
    model, opt, losses = with_a_twin()
    for _ in range(300):
        opt.step(**losses)
    resumed, again, its_losses = with_a_twin(seed=1)
    resumed.load_state_dict(model.state_dict())
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    before = model["b"].weight.detach().clone()
    assert again.finish(**its_losses) == opt.finish(**losses)
    assert torch.equal(model["b"].weight, before)
    assert torch.equal(resumed["b"].weight, before)
    assert torch.equal(resumed["a"].weight, model["a"].weight)


def test_a_state_must_say_which_parameters_were_reached():
    _, opt, losses = with_a_twin()
    opt.step(**losses)
    state = opt.state_dict()
    text = json.loads(state["param_groups"][0][KEY])
    for wrong in ([True], [1, 0], None):
        state["param_groups"][0][KEY] = json.dumps(text | {"reached": wrong})
        with pytest.raises(ValueError, match=r"reached|no state of such an optimizer"):
            with_a_twin()[1].load_state_dict(state)


@pytest.mark.parametrize("name", ["adafactor", "amsgrad", "prodigy", "two bases"])
@pytest.mark.parametrize("kind", ["twin", "rule"])
def test_a_base_that_treats_one_parameter_differently_loads_its_own_state(name, kind):
    """One bias of zeros, one embedding, one output: nothing of these is damage."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1)
    )
    params = list(model.parameters())
    if name == "adafactor":
        base = torch.optim.Adafactor(params, lr=1e-3)
    elif name == "amsgrad":
        groups = [{"params": params[:-1]}, {"params": params[-1:], "amsgrad": True}]
        base = torch.optim.Adam(groups, lr=1e-3)
    elif name == "prodigy":
        base = pytest.importorskip("prodigyopt").Prodigy(params)
    else:
        first = torch.optim.Muon([params[0]], lr=0.02)
        base = two_base_optimizers.Both(first, torch.optim.AdamW(params[1:], lr=1e-3))
    options = {"tolerance": 0.1, "reference": "twin", "model": model}
    if kind == "rule":
        options = {"method": simple_method()}
    opt = DynamicBarrier(base, **options)
    inputs = torch.randn(16, 8)

    def step():
        opt.step(
            lower=lambda: model(inputs).square().mean(),
            upper=lambda: sum(p.abs().sum() for p in params),
        )

    for _ in range(2):
        step()
    state = copy.deepcopy(opt.state_dict())
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)  # adds an option to the groups
    opt.load_state_dict(state)
    step()
