"""Lightning, Accelerate and a Hugging Face Trainer, with the code of the examples: each is the plain loop."""

import copy
import importlib.util
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tiebreak.torch import DynamicBarrier
from training import simple_method

ROOT = Path(__file__).parents[2]
NEEDS = {
    "lightning": "pytorch_lightning",
    "accelerate": "accelerate",
    "trainer": "transformers",
}
NOISE = (  # of the frameworks, on a machine like CI's
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"ignore:The '?train_dataloader'? does not have many workers",
    r"ignore:The '\w+' does not have many workers",
    r"ignore:Checkpoint directory .* exists and is not empty",
    r"ignore:GPU available but not used",
    r"ignore:The number of training batches .* is smaller than the logging interval",
)
pytestmark = [pytest.mark.filterwarnings(line) for line in NOISE]


def example(name):
    """examples/with_{name}.py as a module; skipped where its framework is missing."""
    pytest.importorskip(
        NEEDS[name],
        reason=f"{NEEDS[name]} is not installed: pip install '.[frameworks]'",
    )
    spec = importlib.util.spec_from_file_location(
        f"with_{name}", ROOT / "examples" / f"with_{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"with_{name}"] = module
    spec.loader.exec_module(module)
    return module


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# --- Lightning -----------------------------------------------------------------------------------------------------


def lightning(folder, change=lambda model: None, loader=None, **options):
    here = example("lightning")
    here.pl.seed_everything(0, verbose=False)
    model = here.Sparse()
    change(model)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "accelerator": "cpu",
    }
    trainer = here.pl.Trainer(
        default_root_dir=folder, **({"max_epochs": 1} | quiet | options)
    )
    trainer.fit(model, here.loader() if loader is None else loader)
    return trainer, model, trainer.optimizers[0]


def by_hand(micro_batches=1, autocast=False):
    """The Lightning example without Lightning."""
    here = example("lightning")
    torch.manual_seed(0)
    model = here.Sparse()
    (opt,), (scheduler,) = model.configure_optimizers()
    for i, batch in enumerate(here.loader()):
        with torch.autocast(
            "cpu", torch.bfloat16, enabled=autocast, cache_enabled=False
        ):
            with opt.reference():
                reference = model.fit_loss(batch)
                (reference / micro_batches).backward()
            lower = model.fit_loss(batch)
            with opt.lower(lower, reference=reference):
                (lower / micro_batches).backward()
            upper = sum(p.abs().sum() for p in model.net.parameters())
            with opt.upper(upper):
                (upper / micro_batches).backward()
        if (i + 1) % micro_batches == 0:
            opt.step()
            scheduler.step()
    return model, opt


@pytest.mark.parametrize(
    ("n", "precision"), [(1, "32-true"), (3, "32-true"), (1, "bf16-mixed")]
)
def test_lightning_is_the_plain_loop(n, precision, tmp_path):
    trainer, model, opt = lightning(
        tmp_path, lambda model: setattr(model, "micro_batches", n), precision=precision
    )
    expected, plain = by_hand(n, autocast=precision == "bf16-mixed")
    assert torch.equal(weights(model), weights(expected))
    assert trainer.global_step == opt.count == plain.count == 15 // n
    assert trainer.logged_metrics["excess"] == pytest.approx(plain.log()["excess"])
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert saved["global_step"] == 15 // n
    (fresh,), _ = example("lightning").Sparse().configure_optimizers()
    fresh.load_state_dict(saved["optimizer_states"][0])
    assert fresh.count == 15 // n


def closures(model):
    """The optimizer calls backward."""

    def training_step(batch, batch_idx):
        opt = model.optimizers()
        opt.step(
            lower=lambda: model.fit_loss(batch),
            upper=lambda: sum(p.abs().sum() for p in model.net.parameters()),
        )
        model.lr_schedulers().step()

    model.training_step = training_step


def test_lightning_with_closures(tmp_path):
    """The same steps, and Lightning's hooks once a step, where the gradients are."""
    seen = []

    def change(model):
        closures(model)
        model.on_before_optimizer_step = lambda opt: seen.append(
            model.net[0].weight.grad is not None
        )

    trainer, model, opt = lightning(tmp_path, change)
    assert torch.equal(weights(model), weights(by_hand()[0]))
    assert trainer.global_step == opt.count == 15
    assert seen == [True] * 15


def test_lightning_in_half_precision(tmp_path):
    """A gradient scaler, as on a GPU: an overflow is skipped and lowers the scale; the steps are counted."""
    from pytorch_lightning.plugins import MixedPrecision

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=10**6)
    trainer, model, opt = lightning(
        tmp_path, plugins=[MixedPrecision("16-mixed", "cpu", scaler)]
    )
    assert trainer.global_step == opt.count == 15
    assert scaler.get_scale() < 2.0**120
    assert math.isfinite(opt.log()["lower_loss"])
    assert torch.isfinite(weights(model)).all()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    _, model, opt = lightning(
        tmp_path, plugins=[MixedPrecision("16-mixed", "cpu", scaler)]
    )
    assert scaler.get_scale() == 2.0**10
    torch.testing.assert_close(
        weights(model), weights(by_hand()[0]), rtol=0.1, atol=0.02
    )
    assert opt.log()["lower_loss"] == pytest.approx(
        by_hand()[1].log()["lower_loss"], rel=0.05
    )


def test_lightning_clips_the_direction(tmp_path):
    """`clip_gradients` after `combine` is `max_norm`; without it, and with one loss, a sentence says what to do."""

    def clipping(combine):
        def change(model):
            def configure_optimizers():
                base = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
                limit = {} if combine is not None else {"max_norm": 1.0}
                return DynamicBarrier(
                    base, method=simple_method(regularizer=0.0), **limit
                )

            def training_step(batch, batch_idx):
                opt = model.optimizers()
                lower = model.fit_loss(batch)
                with opt.lower(lower):
                    model.manual_backward(lower)
                upper = sum(p.abs().sum() for p in model.net.parameters())
                with opt.upper(upper):
                    model.manual_backward(upper)
                if combine:
                    opt.combine()
                if combine is not None:
                    model.clip_gradients(
                        opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm"
                    )
                opt.step()

            model.training_step, model.configure_optimizers = (
                training_step,
                configure_optimizers,
            )

        return change

    _, clipped, _ = lightning(tmp_path, clipping(True))
    _, limited, _ = lightning(tmp_path, clipping(None))
    torch.testing.assert_close(weights(clipped), weights(limited), rtol=1e-4, atol=1e-6)
    with pytest.raises(
        RuntimeError,
        match=r"To clip the direction give max_norm=…, or call opt.combine\(\) first",
    ):
        lightning(tmp_path, clipping(False))

    def automatic(model):
        model.automatic_optimization = True
        model.training_step = lambda batch, batch_idx: model.fit_loss(batch)

    with pytest.raises(
        TypeError, match=r"in Lightning set self\.automatic_optimization = False"
    ):
        lightning(tmp_path, automatic)


def test_fabric_is_the_plain_loop():
    here, fabric = (
        example("lightning"),
        pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu"),
    )
    torch.manual_seed(0)
    raw = here.Sparse()
    (opt,), (scheduler,) = raw.configure_optimizers()
    model, opt = fabric.setup(raw, opt)
    model.mark_forward_method("fit_loss")
    for batch in here.loader():
        with opt.reference():
            reference = model.fit_loss(batch)
            fabric.backward(reference)
        lower = model.fit_loss(batch)
        with opt.lower(lower, reference=reference):
            fabric.backward(lower)
        upper = sum(p.abs().sum() for p in model.parameters())
        with opt.upper(upper):
            fabric.backward(upper)
        opt.step()
        scheduler.step()
    assert torch.equal(weights(raw), weights(by_hand()[0]))


# --- Accelerate ----------------------------------------------------------------------------------------------------


@pytest.fixture
def anew():
    """Accelerate keeps its settings for the life of a process."""
    state = pytest.importorskip("accelerate.state")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


def accelerate_by_hand(dtype):
    """An epoch of the Accelerate example without Accelerate."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    )
    base = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    opt = DynamicBarrier(base, tolerance=0.05, reference=0.0, max_norm=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=200)
    inputs = torch.randn(640, 20)
    for i, x in enumerate(inputs.split(32)):
        y = x[:, :3].sum(dim=1, keepdim=True)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            outputs = model(x)
        lower = torch.nn.functional.mse_loss(outputs.float(), y)
        with opt.lower(lower):
            (lower / 2).backward()
        upper = sum(p.abs().sum() for p in model.parameters())
        with opt.upper(upper):
            (upper / 2).backward()
        if i % 2:
            opt.step()
            scheduler.step()
    return model, opt


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("no", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
@pytest.mark.usefixtures("anew")
def test_accelerate_is_the_plain_loop(precision, dtype, tmp_path, monkeypatch):
    """Half precision is Accelerate's on a GPU: here it gets its scaler by hand."""
    here = example("accelerate")
    loader = here.DataLoader
    monkeypatch.setattr(
        here, "DataLoader", lambda data, batch_size, shuffle: loader(data, batch_size)
    )  # in order
    half = precision == "fp16"
    accelerator = here.Accelerator(
        gradient_accumulation_steps=2,
        cpu=True,
        mixed_precision="no" if half else precision,
    )
    if half:
        accelerator.scaler, accelerator.native_amp = (
            torch.amp.GradScaler("cpu", init_scale=2.0**10),
            True,
        )
        accelerator.state._mixed_precision = "fp16"
    model, opt = here.train(accelerator, 1, str(tmp_path))
    expected, plain = accelerate_by_hand(dtype)
    close = {"rtol": 1e-4, "atol": 1e-5} if not half else {"rtol": 0.01, "atol": 0.002}
    torch.testing.assert_close(weights(model), weights(expected), **close)
    assert opt.count == plain.count == 10
    assert opt.log()["lower_loss"] == pytest.approx(
        plain.log()["lower_loss"], rel=1e-2 if half else 1e-4
    )
    assert not half or accelerator.scaler.get_scale() == 2.0**10


@pytest.mark.usefixtures("anew")
def test_accelerate_clips_the_direction_or_says_how():
    accelerator = example("accelerate").Accelerator(cpu=True)
    layer = torch.nn.Linear(3, 1)
    barrier = DynamicBarrier(
        torch.optim.SGD(layer.parameters(), lr=0.1),
        method=simple_method(regularizer=0.0),
    )
    model, optimizer = accelerator.prepare(layer, barrier)
    for level in (barrier.lower, barrier.upper):
        loss = model(torch.ones(2, 3)).square().mean()
        with level(loss):
            accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(RuntimeError, match=r"or call opt.combine\(\) first"):
        optimizer.step()
    accelerator.backward(
        model(torch.ones(2, 3)).square().mean()
    )  # one loss, outside of both levels
    barrier.zero_grad()
    with pytest.raises(
        RuntimeError, match="no upper gradients in this step: put the backward pass in"
    ):
        optimizer.step()


# --- a Hugging Face Trainer ----------------------------------------------------------------------------------------


def trained(folder, change=lambda trainer: None, **options):
    quiet = {"use_cpu": True, "disable_tqdm": True}
    made = example("trainer").trainer(str(folder), **(quiet | options))
    made.args.num_train_epochs, made.args.save_strategy, made.args.logging_steps = (
        1,
        "no",
        16,
    )
    for module in made.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    change(made)
    made.train()
    return made


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.usefixtures("anew")
def test_a_trainer_is_the_plain_loop(bf16, tmp_path):
    start, seen = [], []

    def record(made):
        start.append(copy.deepcopy(made.model))
        step = made.training_step
        made.training_step = lambda model, inputs, n=None: (
            seen.append(inputs),
            step(model, inputs, n),
        )[1]

    made = trained(tmp_path, record, bf16=bf16)
    model = start[0]
    before = weights(model)
    base = torch.optim.AdamW(model.parameters(), lr=3e-3)
    opt = DynamicBarrier(
        base, tolerance=0.05, reference="start", max_norm=1.0, model=model
    )
    scheduler = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=16)

    def loss(tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return model(input_ids=tokens, labels=tokens).loss

    for i, inputs in enumerate(seen):
        with torch.no_grad(), opt.reference():
            reference = loss(inputs["keep_ids"])
        for level, text, compared in (
            (opt.lower, "keep_ids", {"reference": reference}),
            (opt.upper, "input_ids", {}),
        ):
            found = loss(inputs[text])
            with level(found, **compared):
                (found / 2).backward()
        if i % 2:
            opt.step()
            scheduler.step()
    distance = (weights(made.model) - weights(model)).norm() / (
        weights(model) - before
    ).norm()
    assert distance < (
        0.1 if bf16 else 0.01
    )  # Adam makes much of what bfloat16 rounds off
    assert made.state.global_step == made.barrier.count == opt.count == 16
    logged = made.state.log_history[0]
    assert logged["excess"] == pytest.approx(opt.log()["excess"], rel=1e-2, abs=1e-3)
    assert logged["grad_norm"] <= 1.0 or bf16


@pytest.mark.usefixtures("anew")
def test_a_trainer_without_two_levels_is_told(tmp_path):
    here = example("trainer")

    def one_loss(made):
        made.training_step = here.Trainer.training_step.__get__(made)
        made.args.remove_unused_columns = True
        made.train_dataset = [
            {"input_ids": row["input_ids"], "labels": row["input_ids"]}
            for row in made.train_dataset
        ]

    with pytest.raises(
        RuntimeError, match="no upper gradients in this step: put the backward pass in"
    ):
        trained(tmp_path, one_loss)

    def not_combined(made):
        create = made.create_optimizer

        def create_optimizer(*args, **kwargs):
            create(*args, **kwargs)
            made.barrier.combine = lambda scaler: None
            return made.optimizer

        made.create_optimizer = create_optimizer

    with pytest.raises(RuntimeError, match=r"or call opt.combine\(\) first"):
        trained(tmp_path, not_combined)


# --- two processes -------------------------------------------------------------------------------------------------


def ranks(folder):
    """What each of two processes does, one framework after the other."""
    found = {}
    for name, run in ON_RANKS.items():
        model, opt = run(folder, devices=2)
        found[name] = (
            weights(model),
            {k: v for k, v in opt.log().items() if k != "upper_loss"},
            opt.count,
        )
    with pytest.raises(RuntimeError) as refused:
        lightning_on_ranks(folder, 2, closures)
    found["refused"] = str(refused.value)
    torch.save(found, f"{folder}/{os.environ['RANK']}.pt")


def lightning_on_ranks(folder, devices, change=lambda model: None):
    several = {"strategy": "ddp", "devices": devices} if devices > 1 else {}
    data = example("lightning").loader().dataset
    mine = torch.utils.data.Subset(
        data, range(int(os.environ.get("RANK", "0")), len(data), devices)
    )
    loader = torch.utils.data.DataLoader(mine, batch_size=64 // devices)
    options = several | {
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
    }
    _, model, opt = lightning(folder, change, loader, **options)
    return model, opt


def accelerate_on_ranks(folder, devices):
    here = example("accelerate")
    loader = here.DataLoader
    here.DataLoader = lambda data, batch_size, shuffle: loader(
        data, batch_size
    )  # in order
    accelerator = here.Accelerator(gradient_accumulation_steps=2, cpu=True)
    assert accelerator.num_processes == devices
    return here.train(accelerator, 1, f"{folder}/state")


ON_RANKS = {"lightning": lightning_on_ranks, "accelerate": accelerate_on_ranks}


@pytest.mark.long
@pytest.mark.usefixtures("anew")
def test_two_processes_are_one_with_the_whole_batch(tmp_path):
    for name in NEEDS:
        example(name)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    folders = [str(ROOT / "tests" / name) for name in ("torch", "support")]
    code = f"import sys; sys.path[:0] = {folders!r}; import test_frameworks as t; t.ranks({str(tmp_path)!r})"
    several = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    several |= {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    several |= {
        "TORCHELASTIC_RUN_ID": "here",
        "ACCELERATE_USE_CPU": "true",
        "LOCAL_WORLD_SIZE": "2",
    }  # as torchrun
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | several | {"RANK": r, "LOCAL_RANK": r},
        )
        for r in ("0", "1")
    ]
    try:
        assert [rank.wait(timeout=240) for rank in started] == [0, 0]
    finally:
        for rank in started:
            rank.kill()
    first, second = (torch.load(tmp_path / f"{r}.pt") for r in range(2))
    assert re.search("manual_backward", first["refused"])
    for name, run in ON_RANKS.items():
        model, opt = run(tmp_path, devices=1)
        assert torch.equal(first[name][0], second[name][0])
        assert first[name][1] == second[name][1]
        assert first[name][2] == second[name][2] == opt.count
        torch.testing.assert_close(first[name][0], weights(model), rtol=1e-4, atol=1e-5)
        for key, value in first[name][1].items():
            assert value == pytest.approx(opt.log()[key], rel=1e-3, abs=1e-5), key
