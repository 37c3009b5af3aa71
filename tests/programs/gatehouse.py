"""A folder of keys as `pww.central init` makes it, a clock, and a door over both: for tests."""

import dataclasses
from pathlib import Path

from pww.central import credentials
from pww.central.door import Door
from pww.clock import Clock, SystemClock
from pww.transport.bundle import Bundle
from pww.transport.site_key import SiteKey


@dataclasses.dataclass
class Gatehouse:
    """A central's keys and state, and what its sites have."""

    folder: Path
    state: Path
    clock: Clock

    @classmethod
    def build(cls, folder: Path, clock: Clock) -> "Gatehouse":
        """Keys for lumi/a, lumi/b and sara/a, a certificate for central.example and loopback."""
        (folder / "state").mkdir()
        credentials.init(
            folder / "keys", hosts=["central.example"], replicas=["lumi/a", "lumi/b", "sara/a"],
            port=29510, clock=SystemClock(),
        )  # fmt: skip
        return cls(folder / "keys", folder / "state", clock)

    def bundle(self, replica: str) -> Bundle:
        site = replica.partition("/")[0]
        return Bundle.read(self.folder / "bundles" / site, replica=replica, clock=self.clock)

    def door(self) -> Door:
        return Door.of(self.folder, state=self.state, clock=self.clock)

    def key(self, replica: str) -> SiteKey:
        return self.bundle(replica).key
