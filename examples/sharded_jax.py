"""One run over many devices, in JAX
=================================

One run cut over many devices with ``jax.shard_map`` gives the numbers of one device::

    python examples/sharded_jax.py --devices 1
    python examples/sharded_jax.py --devices 8
    python examples/sharded_jax.py --devices 4 --processes 2 --rank 0 &
    python examples/sharded_jax.py --devices 4 --processes 2 --rank 1

All print the same, up to rounding. On GPUs or TPUs leave out --devices, which makes devices of a CPU.

A network is fitted to another, the lower loss; the upper loss is the mean absolute weight. Its first matrix is cut by
columns and its second by rows over the axis "model", the batch over "data"; the bias is the same everywhere.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tiebreak.optax import log, measure, state_specs, with_twin

SPECS = {"first": P(None, "model"), "second": P("model"), "bias": P()}
INPUTS, HIDDEN, OUTPUTS, BATCH = 16, 32, 4, 64


def draw(key, scale=1.0):
    """Parameters as a whole."""
    first, second = jax.random.split(key)
    return {
        "first": scale * jax.random.normal(first, (INPUTS, HIDDEN)) / INPUTS**0.5,
        "second": scale * jax.random.normal(second, (HIDDEN, OUTPUTS)) / HIDDEN**0.5,
        "bias": jnp.zeros(OUTPUTS),
    }


def fit(params, x, y):
    """g, the lower loss: the mean over this device's part of the batch, which `measure` averages."""
    partial = jnp.tanh(x @ params["first"]) @ params["second"]
    return jnp.mean((jax.lax.psum(partial, "model") + params["bias"] - y) ** 2)


def size(params, x, y):
    """f, the upper loss: a sum over shards, which the loss makes itself."""
    mine = jnp.sum(jnp.abs(params["first"])) + jnp.sum(jnp.abs(params["second"]))
    return jax.lax.psum(mine, "model") / (INPUTS * HIDDEN + HIDDEN * OUTPUTS)


def batch(key, teacher):
    x = jax.random.normal(key, (BATCH, INPUTS))
    return x, jnp.tanh(x @ teacher["first"]) @ teacher["second"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--devices", type=int, help="devices to make of a CPU, in each process"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument(
        "--coordinator",
        default="localhost:12321",
        help="address of the process of rank 0",
    )
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    if options.devices:
        jax.config.update("jax_num_cpu_devices", options.devices)
    if options.processes > 1:
        jax.distributed.initialize(options.coordinator, options.processes, options.rank)

    count = len(jax.devices())
    shape = (count // 2, 2) if count % 2 == 0 else (count, 1)
    mesh = jax.make_mesh(
        shape, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto)
    )
    schedule = optax.cosine_decay_schedule(0.02, options.steps)
    optimizer = with_twin(
        optax.adam(schedule), tolerance=0.02, axis_name=("data", "model")
    )
    evaluate = measure(size, fit, axis_name="data")
    shapes = jax.eval_shape(draw, jax.random.key(0))
    states = state_specs(jax.eval_shape(optimizer.init, shapes), shapes, SPECS)

    def step(params, state, x, y):  # as on one device
        grads, measured = evaluate(params, state, x, y)
        updates, state = optimizer.update(grads, state, params, **measured)
        return optax.apply_updates(params, updates), state, measured["upper_value"]

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(SPECS, states, P("data"), P("data")),
        out_specs=(SPECS, states, P()),
    )

    def steps(params, state, teacher, keys):
        """A batch is drawn as a whole, so that it does not depend on the devices."""

        def one(carry, key):
            *carry, value = mapped(*carry, *batch(key, teacher))
            return tuple(carry), value

        (params, state), values = jax.lax.scan(one, (params, state), keys)
        return params, state, values[-1]

    run = jax.jit(steps, donate_argnums=(0, 1))
    place = jax.jit(
        draw, out_shardings=jax.tree.map(lambda spec: NamedSharding(mesh, spec), SPECS)
    )
    params, teacher = place(jax.random.key(0)), draw(jax.random.key(1), 2.0)
    state = jax.jit(
        jax.shard_map(optimizer.init, mesh=mesh, in_specs=(SPECS,), out_specs=states)
    )(params)
    if options.rank == 0:
        print(
            f"{count} devices in {options.processes} processes: data {shape[0]} × model {shape[1]}"
        )
    for k in range(0, options.steps, 200):
        params, state, value = run(
            params, state, teacher, jax.random.split(jax.random.key(2 + k), 200)
        )
        if options.rank == 0:
            last = log(state)
            print(
                f"step {k + 200:4}   mean |w| {np.asarray(value):.4f}   excess {last['excess']:+.3f} tolerances   "
                f"multiplier {last['multiplier']:.4f}"
            )


if __name__ == "__main__":
    main()
