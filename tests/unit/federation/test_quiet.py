"""flwr is silent about itself, and its refusals of strangers do not fill our log."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pww.federation
from pww.federation.superlink import EmbeddedSuperLink

PROBE = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(message)s")
import pww.federation.superlink, pww.federation.fleet
import flwr.supercore.telemetry as t
print("telemetry", t.FLWR_TELEMETRY_ENABLED)
log = logging.getLogger("flwr")
log.info("chatter"); log.warning("news")
log.error("[%s][ApiError:%s] %s", "/v1/fleet/x", 1002, "stranger")
"""


def test_nothing_but_warnings_reaches_the_root_logger() -> None:
    # Telemetry is on for whoever does not switch it off; a user's setting must not bring it back.
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": "1"}
    root = str(Path(pww.federation.__file__).parents[2])
    env["PYTHONPATH"] = root
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("flwr", "telemetry"))]
    assert lines == ["telemetry 0", "flwr news"]


def test_opening_the_database_leaves_the_loggers_quiet(tmp_path: Path) -> None:
    link = EmbeddedSuperLink(tmp_path, limit_mb=1)
    link.close()
    for name in ("flwr", "alembic"):
        assert logging.getLogger(name).level == logging.WARNING
