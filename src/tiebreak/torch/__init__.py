"""PyTorch: an optimizer that keeps one loss optimal and improves another among what is left."""

from tiebreak.torch.optimizer import DynamicBarrier, Step
from tiebreak.torch.sdbgd import SDBGD

__all__ = ["SDBGD", "DynamicBarrier", "Step"]
