"""`python -m pww.doctor [group=choice ...] [key=value ...]`: would a run work from here?

    python -m pww.doctor site=lumi central.url=https://HOST:29510 central.bundle=FOLDER

Takes the words that `python -m pww.train` would take; `json=true` prints one line of JSON. For a
login node, and for the inside of a job. Looks at folders and their quotas, versions, digests of the
corpus and its tokenizer, the queue's limits, whether its signal reaches a rank, and the way to the
central, which it measures for some seconds. Nothing of it stays. Exit codes: 0 usable, 1 something
would stop a run, 2 a wrong configuration.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pww.clock import SystemClock
from pww.errors import PwwError


def main(argv: Sequence[str]) -> int:
    """The program: the words after its name in, the exit code out."""
    from pww.config.load import compose
    from pww.config.shorthand import with_tokenizer
    from pww.launcher.preflight import findings

    if any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0
    words = [word for word in argv if word != "json=true"]
    try:
        config = compose(with_tokenizer(words, here=Path.cwd()))
        found = list(findings(config, clock=SystemClock()))
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    bad = sum(one.state == "bad" for one in found)
    if len(words) < len(argv):
        rows = [asdict(one) for one in found]
        print(json.dumps({"site": config.site.name, "usable": not bad, "findings": rows}))
        return 1 if bad else 0
    marks = {"good": "  ", "warning": "? ", "bad": "! "}
    for one in found:
        print(f"{marks[one.state]}{one.what:<9} {one.told}")
    print(f"{config.site.name}: {f'{bad} thing(s) would stop a run' if bad else 'usable'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
