"""The central's end of a shared folder: what a site put there wrongly does not stay in its way."""

import threading
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from pww.central.carried import Objects
from pww.clock import ManualClock, SystemClock
from pww.errors import CentralError, Stopped
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.wire import PayloadInfo

DATA = b"of a delta" * 1000
INFO = PayloadInfo(codec="fp32", size_bytes=len(DATA), digest=blake3(DATA).hexdigest())


def test_an_object_of_the_right_size_and_other_bytes_is_removed(tmp_path: Path) -> None:
    there, source = tmp_path / "there", tmp_path / "delta"
    there.mkdir()
    source.write_bytes(DATA)
    carrier = FsspecCarrier(
        f"file://{there}", clock=SystemClock(), stop=threading.Event(),
        random=np.random.default_rng(0),
    )  # fmt: skip
    objects = Objects(carrier, tmp_path / "here", clock=ManualClock(), stop=threading.Event())
    (there / INFO.digest).write_bytes(DATA[::-1])
    assert objects.take(INFO) is None
    carrier.put(source, INFO)  # as the site does that is told to send it again
    path = objects.take(INFO)
    assert path is not None
    assert path.read_bytes() == DATA
    objects.discard(INFO)
    assert not list(there.iterdir())
    assert not path.exists()


def test_what_cannot_be_put_is_tried_again_until_it_can_or_a_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A central that ends because a bucket is away for a minute would lose every site."""
    source, tries = tmp_path / "theta", []
    source.write_bytes(DATA)

    class Away:
        def put(self, path: Path, info: PayloadInfo) -> None:
            tries.append(path)
            if len(tries) < 3:
                raise CentralError("no bucket")

    stop = threading.Event()
    objects = Objects(Away(), tmp_path / "here", clock=ManualClock(), stop=stop)  # type: ignore[arg-type]
    objects.publish(INFO, source)
    assert len(tries) == 3
    assert "a file for the sites cannot be put there: no bucket" in caplog.text
    objects.sweep()
    assert len(tries) == 4, "somebody may have removed it"
    tries.clear()
    stop.set()
    with pytest.raises(Stopped, match="stopped while theta was put where sites fetch it"):
        objects.publish(INFO, source)
