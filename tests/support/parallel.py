"""Ranks under every kind of parallelism, for test_torch_ranks.py: each case beside one process with the whole batch.

Run as ``python parallel.py FOLDER [CASE …]``: all cases one after the other in two groups of processes.
"""

import contextlib
import datetime
import os
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import torch
from tiebreak.torch import SDBGD, DynamicBarrier
from tiebreak.torch.decide import RuleMemory
from training import simple_method

STEPS, SAMPLES = 3, 24
RULE = simple_method(barrier=2.0, regularizer=1e-3)
AVERAGED = simple_method(barrier=2.0, regularizer=1e-3, estimator="average")
PATIENCE = datetime.timedelta(seconds=60)  # where ranks do not meet
CASES = {
    3: {},
    4: {},
}  # by the number of ranks: three where nothing needs two dimensions, and 7, 6 and 3 do not divide


def case(function=None, world=3):
    if function is None:
        return lambda function: case(function, world)
    CASES[world][function.__name__] = function
    return function


def network(dtype=torch.float64, hidden=7):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 3)
    ).to(dtype)


def batches(steps=STEPS, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(SAMPLES, n, generator=generator, dtype=dtype) for n in (6, 3)]
        for _ in range(steps)
    ]


def lower(model, x, y):
    return (model(x) - y).square().mean()


def upper(model, x):
    return model(x).abs().mean()


def part(tensor, rank, world):
    return tensor.chunk(world)[rank]


def make(wrapped, kind="adamw", parameters=None, **options):
    """An optimizer of a model, or of a list of parameters."""
    if isinstance(wrapped, list):
        wrapped = torch.nn.ParameterList(wrapped)
    parameters = list(wrapped.parameters()) if parameters is None else parameters
    options = {"model": wrapped} | options
    if options.get("tolerance") is None:
        options = {"method": RULE} | options
    if kind == "sdbgd":
        return SDBGD(parameters, lr=0.1, **options)
    base = (
        torch.optim.AdamW(parameters, lr=0.01)
        if kind == "adamw"
        else torch.optim.SGD(parameters, lr=0.1)
    )
    return DynamicBarrier(base, **options)


def train(model, opt, data, way="closures", around=None):
    """Steps on the data; the multipliers and losses of each, and whether it was skipped."""
    around = around or contextlib.nullcontext
    found = []
    for x, y in data:
        if way == "closures":
            opt.step(
                lower=lambda x=x, y=y: lower(model, x, y),
                upper=lambda x=x: upper(model, x),
            )
        else:  # micro-batches: one level after the other, or by turns
            halves = list(zip(x.chunk(2), y.chunk(2), strict=True))
            order = [("lower", 0), ("lower", 1), ("upper", 0), ("upper", 1)]
            order = order if way == "levels" else [order[i] for i in (0, 2, 1, 3)]
            for level, i in order:
                with around() if i == 0 else contextlib.nullcontext():
                    loss = (
                        lower(model, *halves[i])
                        if level == "lower"
                        else upper(model, halves[i][0])
                    )
                    with getattr(opt, level)(loss):
                        (loss / 2).backward()
            opt.step()
        found.append(
            [
                opt.last.multiplier.clone(),
                opt.last.lower_loss.clone(),
                opt.last.skipped.clone(),
            ]
        )
    return found


def alone(way="closures", kind="adamw", dtype=torch.float64, hidden=7, **options):
    """One process with the whole batch; micro-batches are each rank's halves, together."""
    model, world, data = (
        network(dtype, hidden),
        dist.get_world_size(),
        batches(dtype=dtype),
    )
    opt = make(model, kind, **options, process_group=False)
    if way != "closures":
        data = [[halves_together(t, world) for t in batch] for batch in data]
    return train(model, opt, data, way), [p.detach() for p in model.parameters()]


def halves_together(tensor, world):
    """The first halves of all ranks' parts, then the second ones."""
    return torch.cat(
        [
            part(tensor, rank, world).chunk(2)[i]
            for i in range(2)
            for rank in range(world)
        ]
    )


def whole(model, parameters=None):
    """The parameters, whole, wherever they are."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model):
            return [p.detach().clone() for p in model.module.parameters()]
    found = [
        p.detach() for p in (model.parameters() if parameters is None else parameters)
    ]
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in found]


def same(model, found, expected, rtol=1e-9):
    """The multipliers, losses and parameters are those of one process, and those of the other ranks."""
    steps, parameters = expected
    for here, there in zip(found, steps, strict=True):
        for one, other in zip(here, there, strict=True):
            torch.testing.assert_close(one.to(other.dtype), other, rtol=rtol, atol=0)
    flat = torch.cat([p.reshape(-1) for p in whole(model)])
    there = torch.cat([p.reshape(-1) for p in parameters])
    torch.testing.assert_close(
        flat, there, rtol=max(rtol, 1e-8), atol=1e-10 if rtol < 1e-6 else 1e-5
    )
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, [[v.tolist() for v in step] for step in found])
    assert all(other == told[0] for other in told), told


def check(
    model,
    rank,
    world,
    way="closures",
    kind="adamw",
    rtol=1e-9,
    around=None,
    dtype=torch.float64,
    **options,
):
    expected = alone(way, kind, dtype, **options)
    data = [[part(t, rank, world) for t in batch] for batch in batches(dtype=dtype)]
    found = train(model, make(model, kind, **options), data, way, around)
    assert any(float(multiplier.max()) > 0 for multiplier, _, _ in found)
    same(model, found, expected, rtol)


def refused(match, function):
    try:
        function()
    except (RuntimeError, ValueError, FloatingPointError) as error:
        said = str(error)
    else:
        said = "nothing"
    assert match in said, f"{match!r} not in: {said}"


def flat(dtype=torch.float64, **options):
    options = {
        "sharding_strategy": ShardingStrategy.FULL_SHARD,
        "use_orig_params": True,
    } | options
    return FullyShardedDataParallel(
        network(dtype), device_id=torch.device("cpu"), **options
    )


def sharded(mesh=None, dtype=torch.float64, **options):
    model = network(dtype)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@case
def flat_parameters(rank, world):
    for original in (True, False):
        for strategy in (
            ShardingStrategy.FULL_SHARD,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.NO_SHARD,
        ):
            check(
                flat(sharding_strategy=strategy, use_orig_params=original), rank, world
            )
        check(flat(use_orig_params=original), rank, world, kind="sdbgd")


@case
def flat_parameters_in_micro_batches(rank, world):
    for original in (True, False):
        for way in ("levels", "turns"):
            check(flat(use_orig_params=original), rank, world, way)
        model = flat(use_orig_params=original)
        check(model, rank, world, "levels", around=model.no_sync)
        model = flat(use_orig_params=original)
        refused(
            "FSDP keeps",
            lambda model=model: check(
                model, rank, world, "turns", around=model.no_sync
            ),
        )


@case
def flat_parameters_with_options(rank, world):
    check(flat(), rank, world, max_norm=0.05)
    check(flat(), rank, world, method=AVERAGED)
    check(flat(), rank, world, tolerance=0.1, reference=0.5)
    offloaded = flat()
    offloaded.cpu_offload = CPUOffload(
        offload_params=True
    )  # torch asks for an accelerator to make such a one
    refused("CPUOffloadPolicy", lambda: check(offloaded, rank, world))


@case
def sharded_unevenly(rank, world):
    for kind in ("adamw", "sdbgd", "sgd"):
        check(sharded(), rank, world, kind=kind)
    check(sharded(reshard_after_forward=False), rank, world)
    check(sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)), rank, world)


@case
def sharded_in_micro_batches(rank, world):
    for way in ("levels", "turns"):
        check(sharded(), rank, world, way)

    @contextlib.contextmanager
    def apart(model):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    model = sharded()
    check(model, rank, world, "levels", around=lambda: apart(model))
    other = sharded()
    refused(
        "FSDP keeps",
        lambda: check(other, rank, world, "turns", around=lambda: apart(other)),
    )


@case
def sharded_with_options(rank, world):
    check(sharded(), rank, world, max_norm=0.05)
    check(sharded(), rank, world, method=AVERAGED)
    check(sharded(), rank, world, tolerance=0.1, reference=0.5)
    check(sharded(), rank, world, tolerance="20%", reference=0.5)
    check(
        sharded(), rank, world, method=simple_method("by_value", others={"target": 0.1})
    )
    check(sharded(dtype=torch.float32), rank, world, rtol=1e-4, dtype=torch.float32)


@case
def sharded_in_lower_precision(rank, world):
    """Gradients made in bfloat16 differ by rounding from one process; all ranks still have the same multiplier."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = sharded(dtype=torch.float32, mp_policy=policy)
    data = [
        [part(t, rank, world) for t in batch] for batch in batches(dtype=torch.float32)
    ]
    found = train(model, make(model), data)
    same(model, found, (found, whole(model)))
    expected, _ = alone(dtype=torch.float32)
    torch.testing.assert_close(
        found[0][0].double(), expected[0][0].double(), rtol=0.1, atol=0
    )


def scaled(model, opt, scaler, data, spoil):
    """Blocks with a gradient scaler; the lower loss overflows at the steps `spoil`."""
    found = []
    for k, (x, y) in enumerate(data):
        g = lower(model, x, y)
        with opt.lower(g):
            (scaler.scale(g) * (torch.inf if spoil(k) else 1)).backward()
        f = upper(model, x)
        with opt.upper(f):
            scaler.scale(f).backward()
        scaler.step(opt)
        scaler.update()
        found.append(
            (opt.last.multiplier.clone(), bool(opt.last.skipped), scaler.get_scale())
        )
    return found


@case
def scaled_gradients(rank, world):
    """An overflow at the lower level, on one rank: all skip the step and lower the scale, as one process does."""
    options = {"init_scale": 1024.0, "growth_interval": 100}
    plain = network(torch.float32)
    opt = make(plain, process_group=False)
    scaler = torch.amp.GradScaler("cpu", **options)
    expected = scaled(
        plain, opt, scaler, batches(dtype=torch.float32), lambda k: k == 1
    )
    assert [step[1:] for step in expected] == [
        (False, 1024.0),
        (True, 512.0),
        (False, 512.0),
    ]
    ways = {
        "sharded": (
            sharded(dtype=torch.float32),
            torch.amp.GradScaler("cpu", **options),
        ),
        "replicas": (
            DistributedDataParallel(network(torch.float32)),
            torch.amp.GradScaler("cpu", **options),
        ),
        "flat": (flat(dtype=torch.float32), ShardedGradScaler("cpu", **options)),
    }
    data = [
        [part(t, rank, world) for t in batch] for batch in batches(dtype=torch.float32)
    ]
    for model, scaler in ways.values():
        found = scaled(
            model, make(model), scaler, data, lambda k: k == 1 and rank == world - 1
        )
        assert [step[1:] for step in found] == [step[1:] for step in expected]
        for (here, skipped, _), (there, _, _) in zip(found, expected, strict=True):
            if not skipped:
                torch.testing.assert_close(here, there, rtol=1e-4, atol=0)
        for one, other in zip(whole(model), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-3, atol=1e-4)


@case
def one_bad_number(rank, world):
    """A gradient or a loss that is not finite on one rank: nobody makes the step, or everybody raises."""
    makers = (flat, sharded, lambda: DistributedDataParallel(network()))
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    for maker in makers:
        for what, policy in (("gradient", "skip"), ("loss", "raise")):
            model = maker()
            tolerant = {"tolerance": 0.1, "reference": 0.5} if what == "loss" else {}
            opt = make(model, nonfinite=policy, **tolerant)
            before = [p.clone() for p in whole(model)]
            (x, y) = data[0]
            bad = rank == world - 1
            if policy == "skip":
                one_bad(opt, model, x, y, what, bad)
                assert bool(opt.last.skipped)
            else:
                refused(
                    "is not finite", lambda a=(opt, model, x, y, what, bad): one_bad(*a)
                )
            for one, other in zip(before, whole(model), strict=True):
                assert torch.equal(one, other)
            train(model, opt, data[1:2])
            assert not bool(opt.last.skipped)


def one_bad(opt, model, x, y, what, bad):
    g = lower(model, x, y)
    with opt.lower(torch.nan if bad and what == "loss" else g.item()):
        (g * (torch.nan if bad and what == "gradient" else 1)).backward()
    f = upper(model, x)
    with opt.upper(f):
        f.backward()
    opt.step()


@case(world=4)
def in_two_dimensions(rank, world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    for kind in ("adamw", "sdbgd"):
        check(sharded(mesh), rank, world, kind=kind)  # HSDP
    check(sharded(mesh), rank, world, "levels")
    for original in (True, False):
        groups = (mesh["shards"].get_group(), mesh["replicas"].get_group())
        strategy = ShardingStrategy.HYBRID_SHARD
        check(
            flat(
                process_group=groups,
                sharding_strategy=strategy,
                use_orig_params=original,
            ),
            rank,
            world,
        )


@case(world=4)
def tensor_parallel(rank, world):
    """Some layers are cut over all ranks, others are plain; every rank has the whole batch."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    for kind in ("adamw", "sdbgd"):
        plans = (
            {"0": ColwiseParallel(), "2": RowwiseParallel()},
            {"2": RowwiseParallel(input_layouts=Replicate())},
        )
        for plan in plans:
            model = parallelize_module(network(hidden=8), mesh, plan)
            same(
                model,
                train(model, make(model, kind), batches()),
                alone(kind=kind, hidden=8),
            )


@case(world=4)
def sequence_parallel(rank, world):
    """The gradient of a norm's weight is a promise of a sum over the ranks (Partial): it is kept before it is used."""

    def normed():
        return torch.nn.Sequential(
            torch.nn.LayerNorm(6, dtype=torch.float64), *network(hidden=8)
        )

    mesh = init_device_mesh("cpu", (world,))
    data = batches()
    for way, options in (
        ("closures", {}),
        ("closures", {"tolerance": 0.1, "reference": "twin", "max_norm": 0.05}),
        ("closures", {"method": AVERAGED}),
        ("levels", {}),
    ):
        columns, rows = ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel()
        model = parallelize_module(
            normed(),
            mesh,
            {"0": SequenceParallel(sequence_dim=0), "1": columns, "3": rows},
        )
        plain = normed()
        expected = train(plain, make(plain, process_group=False, **options), data, way)
        halves = [
            [torch.cat([part(h, rank, world) for h in x.chunk(2)]), y] for x, y in data
        ]
        mine = (
            [[part(x, rank, world), y] for x, y in data]
            if way == "closures"
            else halves
        )
        found = train(model, make(model, **options), mine, way)
        same(model, found, (expected, [p.detach() for p in plain.parameters()]))


@case(world=4)
def two_meshes(rank, world):
    """Two parameters that are cut alike over other ranks."""
    values = [
        torch.randn(
            4, 4, generator=torch.Generator().manual_seed(i), dtype=torch.float64
        )
        for i in range(2)
    ]
    meshes = [
        DeviceMesh("cpu", ranks) for ranks in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    ]

    def once(pair, **options):
        one, two = map(torch.nn.Parameter, pair)
        whole = [lambda t: t.full_tensor(), lambda t: t]["process_group" in options]
        opt = make([one, two], "sgd", **options)
        opt.step(
            lower=lambda: whole(one.square().sum()) + whole((two - 1).square().sum()),
            upper=lambda: whole(one.abs().sum()) + whole(two.abs().sum()),
        )
        return opt.last.multiplier

    expected = once([v.clone() for v in values], process_group=False)
    cut = [
        distribute_tensor(v, mesh, [Replicate(), Shard(0)])
        for v, mesh in zip(values, meshes, strict=True)
    ]
    torch.testing.assert_close(once(cut), expected, rtol=1e-12, atol=0)


@case(world=4)
def tensor_parallel_and_more(rank, world):
    """Tensor parallel inside FSDP, and inside replicas that are averaged by hand."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    data = [
        [part(t, mesh["dp"].get_local_rank(), 2) for t in batch] for batch in batches()
    ]
    model = parallelize_module(network(hidden=8), mesh["tp"], plan)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    same(model, train(model, make(model), data), alone(hidden=8))
    model = parallelize_module(network(hidden=8), mesh["tp"], plan)
    opt = make(model, process_group=dist.group.WORLD)
    found = [
        by_hand(model, opt, x, y, model.parameters(), mesh["dp"].get_group())
        for x, y in data
    ]
    same(model, found, alone(hidden=8))
    other = parallelize_module(network(hidden=8), mesh["tp"], plan)
    refused(
        "nothing says what the others hold", lambda: train(other, make(other), data)
    )
    refused(
        "different gradients",
        lambda: train(other, make(other, process_group=dist.group.WORLD), data),
    )


def by_hand(model, opt, x, y, averaged, group=None):
    """A step in which the gradients of some parameters are averaged over ranks by hand."""
    averaged = list(averaged)
    for level in ("lower", "upper"):
        loss = lower(model, x, y) if level == "lower" else upper(model, x)
        with getattr(opt, level)(loss):
            loss.backward()
            for p in averaged:
                grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                dist.all_reduce(grad, group=group)
                grad.div_(dist.get_world_size(group))
    opt.step()
    return [
        opt.last.multiplier.clone(),
        opt.last.lower_loss.clone(),
        opt.last.skipped.clone(),
    ]


@case
def plain_parameters(rank, world):
    """Plain parameters beside those of FSDP, and alone: averaged by hand they are replicas, otherwise nothing."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    for average in (True, False):
        model = network()
        last = list(model[2].parameters())
        fully_shard(model, ignored_params=set(last))
        plain = network()
        pairs = (
            (model, make(model), last),
            (
                plain,
                make(plain, process_group=dist.group.WORLD),
                list(plain.parameters()),
            ),
        )
        for model, opt, averaged in pairs:
            if average:
                same(
                    model,
                    [by_hand(model, opt, x, y, averaged) for x, y in data],
                    alone(),
                )
            else:
                refused(
                    "different gradients",
                    lambda m=model, o=opt: by_hand(m, o, *data[0], ()),
                )


@case
def tolerances(rank, world):
    """Each rank gives its own loss and its own reference: the law sees the means."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]

    def told(model, opt, data):
        found = []
        for x, y in data:
            reference = (y - 0.1).square().mean()
            g = lower(model, x, y)
            with opt.lower(g, reference=reference):
                g.backward()
            f = upper(model, x)
            with opt.upper(f):
                f.backward()
            opt.step()
            found.append(
                [
                    opt.last.multiplier.clone(),
                    opt.last.excess.clone(),
                    opt.last.reference.clone(),
                ]
            )
        return found

    model = network()
    options = {"tolerance": 0.1, "reference": "given"}
    expected = told(model, make(model, **options, process_group=False), batches())
    parameters = [p.detach() for p in model.parameters()]
    for model in (DistributedDataParallel(network()), flat(), sharded()):
        same(model, told(model, make(model, **options), data), (expected, parameters))


@case
def a_model_beyond_repair(rank, world):
    """It is set to its twin on every rank, as in one process."""
    soon = mock.patch.object(
        RuleMemory, "needs_return", lambda self: float(self.values["steps"]) == 2
    )
    with soon, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*set to its twin")
        for model in (DistributedDataParallel(network()), flat(), sharded()):
            check(model, rank, world, tolerance=0.1, reference="twin")


@case
def finished(rank, world):
    """Every rank evaluates its part of the data, and all are moved to the place that one process finds."""

    def finish(model, opt, data):
        for x, y in data:
            opt.step(
                lower=lambda x=x, y=y: lower(model, x, y),
                upper=lambda x=x: upper(model, x),
            )
        found = opt.finish(
            lower=lambda: (lower(model, x, y) for x, y in data),
            upper=lambda: (upper(model, x) for x, _ in data),
        )
        return [[torch.tensor(found[:5], dtype=torch.float64)]]

    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    for options in (
        {"tolerance": 1e-4, "reference": "twin"},
        {"tolerance": 0.1, "reference": "start"},
    ):
        model = network()
        expected = finish(model, make(model, **options, process_group=False), batches())
        assert expected[0][0][0] != 1
        expected = expected, [p.detach() for p in model.parameters()]
        for model in (DistributedDataParallel(network()), flat(), sharded()):
            same(
                model, finish(model, make(model, **options), data), expected, rtol=1e-6
            )


@case
def replicas(rank, world):
    for options in (
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"bucket_cap_mb": 1e-4},
    ):
        check(DistributedDataParallel(network(), **options), rank, world)
    for way in ("closures", "levels", "turns"):
        check(DistributedDataParallel(network()), rank, world, way)
    check(DistributedDataParallel(network()), rank, world, kind="sdbgd")
    check(DistributedDataParallel(network()), rank, world, method=AVERAGED)
    check(DistributedDataParallel(network()), rank, world, tolerance=0.1, reference=0.5)
    for way in ("levels", "turns"):
        model = DistributedDataParallel(network())
        check(model, rank, world, way, around=model.no_sync)
    views = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    refused("gradient_as_bucket_view", lambda: check(views, rank, world))
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    model = DistributedDataParallel(network())
    from torch.distributed.optim import (
        ZeroRedundancyOptimizer,
    )  # which warns of its own code

    base = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    same(
        model,
        train(model, DynamicBarrier(base, method=RULE, model=model), data),
        alone(),
    )
    joined = DistributedDataParallel(network())
    with joined.join():
        refused("join()", lambda: train(joined, make(joined), data))


@case
def wrong_orders(rank, world):
    """Orders in which DistributedDataParallel averages one level only: nobody steps, everybody is told."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]

    def both_forwards_first(model, opt, x, y):
        g, f = lower(model, x, y), upper(model, x)
        with opt.lower(g):
            g.backward()
        with opt.upper(f):
            f.backward()

    def one_forward(model, opt, x, y):
        out = model(x)
        g, f = (out - y).square().mean(), out.abs().mean()
        with opt.lower(g):
            g.backward(retain_graph=True)
        with opt.upper(f):
            f.backward()

    def never_synchronised(model, opt, x, y):
        with model.no_sync():
            both_forwards_first(model, opt, x, y)

    for wrong in (both_forwards_first, one_forward, never_synchronised):
        for kind in ("adamw", "sdbgd"):
            model = DistributedDataParallel(network())
            opt, before = make(model, kind), whole(model)
            before = [p.clone() for p in before]

            def go(wrong=wrong, model=model, opt=opt):
                wrong(model, opt, *data[0])
                opt.step()

            refused("different gradients", go)
            assert all(
                torch.equal(a, b) for a, b in zip(before, whole(model), strict=True)
            )
            train(model, opt, data[:1])  # the next step begins anew


@case
def told_later(rank, world):
    """Where the device alone knows that the gradients differ, every rank is told at the next step."""
    from tiebreak.torch import distributed as ranks

    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    kept, ranks.on_host = ranks.on_host, lambda tensor: False
    try:
        model = DistributedDataParallel(network())
        opt = make(model)
        train(model, opt, data)
        with model.no_sync():
            train(model, opt, data[:1])
        refused("a step was made with them", lambda: train(model, opt, data[1:2]))
        opt.check()  # said once
    finally:
        ranks.on_host = kept


@case
def noise(rank, world):
    """The noise is measured as in one process; without synchronisation after each micro-batch it counts as 0."""

    def measured(model, batch, around=None, **options):
        opt = make(model, **options)
        train(model, opt, [batch], "levels", around)
        return opt.noise.noise

    batch = batches()[0]
    mine = [part(t, rank, world) for t in batch]
    expected = measured(
        network(), [halves_together(t, world) for t in batch], process_group=False
    )
    assert expected != 0
    for model in (DistributedDataParallel(network()), flat(), sharded()):
        torch.testing.assert_close(measured(model, mine), expected, rtol=1e-9, atol=0)
    model = DistributedDataParallel(network())
    assert measured(model, mine, model.no_sync) == 0


@case
def compressed(rank, world):
    """A communication hook rounds; every rank has the same."""
    model = DistributedDataParallel(network(torch.float32))
    model.register_comm_hook(
        None, fp16_compress_hook
    )  # the one for bfloat16 asks for NCCL
    data = [
        [part(t, rank, world) for t in batch] for batch in batches(dtype=torch.float32)
    ]
    found = train(model, make(model), data)
    same(model, found, (found, whole(model)))
    model = DistributedDataParallel(network(torch.float32))
    model.register_comm_hook(
        PowerSGDState(None, use_error_feedback=True), powerSGD_hook
    )
    refused("PowerSGDState", lambda: train(model, make(model), data))


@case
def uneven_batches(rank, world):
    """DistributedDataParallel gives every rank the same weight: so do the losses."""
    mine = [[t[rank * 3 : rank * 3 + 1 + rank] for t in batch] for batch in batches()]
    model = DistributedDataParallel(network())
    opt = make(model, tolerance=0.1, reference=0.5)
    plain = network()
    other = make(plain, tolerance=0.1, reference=0.5, process_group=False)
    parts = [
        [[t[r * 3 : r * 3 + 1 + r] for t in b] for r in range(world)] for b in batches()
    ]
    expected = []
    for batch in parts:
        other.step(
            lower=lambda b=batch: sum(lower(plain, x, y) for x, y in b) / world,
            upper=lambda b=batch: sum(upper(plain, x) for x, y in b) / world,
        )
        expected.append(
            [other.last.multiplier, other.last.lower_loss, other.last.skipped]
        )
    same(
        model,
        train(model, opt, mine),
        (expected, [p.detach() for p in plain.parameters()]),
    )


@case
def a_level_of_parameters_alone(rank, world):
    """An upper loss of the parameters, which no wrapper sees; on DTensors its value is one, too."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]

    def run(model, opt, data):
        found = []
        for x, y in data:
            opt.step(
                lower=lambda x=x, y=y: lower(model, x, y),
                upper=lambda: sum(p.square().sum() for p in model.parameters()),
            )
            found.append(
                [
                    opt.last.multiplier.clone(),
                    opt.last.upper_loss.clone(),
                    opt.last.skipped.clone(),
                ]
            )
        return found

    plain = network()
    expected = run(plain, make(plain, process_group=False), batches())
    for model in (DistributedDataParallel(network()), sharded()):
        same(
            model,
            run(model, make(model), data),
            (expected, [p.detach() for p in plain.parameters()]),
        )


@case
def a_level_that_reaches_one_rank(rank, world):
    """The upper loss reaches one bias, whose pieces are on some ranks only."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]

    def run(model, opt, data):
        found = []
        inner = model.module if hasattr(model, "module") else model
        for x, y in data:
            opt.step(
                lower=lambda x=x, y=y: lower(model, x, y),
                upper=lambda: inner[2].bias.square().sum(),
            )
            found.append(
                [
                    opt.last.multiplier.clone(),
                    opt.last.upper_loss.clone(),
                    opt.last.skipped.clone(),
                ]
            )
        return found

    plain = network()
    expected = run(plain, make(plain, process_group=False), batches())
    model = sharded()
    same(
        model,
        run(model, make(model), data),
        (expected, [p.detach() for p in plain.parameters()]),
    )


@case(world=4)
def experts(rank, world):
    """A dense part that all ranks have, and experts that each has for itself; λ is that of all together."""
    x, target = batches(1)[0]

    def problem(dense, mine, r):
        """Rank r's share of both losses: Σ over the ranks is what one process sees."""
        out = part(x, r, world) @ dense + part(x, r, world) @ mine
        return (
            out - part(target, r, world)
        ).square().mean() / world, out.abs().mean() / world

    def start():
        generator = torch.Generator().manual_seed(3)
        return [
            torch.randn(6, 3, generator=generator, dtype=torch.float64)
            for _ in range(world + 1)
        ]

    values = [torch.nn.Parameter(v) for v in start()]
    opt = make(values, "sgd", process_group=False)
    for _ in range(STEPS):
        opt.step(
            lower=lambda: sum(
                problem(values[0], values[1 + r], r)[0] for r in range(world)
            ),
            upper=lambda: sum(
                problem(values[0], values[1 + r], r)[1] for r in range(world)
            ),
        )
    expected = opt.last.multiplier
    for way in ("list", "mapping", "unsaid"):
        mine = start()
        dense, own = torch.nn.Parameter(mine[0]), torch.nn.Parameter(mine[1 + rank])
        how = {"list": [own], "mapping": {dist.group.WORLD: [own]}, "unsaid": None}[way]
        opt = make([dense, own], "sgd", process_group=dist.group.WORLD, sharded=how)

        def step(dense=dense, own=own, opt=opt):
            for i, level in enumerate(("lower", "upper")):
                loss = problem(dense, own, rank)[i]
                with getattr(opt, level)(loss):
                    loss.backward()
                    dist.all_reduce(dense.grad)
            opt.step()

        if way == "unsaid":
            refused("should have the same parameters", step)
            continue
        for _ in range(STEPS):
            step()
        torch.testing.assert_close(opt.last.multiplier, expected, rtol=1e-9, atol=0)
        torch.testing.assert_close(dense, values[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(own, values[1 + rank], rtol=1e-9, atol=1e-12)


@case(world=4)
def a_pipeline(rank, world):
    """Each rank has a stage, the last one has the losses; with a tolerance, too."""
    for options in ({}, {"tolerance": 0.1, "reference": 0.5}):
        plain = network()
        layers = [plain[0], plain[2]]
        opt = make(plain, "sgd", process_group=False, **options)
        expected = [m for m, _, _ in train(plain, opt, batches())]
        stages = network()
        stage = rank % 2
        mine = list((stages[0] if stage == 0 else stages[2]).parameters())
        pairs = [dist.new_group([2 * i, 2 * i + 1]) for i in range(world // 2)]
        opt = make(
            mine,
            "sgd",
            process_group=dist.group.WORLD,
            sharded={pairs[rank // 2]: True},
            **options,
        )
        for step, (x, y) in enumerate(
            batches()
        ):  # both pairs of stages have the whole batch: replicas
            for level in ("lower", "upper"):
                with contextlib.ExitStack() as blocks:
                    first, second = rank // 2 * 2, rank // 2 * 2 + 1
                    if stage == 0:
                        hidden = torch.tanh(stages[0](x))
                        dist.send(hidden.detach(), second)
                        grad = torch.empty_like(hidden)
                        dist.recv(grad, second)
                        blocks.enter_context(getattr(opt, level)())
                        hidden.backward(grad)
                    else:
                        hidden = torch.empty(SAMPLES, 7, dtype=torch.float64)
                        dist.recv(hidden, first)
                        hidden.requires_grad_()
                        out = stages[2](hidden)
                        loss = (
                            (out - y).square().mean()
                            if level == "lower"
                            else out.abs().mean()
                        )
                        blocks.enter_context(getattr(opt, level)(loss))
                        loss.backward()
                        dist.send(hidden.grad, first)
            opt.step()
            torch.testing.assert_close(
                opt.last.multiplier, expected[step], rtol=1e-9, atol=0
            )
        for one, other in zip(mine, layers[stage].parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@case(world=4)
def a_part_of_the_ranks(rank, world):
    """Replicas on some ranks only: the group has to be said, and what is said is taken."""
    pairs = [dist.new_group([i, i + 1]) for i in range(0, world, 2)]
    mine = pairs[rank // 2]
    data = [[part(t, rank % 2, 2) for t in batch] for batch in batches()]
    model = DistributedDataParallel(network(), process_group=mine)
    refused(
        "nothing says what the others hold", lambda: train(model, make(model), data)
    )
    model = DistributedDataParallel(network(), process_group=mine)
    found = train(
        model, make(model, process_group=mine, tolerance=0.1, reference=0.5), data
    )
    same(model, found, alone(tolerance=0.1, reference=0.5))
    plain = network()
    refused(
        "process_group=False where this process",
        lambda: train(plain, make(plain), data),
    )
    refused(
        "process_group=False where this process",
        lambda: train(model, make(model, model=None), data),
    )
    model = DistributedDataParallel(network())
    refused(
        "parameters lie on rank",
        lambda: train(model, make(model, process_group=mine), data),
    )


@case
def models_that_are_not_given(rank, world):
    """What cut the parameters must be in `model=`; replicas need their group, given the model inside the wrapper."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    for maker, said in (
        (flat, "FullyShardedDataParallel that model= does not contain"),
        (sharded, "is a DTensor"),
    ):
        model = maker()
        refused(said, lambda model=model: train(model, make(model, model=None), data))
    options = {"tolerance": 0.01, "reference": "twin"}
    model = DistributedDataParallel(network())
    opt = make(model, model=model.module, process_group=dist.group.WORLD, **options)
    same(model, train(model, opt, data), alone(**options))


@case
def settings_that_differ(rank, world):
    """What every rank must have alike is compared before the first step."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    for name, options in {
        "max_norm=": {"max_norm": 1.0 + rank},
        "nonfinite=": {"nonfinite": "skip" if rank else "raise"},
        "estimator=": {"method": AVERAGED if rank else RULE},
        "barrier=": {"method": RULE.replace(barrier=lambda k: 2.0 + rank * (k > 5))},
        "regularizer=": {"method": RULE.replace(regularizer=1e-3 + rank)},
        "momentum=": {"method": AVERAGED.replace(momentum=0.1 + 0.2 * rank)},
        "normalize=": {"normalize": bool(rank)},
        "reference=": {"tolerance": 0.1, "reference": 0.5 + 0.1 * rank},
        "reference=: 0.5": {"tolerance": 0.1, "reference": "twin" if rank else 0.5},
        "reference=: \"'start'\"": {
            "tolerance": 0.1,
            "reference": "twin" if rank else "start",
        },
        "others=": {
            "method": simple_method("by_value", others={"target": 0.1 * (1 + rank)})
        },
    }.items():
        model = DistributedDataParallel(network())
        opt = make(model, **options)
        refused(
            f"the ranks differ in {name}",
            lambda model=model, opt=opt: train(model, opt, data),
        )
    model = DistributedDataParallel(network())
    opt = make(model)
    train(model, opt, data[:1])
    opt.count += rank
    refused("different steps", lambda: train(model, opt, data[1:2]))


@case
def states_that_differ(rank, world):
    """What changes on one rank between two steps is noticed by all at the next."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]

    def fresh(method=None):
        model = DistributedDataParallel(network())
        options = {"method": method} if method else {"tolerance": 0.1, "reference": 0.5}
        opt = make(model, **options)
        train(model, opt, data[:1])
        return model, opt

    model, opt = fresh()
    opt.tolerance = 0.1 + 0.01 * (rank == 1)
    refused("different states", lambda: train(model, opt, data[1:2]))
    model, opt = fresh()
    opt.param_groups[0]["lr"] *= 0.5 if rank == 1 else 1
    refused("different states", lambda: train(model, opt, data[1:2]))
    for mine in (
        True,
        False,
    ):  # each loads a state of its own; one of them the state of another run; all the same
        model, opt = fresh()
        plain = network()
        other = make(plain, tolerance=0.1, reference=0.5, process_group=False)
        train(plain, other, [[x, y * (1 + mine * rank)] for x, y in batches()[:1]])
        if mine or rank == 1:
            opt.load_state_dict(other.state_dict())
        refused(
            "different states",
            lambda model=model, opt=opt: train(model, opt, data[1:2]),
        )
        opt.load_state_dict(other.state_dict())
        if not mine:
            train(model, opt, data[1:2])
    model, opt = fresh(AVERAGED)
    for memory in opt.estimates.memory.values():
        for p, (value, *_) in memory.items():
            value.mul_(1 + 0.1 * (rank == 1)) if p.dim() else None
    refused("different gradients", lambda: train(model, opt, data[1:2]))


@case
def small_replicas(rank, world):
    """A parameter that nobody averages, and whose gradient is nothing beside the others'."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    for wrap in (DistributedDataParallel, fully_shard):
        for averaged in (False, True):
            model, shift = (
                wrap(network()),
                torch.nn.Parameter(torch.ones((), dtype=torch.float64)),
            )
            opt = make(model, "sgd", [*model.parameters(), shift])
            if averaged:
                shift.register_hook(
                    lambda grad: (dist.all_reduce(grad := grad.clone()), grad)[1]
                )

            def go(model=model, opt=opt, shift=shift):
                for x, y in data:
                    opt.step(
                        lower=lambda x=x, y=y: (
                            (model(x) + 1e-4 * shift - y).square().mean()
                        ),
                        upper=lambda x=x: model(x).abs().mean(),
                    )

            go() if averaged else refused("different gradients", go)


@case
def a_fault_on_one_rank(rank, world):
    """What one rank does wrong is an error on all of them, at the same step, and the step is not made."""
    from tiebreak.torch import distributed as ranks

    x, y = (part(t, rank, world) for t in batches()[0])

    def go(model, opt, fault):
        for level in ("lower", "upper"):
            if rank == 1 and fault == level:
                continue
            loss = lower(model, x, y) if level == "lower" else upper(model, x)
            with getattr(opt, level)(loss):
                loss.backward()
                for p in model.parameters():
                    dist.all_reduce(p.grad) if not fault else None
            if rank == 1 and fault == f"{level} changed":
                model[0].bias.grad.mul_(0.5)
        opt.step()

    for fault, said in (
        ("upper", "a rank had no upper"),
        ("upper changed", "To clip"),
        ("lower changed", "To clip"),
    ):
        for later in (False, True):
            model = network()
            opt = make(model, process_group=dist.group.WORLD)
            go(model, opt, "")
            before = [p.clone() for p in model.parameters()]
            kept = ranks.on_host
            try:
                ranks.on_host = (lambda tensor: False) if later else kept
                if later:
                    refused(
                        "is not finite",
                        lambda model=model, opt=opt, fault=fault: go(model, opt, fault),
                    )
                    refused(said, opt.check)
                else:
                    refused(
                        said,
                        lambda model=model, opt=opt, fault=fault: go(model, opt, fault),
                    )
            finally:
                ranks.on_host = kept
            assert all(
                torch.equal(a, b)
                for a, b in zip(before, model.parameters(), strict=True)
            )


@case
def a_twin_that_nobody_averages(rank, world):
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    for wrap in (DistributedDataParallel, lambda model: model):
        model = wrap(network())
        group = (
            {}
            if wrap is DistributedDataParallel
            else {"process_group": dist.group.WORLD}
        )
        opt = make(model, tolerance=0.1, reference="twin", **group)

        def go(model=model, opt=opt, group=group):
            x, y = data[0]
            with (
                opt.reference(),
                contextlib.nullcontext() if group else model.no_sync(),
            ):
                r = lower(model, x, y)
                r.backward()
            for level in ("lower", "upper"):
                loss = lower(model, x, y) if level == "lower" else upper(model, x)
                with (
                    opt.lower(loss, reference=r.detach())
                    if level == "lower"
                    else opt.upper(loss)
                ):
                    loss.backward()
                    for p in model.parameters() if group else ():
                        dist.all_reduce(p.grad)
            opt.step()

        refused("of a twin", go)


@case
def clipped_in_between(rank, world):
    """Clipping after a block reaches one level only: it is noticed where the tensors' versions do not tell, too."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]

    def go(model, opt, clip):
        x, y = data[0]
        for level in ("lower", "upper"):
            loss = lower(model, x, y) if level == "lower" else upper(model, x)
            with getattr(opt, level)(loss):
                loss.backward()
            if level == clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        opt.step()

    for maker in (sharded, flat, lambda: DistributedDataParallel(network())):
        for level in ("lower", "upper"):
            model = maker()
            opt = make(model)
            go(model, opt, "")
            refused(
                "To clip the direction",
                lambda model=model, opt=opt, level=level: go(model, opt, level),
            )
            opt.zero_grad()
            go(model, opt, "")


@case
def collectives(rank, world):
    """One all-reduce of a handful of floats a step, after the first; everything else is the wrapper's own."""
    data = [[part(t, rank, world) for t in batch] for batch in batches()]
    real, calls = dist.all_reduce, []

    def counted(tensor, *args, **kwargs):
        calls.append(tensor.numel())
        return real(tensor, *args, **kwargs)

    def forbidden(*args, **kwargs):
        raise AssertionError("another collective")

    for maker in (lambda: DistributedDataParallel(network()), sharded, flat):
        for options in (
            {"method": AVERAGED, "max_norm": 1.0},
            {"tolerance": 0.1, "reference": 0.5},
        ):
            model = maker()
            opt = make(model, **options)
            train(model, opt, data[:1])
            g = lower(model, *data[1])
            with opt.lower(g):
                g.backward()
            f = upper(model, data[1][0])
            with opt.upper(f):
                f.backward()
            others = (
                "all_gather",
                "all_gather_object",
                "broadcast",
                "reduce_scatter_tensor",
                "all_gather_into_tensor",
            )
            kept = {name: getattr(dist, name) for name in others}
            calls.clear()
            try:
                dist.all_reduce = counted
                for name in others:
                    setattr(dist, name, forbidden)
                opt.step()
            finally:
                dist.all_reduce = real
                for name, function in kept.items():
                    setattr(dist, name, function)
            assert len(calls) == 1, calls
            assert calls[0] <= 36, calls


def run(rank, world, folder, names):
    """All cases of so many ranks; what went wrong with each goes into a file."""
    warnings.simplefilter("error")
    for theirs in (
        "FSDP",
        "NO_SHARD",
        "reduce_op",
        "barrier",
        "c10d",
        "full_state_dict",
        "torch.jit",
    ):
        warnings.filterwarnings("ignore", message=f".*{theirs}.*")
    torch.set_num_threads(1)
    store = f"file://{folder}/store{world}"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world, timeout=PATIENCE
    )
    found = {}
    for name in names:
        begin = time.monotonic()
        try:
            CASES[world][name](rank, world)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        print(
            rank,
            name,
            found[name] or f"fine after {time.monotonic() - begin:.1f} s",
            flush=True,
        )
    torch.save(found, f"{folder}/{world}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def said(script, request):
    """What each rank says of each selected case of a script like this one, from one group of processes for all cases.

    `request` is that of a fixture of the module whose tests have the parameter `name`. With several workers the first
    one runs the script; the others wait, and read what it found.
    """
    name, folders = Path(script).stem, request.getfixturevalue("tmp_path_factory")
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in items]
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = folders.mktemp(name)
        _ask(script, folder, names)
    else:
        import fcntl  # where ranks are made by a fork, this is there

        # The folder above those of the workers is this run's alone. The lock ends with whoever holds it, and nothing is
        # written before the script has ended: if that worker dies, the next one runs the script.
        with (folders.getbasetemp().parent / f"{name}.place").open("a+") as place:
            fcntl.flock(place, fcntl.LOCK_EX)
            place.seek(0)
            if not (told := place.read()):
                told = str(folders.mktemp(name))
                _ask(script, told, names)
                place.write(told)
        folder = Path(told)
    return {file.stem: torch.load(file) for file in folder.glob("*-*.pt")}


def _ask(script, folder, names):
    loopback = (
        {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    )  # a machine may have no other network
    path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    host = {
        "CUDA_VISIBLE_DEVICES": ""
    }  # else FSDP moves models to a GPU, and the data stay behind
    command = [sys.executable, script, str(folder), *names]
    subprocess.run(
        command, env=os.environ | loopback | path | host, timeout=600, check=False
    )


def main(folder, *names):
    """A process for each rank, made by a fork: torch is imported once, and has computed nothing yet."""
    for world, cases in CASES.items():
        if not (wanted := [name for name in cases if not names or name in names]):
            continue
        ranks = []
        for rank in range(world):
            if (child := os.fork()) == 0:
                try:
                    run(rank, world, folder, wanted)
                finally:
                    os._exit(0)  # what is missing is missed in the file
            ranks.append(child)
        for child in ranks:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
