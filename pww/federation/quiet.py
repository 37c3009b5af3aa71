"""Makes flwr quiet before any of it is imported: no telemetry, update check or own console.

flwr reads both switches at import, sets its logger to DEBUG and gives it a handler. Its warnings go
to our log, except what it calls an error on every request that it refuses: strangers could fill a
disk with those, and what matters of them is said by us, with the replica's name.
"""

import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import flwr.supercore.logger  # sets flwr's logger up, once: so what follows stays
import flwr.supercore.telemetry  # the same for its telemetry logger

_PER_REQUEST = ("[ApiError:", "Failed to store Message reply")


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not any(mark in text for mark in _PER_REQUEST)


for _name in ("flwr", "flwr-telemetry", "alembic"):
    _logger = logging.getLogger(_name)
    _logger.setLevel(logging.WARNING)
    _logger.handlers.clear()
logging.getLogger("flwr").addFilter(_is_news)

# Where something imported flwr before us, the switch was read already.
flwr.supercore.telemetry.FLWR_TELEMETRY_ENABLED = "0"
