"""crew_ranks.py FOLDER URL: three ranks upload FOLDER/delta0, then FOLDER/delta1 while one dies.

FOLDER/rows.json tells what each rank brought.
"""

import json
import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from blob_desk import QUICK
from forked import in_ranks
from tiny import tiny_config

from pww.clock import SystemClock
from pww.replica import crew as crews
from pww.replica.crew import crew_of
from pww.trainer.ranks import Ranks, init_ranks
from pww.transport import blob_crew
from pww.transport.blob import BlobCarrier
from pww.transport.crew import Crew
from pww.wire import PayloadInfo

OVER = {"site.outbound": "all", "central.url": "http://127.0.0.1:1", "parallel.ranks": 3}


class Heard:
    """A crew, and what it was asked last."""

    def __init__(self, crew: Crew) -> None:
        self.crew, self.size = crew, crew.size

    def begin(self, errands: Any) -> Any:
        self.asked = self.crew.begin(errands)
        return self.asked


def upload(folder: Path, url: str, *, dies: bool) -> None:
    config, clock = tiny_config(OVER), SystemClock()
    init_ranks(config)
    ranks = Ranks()
    path = folder / f"delta{int(dies)}"
    if dies:
        blob_crew.ASK_S, blob_crew.STILL_S = 0.1, 1.0
        if ranks.rank == 2:
            crews.carry = lambda *_, **words: os._exit(9)  # type: ignore[assignment]
    with ExitStack() as stack:
        crew = crew_of(config, ranks, run=folder, clock=clock, stack=stack)
        if crew is None and dies:
            while not path.with_suffix(".there").exists():
                clock.wait(threading.Event(), 0.05)
            return

        heard: list[Heard] = []

        def put() -> None:
            assert crew is not None
            heard.append(Heard(crew))
            data = path.read_bytes()
            info = PayloadInfo(codec="fp32", size_bytes=len(data), digest=blake3(data).hexdigest())
            client = BlobCarrier(
                url, clock=clock, stop=ranks.asked, random=np.random.default_rng(0), tuning=QUICK,
                crew=heard[0],  # type: ignore[arg-type]
            )  # fmt: skip
            client.put(path, info)
            path.with_suffix(".there").touch()

        if dies:  # nobody may be waited for: a collective would
            put()
        else:
            ranks.share(put)
        if ranks.rank == 0:
            rows = {report.rank: report.bytes_up for report in heard[0].asked.reports()}
            path.with_suffix(".json").write_text(json.dumps(rows))
    if not dies:
        ranks.close()


if __name__ == "__main__":
    place, where = Path(sys.argv[1]), sys.argv[2]
    tiny_config()
    assert in_ranks(3, lambda: upload(place, where, dies=False)) == [0, 0, 0]
    assert in_ranks(3, lambda: upload(place, where, dies=True)) == [0, 0, 9]
