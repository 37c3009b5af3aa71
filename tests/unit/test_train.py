"""What `pww.train` refuses besides the configuration's own faults."""

from pathlib import Path

import pytest

from pww.config.load import compose
from pww.errors import ConfigError
from pww.train import settle


def test_overlap_is_for_who_has_a_central(tmp_path: Path) -> None:
    words = ("diloco.overlap=true", f"run.root={tmp_path}")
    with pytest.raises(ConfigError) as fault:
        settle(compose(words), frozenset())
    assert list(fault.value.faults) == [
        "diloco.overlap=true: a replica alone has no network to hide and would only use each theta "
        "a phase late; give central.url=https://HOST:PORT, or leave it out"
    ]
    config = compose((*words, "central.url=http://127.0.0.1:29510"))
    assert settle(config, frozenset()).diloco.overlap
    assert not compose().diloco.overlap
