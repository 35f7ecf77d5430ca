"""With Accelerate
===============

Run it: ``python examples/with_accelerate.py``, or ``accelerate launch`` it on several processes.

The squared error may end 0.05 above zero, which is what training on it alone reaches; that is spent on small weights.
With micro-batches, clipping, a schedule, and a state that is saved half way and resumed.
"""

import sys
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from tiebreak.torch import DynamicBarrier


def train(
    accelerator: Accelerator, epochs: int, folder: str, resume: bool = False
) -> tuple[torch.nn.Module, DynamicBarrier]:
    set_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    )
    model = accelerator.prepare(
        model
    )  # first: under several processes the barrier looks at its wrapper
    base = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    barrier = DynamicBarrier(base, tolerance=0.05, reference=0.0, model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        barrier, T_max=200 * accelerator.num_processes
    )
    inputs = torch.randn(640, 20)
    data = TensorDataset(inputs, inputs[:, :3].sum(dim=1, keepdim=True))
    loader = DataLoader(data, batch_size=32 // accelerator.num_processes, shuffle=True)
    optimizer, loader, scheduler = accelerator.prepare(barrier, loader, scheduler)
    first = 0
    if resume:
        accelerator.load_state(folder)
        first = barrier.count // (
            len(loader) // accelerator.gradient_accumulation_steps
        )
    for epoch in range(first, epochs):
        loader.set_epoch(epoch)
        for x, y in loader:
            with accelerator.accumulate(model):
                # `barrier` has the levels, `optimizer` around it steps: only when all micro-batches are there
                lower = torch.nn.functional.mse_loss(model(x), y)
                with barrier.lower(lower):
                    accelerator.backward(lower)
                upper = sum(p.abs().sum() for p in model.parameters())
                with barrier.upper(upper):
                    accelerator.backward(upper)
                if accelerator.sync_gradients:
                    barrier.combine(
                        accelerator.scaler
                    )  # the direction, in .grad, to be clipped
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    accelerator.save_state(folder)
    found = (
        barrier.log()
    )  # for a tracker: accelerator.log(barrier.log(), step=barrier.count)
    accelerator.print(
        f"step {barrier.count}: lower loss {found['lower_loss']:.3f}, excess {found['excess']:.2f}"
    )
    return accelerator.unwrap_model(model), barrier


def main() -> None:
    folder = tempfile.mkdtemp() if len(sys.argv) < 2 else sys.argv[1]
    models = []
    for epochs, resume in ((20, False), (10, False), (20, True)):
        seeded = DataLoaderConfiguration(
            use_seedable_sampler=True
        )  # an epoch's batches depend on its number alone
        accelerator = Accelerator(
            gradient_accumulation_steps=2, dataloader_config=seeded, cpu=True
        )
        models.append(train(accelerator, epochs, folder, resume)[0])
        accelerator.free_memory()
    whole, _, resumed = (
        torch.nn.utils.parameters_to_vector(model.parameters()) for model in models
    )
    print("stopped and resumed; equal, bit for bit:", torch.equal(whole, resumed))


if __name__ == "__main__":
    main()
