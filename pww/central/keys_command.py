"""`python -m pww.central init | add | revoke`: keys, certificate and bundles, from the words typed.

    init   [host=NAME,IP] [replicas=SITE/NAME,…] [folder=…] [port=…]    once
    add    [replicas=SITE/NAME,…] [host=NAME,IP] [folder=…] [port=…]    more replicas, more hosts
    revoke replica=SITE/NAME | site=SITE [folder=…]                     obeyed at once

host      names and addresses that sites reach the central by; loopback is always among them
replicas  for each a key, in a bundle for its site: copy it there, then delete it here
folder    where the keys are (default: outputs/central-keys); relative paths start at the project
          folder
port      of the central, for the bundles' URL (default: central.port)
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pww.central import credentials
from pww.clock import SystemClock
from pww.config import paths
from pww.config.load import compose
from pww.errors import ConfigError, PwwError

COMMANDS = ("init", "add", "revoke")
DEFAULT_FOLDER = "outputs/central-keys"
WORDS = {
    "init": ("host", "replicas", "folder", "port"),
    "add": ("host", "replicas", "folder", "port"),
    "revoke": ("replica", "site", "folder"),
}


def run(argv: Sequence[str]) -> int:
    """Runs `init`, `add` or `revoke` and returns the exit code."""
    command, *words = argv
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    try:
        values = _values(command, words)
        folder = paths.PROJECT / values["folder"]
        match command:
            case "revoke":
                print(_revoked(folder, values))
            case _:
                print(_made(command, folder, values))
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    return 0


def _values(command: str, words: Sequence[str]) -> dict[str, str]:
    """The words' values; "" where there is none.

    Raises:
        ConfigError: a word that the command does not know, or knows but once.
    """
    values = dict.fromkeys(WORDS[command], "")
    faults = []
    for word in words:
        key, equals, value = word.partition("=")
        if key not in values or not equals or not value:
            known = ", ".join(f"{name}=…" for name in values)
            faults.append(f"{word}: {command} takes {known}")
        elif values[key]:
            faults.append(f"{word}: given twice; separate several values by commas")
        else:
            values[key] = value
    port = values.get("port", "")
    if port and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        faults.append(f"port={port}: 1 to 65535")
    if command == "add" and not faults and not (values["replicas"] or values["host"]):
        faults.append("add: give replicas=SITE/NAME,… or host=NAME,…")
    if command == "revoke" and not faults and bool(values["replica"]) == bool(values["site"]):
        faults.append("revoke: give either replica=SITE/NAME or site=SITE")
    if faults:
        raise ConfigError(faults)
    values["folder"] = values["folder"] or DEFAULT_FOLDER
    return values


def _made(command: str, folder: Path, values: dict[str, str]) -> str:
    port = int(values["port"]) if values["port"] else compose([]).central.port
    make = credentials.init if command == "init" else credentials.add
    made = make(
        folder,
        hosts=_list(values["host"]),
        replicas=_list(values["replicas"]),
        port=port,
        clock=SystemClock(),
    )
    keys = paths.shown(folder)
    hosts = ", ".join((*made.hosts, "loopback"))
    lines = [f"keys         {keys} (certificate for {hosts})"]
    lines += [f"bundle       {paths.shown(one)}" for one in made.bundles]
    host = made.hosts[0] if made.hosts else "127.0.0.1"
    listens = "" if not made.hosts else "central.host=0.0.0.0 "
    lines.append(f"the central  python -m pww.central {listens}central.security.keys={keys} …")
    if made.bundles:
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        lines.append(f"a site       python -m pww.train central.url={url} central.bundle=FOLDER …")
        lines.append("copy each bundle to its site over a channel that you trust, then delete it")
    if command == "add" and values["host"]:
        lines.append("start the central again: it shows the new certificate from then on")
    return "\n".join(lines)


def _revoked(folder: Path, values: dict[str, str]) -> str:
    gone = credentials.revoke(folder, replica=values["replica"], site=values["site"])
    return f"revoked {', '.join(gone)}; a running central refuses them from now on"


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part.strip()]
