"""PyTorch: an optimizer that keeps one loss optimal and improves another among what is left."""

try:
    import torch as _torch  # noqa: F401  # for the message alone
except ImportError as error:
    from tiebreak.checks import install

    raise ImportError(f"tiebreak.torch needs PyTorch: {install('torch')}") from error

from tiebreak.torch.batches import Batch, GrowingBatches
from tiebreak.torch.loggers import CSVLog, Log, Progress
from tiebreak.torch.optimizer import DynamicBarrier
from tiebreak.torch.paper import SDBGD
from tiebreak.torch.step_info import Step

__all__ = [
    "SDBGD",
    "Batch",
    "CSVLog",
    "DynamicBarrier",
    "GrowingBatches",
    "Log",
    "Progress",
    "Step",
]
