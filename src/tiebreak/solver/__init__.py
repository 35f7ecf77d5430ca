"""The NumPy solver: arguments, budget, the loop, the history and checkpoints."""
