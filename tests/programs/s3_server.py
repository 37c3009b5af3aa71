"""An S3 server for tests: rclone's, which is in the dev extra; buckets are folders of FOLDER."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pww.transport.tls import ServerTls

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-secret"


def options(url: str) -> dict[str, object]:
    """What s3fs needs to reach it."""
    return {
        "key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": url},
        "use_listings_cache": False,
    }  # fmt: skip


@contextmanager
def s3_server(folder: Path, *, tls: ServerTls | None = None) -> Iterator[str]:
    """Its URL, while it runs."""
    secured = ["--cert", str(tls.certificate), "--key", str(tls.key)] if tls else []
    rclone = Path(sys.executable).with_name("rclone")
    found = str(rclone) if rclone.exists() else shutil.which("rclone")
    assert found, "pip install '.[dev]' brings rclone"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen(
        [found, "serve", "s3", "--auth-key", f"{KEY},{SECRET}", "--addr", f"127.0.0.1:{port}",
         "--config", str(folder / "none.conf"), *secured, str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "RCLONE_CACHE_DIR": str(folder / ".cache")},
    )  # fmt: skip
    try:
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
                time.sleep(0.02)
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()
