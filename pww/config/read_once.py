"""Hydra's repository of YAML files, each parsed once however many jobs a sweep composes.

Parsing is half of what composing a job costs, and every job reads the same two dozen files.
"""

import copy
from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult


class ReadOnce(ConfigRepository):
    """As its base; what was read stays, and each caller gets a copy to change."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        self._read: dict[str, ConfigResult | None] = {}
        super().__init__(config_search_path)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReadOnce":
        """Hydra copies it for each job; what was read is shared between the copies."""
        return copy.copy(self)

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """With other folders (`hydra.searchpath`) nothing that was read holds, in this copy."""
        self._read = {}
        super().initialize_sources(config_search_path)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A file, or None if there is none of this name."""
        if config_path not in self._read:
            self._read[config_path] = super().load_config(config_path)
        return copy.deepcopy(self._read[config_path])
