"""What a wheel of this project has: its configuration, and the launcher that Hydra looks for."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

PROJECT = Path(__file__).parents[2]
FOUND = """
import sys
clone = sys.argv[1]
sys.path = [path for path in sys.path if path not in (clone, f"{clone}/launch")]  # editable
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
import pww
print(pww.__file__)
modules = {launcher.__module__ for launcher in Plugins.instance().discover(Launcher)}
ours = "hydra_plugins.pww_launcher.launcher"
print(sys.modules[ours].__file__ if ours in modules else modules)
"""


def test_hydra_finds_the_launcher_in_a_wheel(tmp_path: Path) -> None:
    built = next(WheelBuilder(str(PROJECT)).build(directory=str(tmp_path), versions=["standard"]))
    site = tmp_path / "site"
    with zipfile.ZipFile(built) as wheel:
        wheel.extractall(site)
    away = tmp_path / "away"  # a folder without a clone
    away.mkdir()

    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=away, env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    package, launcher = said("-c", FOUND, str(PROJECT)).splitlines()
    assert package == str(site / "pww" / "__init__.py")
    assert launcher == str(site / "hydra_plugins" / "pww_launcher" / "launcher.py")
    words = ["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=2", "dry=true"]
    script = said("-m", "pww.train", *words)
    assert "#SBATCH --partition=gpu" in script
