"""Configuration: Hydra's tree becomes one frozen, checked `Config`."""

from pww.config.load import compose, read_config, run_app

__all__ = ["compose", "read_config", "run_app"]
