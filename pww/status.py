"""`python -m pww.status`: where a run stands, as a table; `watch=true` keeps it up to date.

    python -m pww.status                                   the newest central of this project folder
    python -m pww.status FOLDER                            the central of that run folder
    python -m pww.status url=https://HOST:29510 bundle=DIR from a site, with its bundle

    watch=true      again every two seconds, until Ctrl-C or the end of the run
    json=true       what the central says, as one line of JSON

The answer is the central's own (`GET /status`), read with the operator's token or a site's key.
"""

import json
import secrets
import ssl
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pww.clock import SystemClock
from pww.config import paths
from pww.errors import CentralError, ConfigError, PwwError, StateError, Unreachable

if TYPE_CHECKING:
    from rich.console import Group

EVERY_S = 2.0
TIMEOUT_S = 10.0
WORDS = ("url", "bundle", "watch", "json")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for."""

    folder: Path | None
    url: str
    bundle: str
    watch: bool
    json: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a central answers, by what it lets one look, and what to do if it does not."""

    url: str
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    remedy: str = "start it with python -m pww.central, or give the right url= (and bundle=)"


def main(argv: list[str]) -> int:
    """Shows the status and returns the exit code: 0 when the central answered."""
    if any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0
    place = Place("")
    try:
        asked = _read(argv)
        place = _from_url(asked) if asked.url else _from_folder(asked.folder or _newest())
        return _show(place, asked)
    except KeyboardInterrupt:
        return 130
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as why:
        print(
            f"what answers at {place.url} is no pww central of this version ({why!r})",
            file=sys.stderr,
        )
        return 1
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code


def _read(argv: list[str]) -> Asked:
    """The words of the command line.

    Raises:
        ConfigError: every word that is not understood.
    """
    given: dict[str, str] = {}
    folders, faults = [], []
    for word in argv:
        key, equals, value = word.partition("=")
        if not equals:
            folders.append(word)
        elif key not in WORDS:
            faults.append(f"{word}: no such word; there are FOLDER, {', '.join(WORDS)}")
        elif key in given:
            faults.append(f"{word}: given twice")
        else:
            given[key] = value
    faults += [
        f"{key}={given[key]}: true or false"
        for key in ("watch", "json")
        if given.get(key, "false") not in ("true", "false")
    ]
    if len(folders) > 1:
        faults.append(f"{' '.join(folders)}: one folder at most")
    if folders and "url" in given:
        faults.append(f"{folders[0]}: a folder or url=, not both")
    if "bundle" in given and "url" not in given:
        faults.append(f"bundle={given['bundle']}: goes with url=")
    if faults:
        raise ConfigError(faults)
    return Asked(
        folder=Path(folders[0]) if folders else None,
        url=given.get("url", ""),
        bundle=given.get("bundle", ""),
        watch=given.get("watch") == "true",
        json=given.get("json") == "true",
    )


# ------------------------------------------------------------------------------------------ where


def _newest() -> Path:
    ledgers = list((paths.PROJECT / "outputs").glob("*/central/ledger.sqlite"))
    configs = [ledger.parents[1] for ledger in ledgers if ledger.with_name("central.json").exists()]
    if not configs:
        raise StateError(
            "no central was started in this project folder: name its run folder, or give "
            "url=https://HOST:PORT and bundle=FOLDER"
        )
    return max(configs, key=lambda folder: (folder / "central/central.json").stat().st_mtime)


def _from_folder(folder: Path) -> Place:
    """The central that serves this run folder, by the file that it leaves there.

    Raises:
        StateError: none was ever started in it.
    """
    path = folder / "central" / "central.json"
    try:
        told = json.loads(path.read_text())
        url, keys = str(told["url"]), str(told["keys"])
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise StateError(
            f"{folder} is not the folder of a central that was started ({why}): name another one, "
            "or give url="
        ) from why
    remedy = (
        f"that of {paths.shown(folder)} has ended or was stopped; python -m pww.central audit "
        f"{paths.shown(folder)} says how far it came"
    )
    if keys == "none":
        return Place(url, remedy=remedy)
    try:
        token = (Path(keys) / "operator.token").read_text().strip()
        tls = ssl.create_default_context(cafile=f"{keys}/ca.pem")
        return Place(url, f"Bearer {token}", tls, remedy)
    except (OSError, ValueError) as why:
        raise StateError(f"the keys of this central cannot be read: {why}") from why


def _from_url(asked: Asked) -> Place:
    if not asked.bundle:
        return Place(asked.url.rstrip("/"))
    from pww.transport.bundle import Bundle
    from pww.transport.site_key import Opened

    folder = Path(asked.bundle)
    keys = sorted(folder.glob("*.key.pem"))
    if not keys:
        raise StateError(f"{folder} holds no key: give bundle= the folder of a site's bundle")
    replica = f"{_site_of(folder)}/{keys[0].name.removesuffix('.key.pem')}"
    bundle = Bundle.read(folder, replica=replica, clock=SystemClock())
    place = Place(asked.url.rstrip("/"), tls=bundle.tls)
    opening = bundle.key.open(replica, secrets.token_hex(16)).model_dump_json()
    opened = Opened.model_validate_json(_ask(place, "POST", "/v1/open", opening))
    return Place(place.url, f"Bearer {opened.token}", place.tls)


def _site_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / "central.json").read_text())["site"])
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise StateError(f"{folder} is no bundle ({why}): copy it anew from the central") from why


def _ask(place: Place, method: str, path: str, body: str = "") -> bytes:
    """One request.

    Raises:
        Unreachable: no answer.
        CentralError: the answer is a refusal, or not a central's.
    """
    import httpx

    headers = {"authorization": place.authorization} if place.authorization else {}
    try:
        reply = httpx.request(
            method, place.url + path, content=body or None, headers=headers, timeout=TIMEOUT_S,
            verify=True if place.tls is None else place.tls,
        )  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL) as why:
        raise Unreachable(f"no central answers at {place.url} ({why}): {place.remedy}") from why
    if reply.status_code != 200:
        try:
            told = str(reply.json()["message"])
        except (ValueError, KeyError, TypeError):
            told = "it does not look like a pww central"
        raise CentralError(f"{place.url}{path}: HTTP {reply.status_code}: {told:.500}")
    return reply.content


# ------------------------------------------------------------------------------------------- shown


def _show(place: Place, asked: Asked) -> int:
    def status() -> dict[str, Any]:
        told = _ask(place, "GET", "/status")
        try:
            return dict(json.loads(told))
        except (ValueError, TypeError) as why:
            raise CentralError(f"{place.url}/status is not a pww central's ({why})") from why

    if asked.json:
        print(json.dumps(status()), flush=True)
        return 0
    from rich.console import Console
    from rich.live import Live

    wide = None if sys.stdout.isatty() else 200  # a file has no width
    console, clock, never = Console(width=wide), SystemClock(), threading.Event()
    first = status()
    if not asked.watch:
        console.print(_rendered(first))
        return 0
    if not console.is_terminal:  # one table after the other
        while not first["complete"]:
            console.print(_rendered(first))
            clock.wait(never, EVERY_S)
            first = status()
        console.print(_rendered(first))
        return 0
    with Live(_rendered(first), console=console, auto_refresh=False) as live:
        while not first["complete"]:
            clock.wait(never, EVERY_S)
            try:
                first = status()
            except Unreachable as why:
                live.console.print(f"{why}; asking again")
                continue
            live.update(_rendered(first), refresh=True)
    return 0


def _rendered(status: dict[str, Any]) -> "Group":
    from rich.console import Group
    from rich.table import Table

    blocks = status["coverage"]
    share = blocks["committed"] / blocks["blocks"]
    left = "complete" if status["complete"] else _time(status["left_s"])
    head = Table.grid(padding=(0, 2))
    for name, value in (
        ("run", status["run"]),
        ("round", f"{status['round']}  ({status['merges']} merges)"),
        ("loss", f"{status['loss']:.4f}" if status["round"] else "-"),
        ("tokens", f"{status['tokens']:,}"),
        (
            "blocks",
            f"{blocks['committed']:,} of {blocks['blocks']:,} committed ({share:.1%}), "
            f"{blocks['leased']:,} leased, {blocks['unassigned']:,} free, "
            f"{blocks['quarantined']:,} set aside",
        ),
        ("deltas", f"{status['pending_deltas']} without a verdict"),
        ("time left", left),
    ):
        head.add_row(f"[bold]{name}", value)
    table = Table(title="replicas", title_justify="left", box=None, pad_edge=False)
    for name in (
        "replica", "state", "process", "seen", "lease", "H", "tokens/s", "MFU", "TFLOP/s", "memory",
        "loss", "drift", "stale", "up", "down", "rate", "blocks in",
    ):  # fmt: skip
        justify: Literal["left", "right"] = "left" if name in ("replica", "state") else "right"
        table.add_column(name, justify=justify, no_wrap=name == "replica")
    for member in status["members"]:
        phase = member["phase"]
        spans = [f"{x['start']}-{x['stop']}" + _mark(x) for x in member["leases"]]
        table.add_row(
            member["replica"], member["state"], member["incarnation"],
            f"{member['last_seen_s']:.0f} s", " ".join(spans) or "-", str(phase["steps"]),
            f"{phase['tokens_per_s']:,.0f}", f"{phase['mfu']:.1%}" if phase["mfu"] else "-",
            f"{phase['tflops']:,.3g}" if phase["tflops"] else "-", _size(phase["memory_bytes"]),
            f"{phase['loss']:.3f}", f"{phase['drift']:.4f}", str(phase["staleness"]),
            _size(phase["bytes_up"]), _size(phase["bytes_down"]), _rates(phase),
            f"{member['committed']:,}",
        )  # fmt: skip
    return Group(head, table)


def _mark(lease: dict[str, Any]) -> str:
    """`+`: its delta is here; `~`: not started yet."""
    if lease["received"]:
        return "+"
    return "" if lease["watermark"] == lease["stop"] else "~"


def _size(size_bytes: float) -> str:
    """In the unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}" if size_bytes else "-"
        size_bytes /= 1000
    return f"{size_bytes:,.3g} TB"


def _rates(phase: dict[str, Any]) -> str:
    """How fast a carrier moved payloads, up and down; "-" where they lie beside messages."""
    both = (phase["up_bytes_per_s"], phase["down_bytes_per_s"])
    return "/".join(f"{_size(one)}/s" if one else "-" for one in both) if any(both) else "-"


def _time(seconds: float) -> str:
    if seconds < 0:
        return "unknown: no replica was measured yet"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
