"""Hydra's launcher for sites with a queue; no part of `pww`, which Hydra would not look into."""
