"""The end of a run: theta under a name that stays, beside the numbers that it is known by."""

import os
import shutil
from pathlib import Path

from pww.central.generations import Generation
from pww.errors import StateError
from pww.folder import sync_folder, write_durably

FOLDER = "final"


def publish_final(generation: Generation, run: Path) -> Path:
    """Puts a run's last theta into `run/final/theta.safetensors`; durable, and safe to repeat.

    A hard link where the disk has them. `final/theta.json` holds round, state hash, size and
    digest.

    Raises:
        StateError: the disk refused.
    """
    folder = run / FOLDER
    theta, part = folder / "theta.safetensors", folder / "theta.safetensors.part"
    try:
        folder.mkdir(exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            os.link(generation.theta, part)
        except OSError:  # a disk without links
            shutil.copyfile(generation.theta, part)
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(theta)
        sync_folder(folder)
        info = generation.info.model_dump_json(indent=1, exclude={"momentum_fingerprint"})
        write_durably(folder / "theta.json", info.encode())
        sync_folder(run)
    except OSError as why:
        raise StateError(
            f"the final theta could not be written to {folder}: {why}. The run is complete and its "
            f"theta is {generation.theta}: make room and start the central once more"
        ) from why
    return theta
