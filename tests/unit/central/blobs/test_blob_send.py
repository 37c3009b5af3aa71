"""Objects on their way out: sums are right, computed once, and only so many are kept."""

import asyncio
import os
import threading

import google_crc32c
import httpx
import numpy as np
import pytest
from blob_desk import Desk, made

from pww.central import blob_send
from pww.central.blob_http import MOVERS
from pww.central.blob_send import Sums
from pww.errors import PayloadError
from pww.transport.blob_wire import CRC
from pww.transport.file_part import FilePart

DATA = np.random.default_rng(0).bytes(700_001)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    fd = os.open(tmp_path / "file", os.O_RDWR)
    yield fd
    os.close(fd)


def damage(file):
    """As a disk does it: nothing else tells."""
    seen = os.fstat(file)
    os.pwrite(file, bytes(10), 0)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def test_a_range_is_read_once_and_its_sum_is_of_its_digest(file):
    sums = Sums()
    spans = [(0, 700_001), (5, 262_150), (262_144, 700_000), (9, 9)]
    right = [google_crc32c.value(DATA[start:stop]) for start, stop in spans]
    assert [sums.of("a", FilePart(file, *span)) for span in spans] == right
    damage(file)
    assert [sums.of("a", FilePart(file, *span)) for span in spans] == right
    os.ftruncate(file, 0)
    with pytest.raises(PayloadError, match="the file became shorter while it was sent"):
        sums.of("b", FilePart(file, *spans[0]))


def test_only_the_last_sums_are_kept(file, monkeypatch):
    monkeypatch.setattr(blob_send, "MAX_KEPT", 3)
    sums = Sums()
    for start in range(5):
        sums.of("a", FilePart(file, start, 10))
    damage(file)
    assert sums.of("a", FilePart(file, 4, 10)) == google_crc32c.value(DATA[4:10])
    assert sums.of("a", FilePart(file, 1, 10)) != google_crc32c.value(DATA[1:10])


def test_a_file_that_was_mended_is_summed_anew(file):
    """Or what was damaged once could never be downloaded again."""
    sums = Sums()
    damage(file)
    assert sums.of("a", FilePart(file, 0, 10)) != google_crc32c.value(DATA[:10])
    os.pwrite(file, DATA, 0)
    os.utime(file, ns=(1, 1))
    assert sums.of("a", FilePart(file, 0, 10)) == google_crc32c.value(DATA[:10])


def test_a_read_that_waits_keeps_no_transfer_waiting(tmp_path):
    """All transfers share the few threads that move bytes: the disk is waited for in others."""
    desk, go, sent = Desk.open(tmp_path), threading.Event(), []
    path, info = made(tmp_path, 1)
    desk.store.publish(info, path)
    scope = {
        "type": "http", "method": "GET", "path": f"/v1/blobs/{info.digest}",
        "headers": [(b"range", b"bytes=1-")],
    }  # fmt: skip

    async def send(event):
        sent.append(event)

    try:
        for _ in range(MOVERS):
            desk.app._movers.submit(go.wait, 60)
        asyncio.run(asyncio.wait_for(desk.app(scope, None, send), 20))
        head, *rest = sent
        body = b"".join(event["body"] for event in rest)
        assert dict(head["headers"])[CRC.encode()] == b"%08x" % google_crc32c.value(body)
        assert body == path.read_bytes()[1:]
    finally:
        go.set()
        desk.close()


def test_what_is_too_long_to_sum_before_it_is_sent_goes_without(tmp_path, monkeypatch):
    monkeypatch.setattr(blob_send, "MOST_SUMMED", 1000)
    desk = Desk.open(tmp_path)
    path, info = made(tmp_path, 1)
    desk.store.publish(info, path)
    try:
        with httpx.Client(base_url=desk.url, trust_env=False) as http:
            for size, told in ((1000, True), (1001, False)):
                got = http.get(f"/v1/blobs/{info.digest}", headers={"range": f"bytes=0-{size - 1}"})
                assert (len(got.content), CRC in got.headers) == (size, told)
    finally:
        desk.close()
