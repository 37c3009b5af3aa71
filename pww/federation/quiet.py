"""Makes flwr quiet before any of it is imported: no telemetry, update check or own console.

flwr reads both switches at import, sets its logger to DEBUG and gives it a handler; its warnings
are for our log.
"""

import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import flwr.supercore.logger  # sets flwr's logger up, once: so what follows stays
import flwr.supercore.telemetry  # the same for its telemetry logger

for _name in ("flwr", "flwr-telemetry", "alembic"):
    _logger = logging.getLogger(_name)
    _logger.setLevel(logging.WARNING)
    _logger.handlers.clear()

assert flwr.supercore.telemetry.FLWR_TELEMETRY_ENABLED == "0", "flwr was imported before pww"
