"""`python -m pww.launch bootstrap [site=…]`: prepares this clone for a machine.

    python -m pww.launch bootstrap site=snellius

Makes the folders on the site's scratch, links data and outputs to them, and says what a job would
miss here. Running it again changes nothing. Exit codes: 0 a job can be submitted, 1 something is
missing (each thing on a line), 2 a wrong configuration or something in the way.
"""

import os
import sys
from collections.abc import Sequence

from pww.config import paths
from pww.errors import ConfigError, PwwError


def main(argv: Sequence[str]) -> int:
    """The program: the words after its name in, the exit code out."""
    if not argv or any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0 if argv else 2
    command, *words = argv
    try:
        if command != "bootstrap":
            raise ConfigError([f"{command}: no such command; there is bootstrap"])
        return _bootstrap(words)
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code


def _bootstrap(words: Sequence[str]) -> int:
    from pww.config.load import compose
    from pww.launcher import bootstrap

    config = compose(words)
    for step in bootstrap.bootstrap(config, project=paths.PROJECT):
        print(step.what)
    missing = bootstrap.lacking(config, environ=os.environ)
    for sentence in missing:
        print(sentence, file=sys.stderr)
    print(f"{config.site.name}: {f'{len(missing)} thing(s) missing' if missing else 'ready'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
