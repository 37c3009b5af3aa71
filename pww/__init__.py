"""pww: one model, trained on several supercomputers that never talk to each other."""

__version__ = "0.1.0"
