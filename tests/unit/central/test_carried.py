"""The central's end of a shared folder: what a site put there wrongly does not stay in its way."""

import hashlib
import threading
from pathlib import Path

import numpy as np

from pww.central.carried import Objects
from pww.clock import SystemClock
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.wire import PayloadInfo

DATA = b"of a delta" * 1000
INFO = PayloadInfo(codec="fp32", size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())


def test_an_object_of_the_right_size_and_other_bytes_is_removed(tmp_path: Path) -> None:
    there, source = tmp_path / "there", tmp_path / "delta"
    there.mkdir()
    source.write_bytes(DATA)
    carrier = FsspecCarrier(
        f"file://{there}", clock=SystemClock(), stop=threading.Event(),
        random=np.random.default_rng(0),
    )  # fmt: skip
    objects = Objects(carrier, tmp_path / "here")
    (there / INFO.sha256).write_bytes(DATA[::-1])
    assert objects.take(INFO) is None
    carrier.put(source, INFO)  # as the site does that is told to send it again
    path = objects.take(INFO)
    assert path is not None
    assert path.read_bytes() == DATA
    objects.discard(INFO)
    assert not list(there.iterdir())
    assert not path.exists()
