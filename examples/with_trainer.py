"""With a Hugging Face Trainer
===========================

Run it: ``python examples/with_trainer.py`` (needs transformers and accelerate; downloads nothing).

Fine-tune on new text, and keep the loss on old text within 0.05 of where it started: the old text is the lower loss and
comes first. The trainer's own accumulation, clipping, schedule, logs and checkpoints stay as they are.
"""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tiebreak.torch import DynamicBarrier


class KeepingTrainer(Trainer):
    """Each example has `input_ids`, to be learnt, and `keep_ids`, not to be forgotten."""

    def create_optimizer(self, *args, **kwargs):
        if not isinstance(self.optimizer, DynamicBarrier):
            base = super().create_optimizer(*args, **kwargs)
            everybody = (
                torch.distributed.group.WORLD
            )  # with several processes each has the whole model
            self.optimizer = self.barrier = DynamicBarrier(
                base,
                tolerance=0.05,
                reference="start",
                model=self.model,
                process_group=everybody,
            )
        return self.optimizer

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs, n = (
            self._prepare_inputs(inputs),
            self.current_gradient_accumulation_steps,
        )
        with self.compute_loss_context_manager():  # mixed precision
            with (
                torch.no_grad(),
                self.barrier.reference(),
            ):  # the model as it was at the start, on the same batch
                start = self.loss(model, inputs["keep_ids"])
            lower = self.loss(model, inputs["keep_ids"])
        with self.barrier.lower(lower, reference=start):
            self.accelerator.backward(lower / n)
        with self.compute_loss_context_manager():
            upper = self.loss(model, inputs["input_ids"])
        with self.barrier.upper(upper):
            self.accelerator.backward(upper / n)
        if self.accelerator.sync_gradients:  # the last micro-batch: the trainer is about to look at .grad, and to clip it
            self.barrier.combine(self.accelerator.scaler)
        return upper.detach() / n

    def loss(self, model, tokens):
        return model(input_ids=tokens, labels=tokens).loss

    def log(self, logs, *args, **kwargs):
        if "loss" in logs and self.barrier.last is not None:
            logs |= self.barrier.log()  # losses, excess, multiplier, …
        super().log(logs, *args, **kwargs)


def texts(lines: int) -> list[dict[str, torch.Tensor]]:
    count = torch.arange(8) + torch.randint(
        0, 16, (lines, 1)
    )  # old text counts up, new text counts down, elsewhere
    return [{"input_ids": 31 - line % 16, "keep_ids": line % 16} for line in count]


def pretrained() -> GPT2LMHeadModel:
    """A model that knows the old text; yours comes from somewhere."""
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=8, n_embd=32, n_layer=2, n_head=2, **ends)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        tokens = torch.stack([text["keep_ids"] for text in texts(32)])
        model(input_ids=tokens, labels=tokens).loss.backward()
        opt.step()
        opt.zero_grad()
    return model


def trainer(folder: str, **options) -> KeepingTrainer:
    model = pretrained()
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,  # clips the direction
        learning_rate=3e-3,
        num_train_epochs=8,
        save_steps=0.5,
        logging_steps=32,
        remove_unused_columns=False,  # `keep_ids` is no argument of the model
        report_to="none",
        **options,
    )
    return KeepingTrainer(model=model, args=arguments, train_dataset=texts(512))


def main() -> None:
    folder = (
        tempfile.mkdtemp() if len(sys.argv) < 2 else sys.argv[1]
    )  # several processes need one in common
    whole = trainer(folder, use_cpu=True, disable_tqdm=True)
    whole.train()
    half = whole.state.global_step // 2
    resumed = trainer(folder, use_cpu=True, disable_tqdm=True)
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-{half}")
    same = all(
        torch.equal(p, q)
        for p, q in zip(
            whole.model.parameters(), resumed.model.parameters(), strict=True
        )
    )
    print(
        f"resumed after {half} steps of {resumed.state.global_step}; equal, bit for bit: {same}"
    )


if __name__ == "__main__":
    main()
