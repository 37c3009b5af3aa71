"""`python -m pww.central`: coordinator and aggregator of one run, in one process or in two.

python -m pww.central data=tinyshakespeare      start, or go on where the state folder stands
python -m pww.central central.roles=[coordinator] …
python -m pww.central central.roles=[aggregator] …
                                                each in its own process of this machine
python -m pww.central audit [FOLDER] [blocks=true]
                                                what the ledger says of a run (default: the newest),
                                                and which delta absorbed each block
python -m pww.central replay [FOLDER] [--without site/replica@round ...]
                                                its merges again, from central.keep_deltas=true
python -m pww.central init|add|revoke …         keys, certificate and bundles (--help says more)
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from pww import log as pww_log
from pww.central import keys_command
from pww.central.roles import ALL, held
from pww.clock import SystemClock
from pww.config import paths
from pww.config.load import run_app
from pww.config.schema import Config
from pww.config.shorthand import with_tokenizer
from pww.config.words import refuse_unknown_command
from pww.data.sources import open_source
from pww.errors import ConfigError, PwwError, StateError, Stopped

log = logging.getLogger("pww.central")


def main(argv: list[str]) -> int:
    """Starts the central, looks at a run, or manages its keys; returns the exit code."""
    try:
        code = _command(argv)
        sys.stdout.flush()
        if code is not None:
            return code
        words = with_tokenizer(argv, here=Path.cwd())
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return Stopped.exit_code
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return run_app(
        _start,
        program="pww.central",
        defaults=("run.name=central-${data.name}",),
        refine=_settle,
        argv=words,
    )


def _command(argv: list[str]) -> int | None:
    """Runs what is no central itself; None: it is to be started."""
    match argv[:1]:
        case ["audit"]:
            return _audit(argv[1:])
        case ["replay"]:
            return _replay(argv[1:])
        case [word] if word in keys_command.COMMANDS:
            return keys_command.run(argv)
    refuse_unknown_command(argv, ("audit", "replay", *keys_command.COMMANDS))
    return None


def _settle(config: Config, given: frozenset[str]) -> Config:
    """Refuses what only a site knows.

    Raises:
        ConfigError: a key that would have no effect here.
    """
    faults = []
    if config.dry:
        faults.append("dry=true: the central queues nothing; --cfg job shows its configuration")
    if config.site.queue.kind == "slurm":
        faults.append(
            f"site={config.site.name}: the central runs where it is started; leave site out"
        )
    if config.resume != "none":
        faults.append(
            f"resume={config.resume}: the central goes on by itself where its folder stands; give "
            "run.name="
        )
    if "central.url" in given:
        faults.append(
            f"central.url={config.central.url}: is a site's; the central has central.host and "
            "central.port"
        )
    if config.central.bundle != "none":
        faults.append(
            f"central.bundle={config.central.bundle}: is a site's; the central has "
            "central.security.keys"
        )
    if faults:
        raise ConfigError(faults)
    return config


def _audit(argv: list[str]) -> int:
    from pww.central.audit import audit, block_lines

    if any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0
    blocks = "blocks=true" in argv
    argv = [word for word in argv if word != "blocks=true"]
    if len(argv) > 1 or any("=" in word for word in argv):
        told = f"audit takes one folder at most and blocks=true, not {' '.join(argv)}"
        print(told, file=sys.stderr)
        return 2
    try:
        folder = Path(argv[0]) if argv else _newest_run(paths.PROJECT / "outputs")
        result = audit(folder)
        for line in block_lines(folder) if blocks else ():
            print(line)
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    print(f"run folder {paths.shown(folder)}")
    print(result.render())
    return 0 if result.ok else 1


def _replay(argv: list[str]) -> int:
    from pww.central.replay import Cut, replay

    if any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0
    folders, without = [], []
    words = iter(argv)
    for word in words:
        if word == "--without":
            without.append(next(words, ""))
        elif word.startswith("--without="):
            without.append(word.partition("=")[2])
        else:
            folders.append(word)
    if len(folders) > 1 or any(word.startswith("-") for word in folders):
        print(
            f"replay takes one folder at most and --without, not {' '.join(folders)}",
            file=sys.stderr,
        )
        return 2
    try:
        cuts = [Cut.parse(text) for text in without]
        folder = Path(folders[0]) if folders else _newest_run(paths.PROJECT / "outputs")
        if not (folder / "central").is_dir():
            raise StateError(f"{folder} is not the run folder of a central: name another one")
        with held(folder, ALL, remedy="its central runs; a replay is for when it has stopped"):
            result = replay(folder, cuts, say=print)
    except OSError as fault:
        print(f"the replay cannot go on: {fault}", file=sys.stderr)
        return 1
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    print(f"theta {paths.shown(result.theta)}")
    print(result.render())
    return 0 if result.ok else 1


def _newest_run(root: Path) -> Path:
    """The run whose ledger was written last; SQLite writes beside the file while it is open."""

    def written_s(ledger: Path) -> float:
        wal = ledger.with_name(f"{ledger.name}-wal")  # a reader may leave an empty one
        files = [ledger, wal] if wal.exists() and wal.stat().st_size else [ledger]
        return max(file.stat().st_mtime for file in files)

    ledgers = list(root.glob("*/central/ledger.sqlite"))
    if not ledgers:
        raise StateError(f"no run with a ledger in {root}: name its folder, audit FOLDER")
    return max(ledgers, key=written_s).parent.parent


def _say_what_is_a_sites(config: Config) -> None:
    """A key that would be refused if it did not come along with those that both sides share."""
    if config.diloco.overlap:
        log.warning(
            "diloco.overlap=true has no effect at the central: each site chooses for itself, in "
            "its own command"
        )


def _look_for_the_corpus(config: Config) -> None:
    """Before torch is loaded and a folder made: who forgot the text shall not wait for that.

    Raises:
        DataError: the text is not there.
    """
    if "coordinator" in config.central.roles and config.central.manifest == "none":
        open_source(config.text, project=paths.PROJECT)


def _start(config: Config) -> int:
    """Serves one run until its corpus is exhausted and every site has been told."""
    roles = config.central.roles
    pww_log.setup(label=roles[0] if len(roles) == 1 else "central")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    _say_what_is_a_sites(config)
    folder = paths.run_folder(config)
    try:
        _look_for_the_corpus(config)
        with held(folder, roles):
            from pww.central.service import serve

            print(serve(config, folder, stop, clock=SystemClock()))
    except OSError as fault:
        log.error(
            "the central cannot go on: %s; make room or mend the folder, start it again", fault
        )
        return 1
    except PwwError as fault:
        log.error("%s", fault)
        return fault.exit_code
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # a server's worker thread may wait for a peer for ever; all that is durable is on disk
    os._exit(code)
