"""With Lightning, manual optimization
===================================

Run it: ``python examples/with_lightning.py`` (needs pytorch-lightning, or lightning).

Keep the fit within a tolerance of what training on it alone reaches, and spend the tolerance on small weights. Stopped
half way and resumed, it ends where it would have ended.
"""

import tempfile

import pytorch_lightning as pl  # or: import lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from tiebreak.torch import DynamicBarrier


class Sparse(pl.LightningModule):
    def __init__(self, micro_batches: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False  # there are two losses
        self.micro_batches = micro_batches
        self.net = torch.nn.Sequential(
            torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )

    def fit_loss(self, batch):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.net(inputs), targets)

    def training_step(self, batch, batch_idx):
        opt, n = self.optimizers(), self.micro_batches
        with (
            opt.reference()
        ):  # the twin: it trains on the lower loss alone, beside the model
            reference = self.fit_loss(batch)
            self.manual_backward(reference / n)
        lower = self.fit_loss(batch)
        with opt.lower(lower, reference=reference):
            self.manual_backward(lower / n)
        upper = sum(p.abs().sum() for p in self.net.parameters())
        with opt.upper(upper):
            self.manual_backward(upper / n)
        if (batch_idx + 1) % n == 0:  # Lightning does not accumulate here: you do
            opt.step()
            self.lr_schedulers().step()
            self.log_dict(opt.log())  # losses, excess, multiplier, …

    def configure_optimizers(self):
        base = torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)
        everybody = (
            torch.distributed.group.WORLD
        )  # with several processes each has the whole model
        options = {"max_norm": 1.0, "process_group": everybody}  # clips the direction
        opt = DynamicBarrier(
            base, tolerance=0.05, reference="twin", model=self, **options
        )
        return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=240)]


def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(960, 20, generator=generator)
    targets = inputs[:, :3].sum(dim=1, keepdim=True) + 0.1 * torch.randn(
        960, 1, generator=generator
    )
    return DataLoader(TensorDataset(inputs, targets), batch_size=64)


def train(
    folder: str, epochs: int, resume: str | None = None, **options
) -> tuple[pl.Trainer, Sparse]:
    pl.seed_everything(0, verbose=False)
    model = Sparse()
    trainer = pl.Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        accelerator="cpu",
        enable_model_summary=False,
        **options,
    )
    trainer.fit(model, loader(), ckpt_path=resume)
    return trainer, model


def main() -> None:
    quiet = {"enable_progress_bar": False, "logger": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer, whole = train(folder, epochs=16, **quiet)
        found = {
            name: float(trainer.logged_metrics[name])
            for name in ("lower_loss", "upper_loss", "excess")
        }
        print(f"after {trainer.global_step} steps:", found)
        half, _ = train(folder, epochs=8, **quiet)
        path = half.checkpoint_callback.best_model_path
        print(f"stopped after {half.global_step} steps")
        trainer, resumed = train(folder, epochs=16, resume=path, **quiet)
    print(
        f"resumed to {trainer.global_step}; equal, bit for bit:",
        torch.equal(*map(weights, (whole, resumed))),
    )


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters())


if __name__ == "__main__":
    main()
