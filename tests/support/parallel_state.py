"""Twins, frozen copies, checkpoints and growing batches over ranks, for test_torch_ranks_state.py.

Run as ``python parallel_state.py FOLDER [CASE …]``: all cases one after the other in one group of processes.
"""

import itertools
import sys
import warnings

import parallel
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from parallel import (
    alone,
    batches,
    check,
    flat,
    lower,
    make,
    network,
    part,
    refused,
    same,
    sharded,
    train,
    whole,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, ShardingStrategy
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import torch
from tiebreak.torch import DynamicBarrier, GrowingBatches
from training import simple_method

WORLD = 4
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def replicas(**options):
    return DistributedDataParallel(network(), **options)


TRIED = [  # how it is wrapped, the reference, and who makes the passes
    (replicas, "twin", "closures"),
    (sharded, "start", "closures"),
    (flat, "twin", "closures"),
]
MORE = [
    (replicas, "start", "blocks"),
    (lambda: replicas(find_unused_parameters=True), "start", "closures"),
    (sharded, "twin", "blocks"),
    (lambda: sharded(reshard_after_forward=True), "twin", "closures"),
    (lambda: sharded(reshard_after_forward=False), "twin", "blocks"),
    (lambda: sharded(reshard_after_forward=False), "start", "blocks"),
    (flat, "start", "blocks"),
    (lambda: flat(use_orig_params=False), "twin", "blocks"),
    (
        lambda: flat(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
        "start",
        "closures",
    ),
    (lambda: flat(sharding_strategy=ShardingStrategy.NO_SHARD), "twin", "closures"),
]


@case
def references(rank, world):
    """The multiplier, the losses and the parameters are those of one process, with a twin and with a frozen copy."""
    for maker, reference, way in TRIED:
        with_reference(maker(), rank, world, reference, way)


@case
def more_references(rank, world):
    """The same for other options of the wrappers, by blocks, and with a clipped direction."""
    for maker, reference, way in MORE:
        with_reference(maker(), rank, world, reference, way)
    for maker in (sharded, flat):
        check(maker(), rank, world, tolerance=0.01, reference="twin", max_norm=0.05)


def with_reference(model, rank, world, reference, way, **options):
    options = {"tolerance": 0.01, "reference": reference} | options
    if way == "closures":
        check(model, rank, world, **options)
        return
    mine = [[part(t, rank, world) for t in batch] for batch in batches()]
    plain = network()
    expected = by_blocks(plain, make(plain, process_group=False, **options), batches())
    found = by_blocks(model, make(model, **options), mine)
    same(model, found, (expected, [p.detach() for p in plain.parameters()]))


def by_blocks(model, opt, data):
    """One's own passes; and between the steps somebody looks at the model, which leaves it gathered."""
    found = []
    for x, y in data:
        with torch.no_grad():
            model(x)
        with opt.reference():
            r = lower(model, x, y)
            if opt.twin is not None:
                r.backward()
        g = lower(model, x, y)
        with opt.lower(g, reference=r.detach()):
            g.backward()
        with torch.no_grad(), opt.reference():
            model(x)
        f = parallel.upper(model, x)
        with opt.upper(f):
            f.backward()
        opt.step()
        found.append(
            [
                opt.last.multiplier.clone(),
                opt.last.reference.clone(),
                opt.last.skipped.clone(),
            ]
        )
    return found


@case
def twins_are_lower_only_training(rank, world):
    """Bit for bit, under the same wrapper; what somebody sees who looks at the reference is that model."""
    mine = [[part(t, rank, world) for t in batch] for batch in batches()]
    for maker in (replicas, sharded, flat):
        for kind in ("adamw", "sgd"):
            model, expected = maker(), maker()
            opt = make(model, kind, tolerance=0.01, reference="twin")
            train(model, opt, mine)
            base = torch.optim.AdamW if kind == "adamw" else torch.optim.SGD
            plain = base(expected.parameters(), lr=0.01 if kind == "adamw" else 0.1)
            for x, y in mine:
                plain.zero_grad()
                lower(expected, x, y).backward()
                plain.step()
            assert not torch.equal(whole(model)[0], whole(expected)[0])
            with torch.no_grad(), opt.reference():
                seen = model(mine[0][0])
                found = whole(model)
            assert all(
                torch.equal(a, b) for a, b in zip(found, whole(expected), strict=True)
            )
            assert torch.equal(seen, expected(mine[0][0]))


@case
def references_in_other_ways(rank, world):
    """Tensor parallel; lower precision, where all ranks agree; and what is refused."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    for reference in ("twin", "start"):
        options = {"tolerance": 0.01, "reference": reference}
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = parallelize_module(network(hidden=8), mesh, plan)
        same(
            model,
            train(model, make(model, **options), batches()),
            alone(hidden=8, **options),
        )
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    narrow = [
        [part(t, rank, world) for t in batch] for batch in batches(dtype=torch.float32)
    ]
    for reference in ("twin", "start"):
        options = {"tolerance": 0.01, "reference": reference}
        model = sharded(dtype=torch.float32, mp_policy=policy)
        found = train(model, make(model, **options), narrow)
        same(model, found, (found, whole(model)))
        expected, _ = alone(dtype=torch.float32, **options)
        torch.testing.assert_close(
            found[0][0].double(), expected[0][0].double(), rtol=0.1, atol=0
        )
    model = replicas()
    model.mixed_precision = policy  # torch asks for an accelerator to make such a one
    opt = make(model, tolerance=0.01, reference="twin")
    refused("exchanges the parameters itself", lambda: train(model, opt, narrow))


# --- checkpoints: the same processes as groups of two, four and one ---------------------------------------------------


def regrouped(rank, size, name):
    """From now on the first `size` processes are the group; says whether this one belongs to it."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if rank < size:
        store = f"file://{FOLDER}/{name}"
        dist.init_process_group(
            "gloo",
            init_method=store,
            rank=rank,
            world_size=size,
            timeout=parallel.PATIENCE,
        )
    return rank < size


SAVED = {
    "twin": ("momentum", {"tolerance": 0.01, "reference": "twin"}),
    "twin, adamw": ("adamw", {"tolerance": "5%", "reference": "twin"}),
    "start": ("plain", {"tolerance": 0.01, "reference": "start"}),
    "number": ("adamw", {"tolerance": 0.01, "reference": 0.5}),
    "average": (
        "momentum",
        {"method": simple_method(estimator="average", barrier=2.0)},
    ),
}
BASES = {
    "plain": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
}


def made(maker, what, seed=None):
    model = maker()
    if seed is not None:
        with torch.no_grad():  # another start: what is loaded must replace all of it
            for p in model.parameters():
                p.add_(0.1)
    base, options = SAVED[what]
    return model, DynamicBarrier(
        BASES[base](model.parameters()), model=model, **options
    )


def states(model, opt, flattened):
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    return dict(
        zip(("model", "opt"), get_state_dict(model, opt, options=options), strict=True)
    ), options


def save(model, opt, where, flattened):
    dcp.save(states(model, opt, flattened)[0], checkpoint_id=f"{FOLDER}/{where}")


def restored(maker, what, where, flattened):
    model, opt = made(maker, what, seed=1)
    state, options = states(model, opt, flattened)
    dcp.load(state, checkpoint_id=f"{FOLDER}/{where}")
    set_state_dict(
        model,
        opt,
        model_state_dict=state["model"],
        optim_state_dict=state["opt"],
        options=options,
    )
    return model, opt


def parts(rank, size):
    return [[part(t, rank, size) for t in batch] for batch in batches(6)]


ROUTES = [  # how it is wrapped on 2, 4 and 1 ranks, the states that go that way, and whether they are flattened
    ((sharded, sharded, network), list(SAVED), False),
    ((sharded, replicas, sharded), ["twin", "average"], True),
    ((replicas, sharded, network), ["twin, adamw", "average"], False),
    # Into FSDP1 torch itself loads no tensor that has fewer rows than there are ranks, and 3 < 4.
    ((flat, sharded, network), ["twin, adamw", "average"], False),
]


@case
def checkpoints(rank, world):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has many for its own old FSDP
        resharded(rank)
    regrouped(rank, world, "checkpoints-end")


def resharded(rank):
    """Saved on two ranks, loaded on four, saved there and loaded on one: as one process that never stopped.

    7 and 3 divide by none of them. On as many ranks as before it is the same bit for bit.
    """
    ways = [
        (f"{i}-{what}", what, makers, flat)
        for i, (makers, names, flat) in enumerate(ROUTES)
        for what in names
    ]
    if regrouped(rank, 2, "two"):
        for where, what, makers, flattened in ways:
            model, opt = made(makers[0], what)
            train(model, opt, parts(rank, 2)[:2])
            save(model, opt, f"{where}-2", flattened)
            train(model, opt, parts(rank, 2)[2:4])
            again = restored(makers[0], what, f"{where}-2", flattened)
            assert again[1].count == 2
            train(*again, parts(rank, 2)[2:4])
            assert all(
                torch.equal(a, b)
                for a, b in zip(whole(model), whole(again[0]), strict=True)
            ), where
            assert torch.equal(opt.last.multiplier, again[1].last.multiplier)
    regrouped(rank, 4, "four")
    for where, what, makers, flattened in ways:
        pair = restored(makers[1], what, f"{where}-2", flattened)
        train(*pair, parts(rank, 4)[2:4])
        save(*pair, f"{where}-4", flattened)
    if regrouped(rank, 1, "one"):
        for where, what, makers, flattened in ways:
            model, opt = restored(makers[2], what, f"{where}-4", flattened)
            train(model, opt, parts(0, 1)[4:])
            plain, other = made(network, what)
            train(plain, other, parts(0, 1))
            for a, b in zip(whole(model), plain.parameters(), strict=True):
                torch.testing.assert_close(a, b.detach(), rtol=1e-7, atol=1e-10)
            torch.testing.assert_close(
                opt.last.multiplier, other.last.multiplier, rtol=1e-6, atol=0
            )


# --- growing batches --------------------------------------------------------------------------------------------------


def grown(model, opt, drawn, steps):
    curve = []
    for batch in itertools.islice(drawn, steps):
        for (x, y), weight in batch:
            g = lower(model, x, y)
            with opt.lower(g, weight=weight):
                (weight * g).backward()
        f = sum(p.square().sum() for p in model.parameters())
        with opt.upper(f):
            f.backward()
        opt.step()
        curve.append(torch.stack([opt.last.multiplier, opt.last.lower_loss]))
    return torch.stack(curve)


@case
def growing_batches(rank, world):
    """1, 2 and 3 ranks: one curve, to rounding. What two ranks have saved goes on with three."""
    data = tuple(torch.cat([batch[i] for batch in batches(3)]) for i in range(2))

    def drawn():
        share = (dist.get_rank(), dist.get_world_size())
        return GrowingBatches(
            data,
            lambda k: [1, 2, 5, 8, 13, 21][k],
            micro_batch=3,
            sampling="epoch",
            share=share,
        )

    def begin():
        model = network() if dist.get_world_size() == 1 else replicas()
        return model, make(model, "sgd", tolerance=0.01, reference=0.5)

    state, curves = f"{FOLDER}/growing", {}
    for size in (1, 2, 3):
        if regrouped(rank, size, f"growing-{size}"):
            curves[size] = grown(*begin(), drawn(), 6)
    if regrouped(rank, 2, "growing-saved"):
        model, opt = begin()
        samples = drawn()
        grown(model, opt, samples, 3)
        if rank == 0:
            torch.save(
                [model.module.state_dict(), opt.state_dict(), samples.state_dict()],
                state,
            )
        dist.barrier()
    if regrouped(rank, 3, "growing-resumed"):
        model, opt = begin()
        samples = drawn()
        for one, kept in zip(
            (model.module, opt, samples),
            torch.load(state, weights_only=True),
            strict=True,
        ):
            one.load_state_dict(kept)
        rest = grown(model, opt, samples, 3)
        torch.testing.assert_close(rest, curves[3][3:], rtol=1e-9, atol=0)
        for curve in curves.values():
            torch.testing.assert_close(curve, curves[3], rtol=1e-9, atol=0)
    regrouped(rank, world, "growing-end")


if __name__ == "__main__":
    FOLDER = sys.argv[1]
    parallel.CASES = {WORLD: CASES}
    parallel.main(*sys.argv[1:])
