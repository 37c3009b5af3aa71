"""One run served: the roles that the configuration names, in this process, until it is complete.

Coordinator and aggregator in one process share the books; each alone is in `coordinating` and
`merging`. What a role does not need (torch, Flower) is imported only where it runs.
"""

import logging
import threading
from contextlib import ExitStack
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config

log = logging.getLogger(__name__)


def serve(config: Config, folder: Path, stop: threading.Event, *, clock: Clock) -> str:
    """Serves the run in `folder` to its end and returns what to tell a person.

    Raises:
        StateError: a port is taken, the folder belongs to other data, or the run is complete.
        Stopped: `stop` was set before the end.
    """
    roles = config.central.roles
    if "aggregator" not in roles:
        from pww.central.coordinating import serve_coordinator

        return serve_coordinator(config, folder, stop, clock=clock)
    if "coordinator" not in roles:
        from pww.central.merging import serve_aggregator

        return serve_aggregator(config, folder, stop, clock=clock)
    return _serve_both(config, folder, stop, clock=clock)


def _serve_both(config: Config, folder: Path, stop: threading.Event, *, clock: Clock) -> str:
    """Coordinator and aggregator over one memory."""
    from pww.central.coordinating import open_books, write_address
    from pww.central.door import Door
    from pww.central.http import CoordinatorApp
    from pww.central.listening import listen
    from pww.central.merging import open_link, open_merger
    from pww.central.same_settings import tell_changes

    with ExitStack() as stack:
        ports = listen(config, stack)
        state = folder / "central"
        state.mkdir(parents=True, exist_ok=True)
        door = None if ports.keys is None else Door.of(ports.keys, state=state, clock=clock)
        link = open_link(config, state, stack, guard=door)
        desk = open_books(config, state, stack, clock=clock, ports=ports, members=link)
        tell_changes(config, folder)
        paths.freeze(config, folder)
        merger = open_merger(
            config, folder, desk.books, link, stack, clock=clock, stop=stop, ports=ports
        )
        app = CoordinatorApp(desk.books, door, clock=clock)
        stack.callback(app.close)
        blobs = merger.blob_app(stack, door=door)
        stack.callback(ports.stop)  # nothing comes in when what answers is taken down
        stack.enter_context(link.run())
        ports.serve(leases=app, fleet=link.app, blobs=blobs)
        write_address(state, ports)
        log.info(
            "run %s serves %s (leases) and :%d (Flower): %d blocks, round %d",
            config.run.name, ports.url, ports.fleet_port, desk.space.num_positions,
            desk.books.round,
        )  # fmt: skip
        return merger.serve(stop)
