"""`python -m pww.lab`: studies of low-communication training on one machine."""

import sys

from pww.lab.app import start

if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
