"""The tests of the blob store share the programs' desk."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "programs"))
