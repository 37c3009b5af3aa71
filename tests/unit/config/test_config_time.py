"""A time limit is hours, minutes and seconds however it was written, or it is refused."""

from pathlib import Path

import pytest

from pww.config.compose import Source
from pww.config.paths import CONF
from pww.config.prepare import prepare
from pww.errors import ConfigError

WORDS = ["site=mine", "site.queue.partition=gpu", "site.ranks_per_node=1"]


def limit(folder: Path, written: str) -> str:
    """What becomes of a site's file with `time: written`."""
    text = (CONF / "site" / "slurm.yaml").read_text()
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "mine.yaml").write_text(text.replace('time: "01:00:00"', f"time: {written}"))
    queue = prepare(WORDS, source=Source(extra_dirs=(folder,))).configs[0].site.queue
    assert queue.kind == "slurm"
    return queue.time


def test_twelve_and_a_half_hours_are_never_45000(tmp_path: Path) -> None:
    """YAML makes a number of base 60 of it, which Slurm would take for minutes."""
    assert limit(tmp_path, '"12:30:00"') == "12:30:00"
    with pytest.raises(ConfigError) as caught:
        limit(tmp_path, "12:30:00")
    assert caught.value.faults == (
        "site.queue.time=45000: [days-]hours:minutes:seconds, in quotes",
    )


def test_on_the_command_line_it_needs_no_quotes() -> None:
    words = ["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=1"]
    queue = prepare([*words, "site.queue.time=12:30:00"]).configs[0].site.queue
    assert queue.kind == "slurm"
    assert queue.time == "12:30:00"
