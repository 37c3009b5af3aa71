"""A folder of keys, a clock to move, and a door over both."""

import dataclasses
from pathlib import Path

import pytest

from pww.central import credentials
from pww.central.door import Door
from pww.clock import ManualClock, SystemClock
from pww.transport.site_key import SiteKey, read_key


@dataclasses.dataclass
class Gatehouse:
    """A central's keys and state, and what its sites have."""

    folder: Path
    state: Path
    clock: ManualClock

    def door(self) -> Door:
        return Door.of(self.folder, state=self.state, clock=self.clock)

    def key(self, replica: str) -> SiteKey:
        site, _, name = replica.partition("/")
        pem = (self.folder / "bundles" / site / f"{name}.key.pem").read_bytes()
        return SiteKey(read_key(pem, name="test", remedy="none"), clock=self.clock)


@pytest.fixture
def house(tmp_path: Path) -> Gatehouse:
    state = tmp_path / "state"
    state.mkdir()
    credentials.init(
        tmp_path / "keys", hosts=["central.example"], replicas=["lumi/a", "lumi/b", "sara/a"],
        port=29510, clock=SystemClock(),
    )  # fmt: skip
    return Gatehouse(tmp_path / "keys", state, ManualClock(1000.0))
