"""The inner state of one moment in memory, so that its files can be written beside the next phase.

The same files as `inner_state.save` makes: torch plans and serialises them at the step boundary, by
all ranks at once, into memory. To write them needs no other rank, so it can be left to a thread.
Memory: one more copy of this rank's optimiser state, until it is written.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint.state_dict_saver as saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

from pww.errors import CheckpointError, PwwError
from pww.folder import sync_folder
from pww.trainer import inner_state
from pww.trainer.inner_state import FILE, FORMAT, Disk, Inner
from pww.trainer.ranks import Ranks


@dataclass(frozen=True, slots=True)
class InnerFiles:
    """This rank's files, by name."""

    files: Mapping[str, memoryview]

    def write(self, folder: Path) -> None:
        """Writes them into `folder`, durably. Any thread may; other ranks write theirs there.

        Raises:
            CheckpointError: the disk refused.
        """
        disk = Disk()
        try:
            folder.mkdir(exist_ok=True)
            for name, data in self.files.items():
                with disk.create_stream(folder / name, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
            sync_folder(folder)
        except OSError as why:
            raise inner_state.unwritable(folder, why) from why


def copied(optimizers: Any, *, step: int, ranks: Ranks) -> InnerFiles:
    """Collective: the state as it is now; the optimisers may go on at once.

    Raises:
        CheckpointError: on every rank: there is no memory for it, say.
    """
    fresh = inner_state.is_fresh(optimizers)
    writer = _Writer()
    fault: PwwError | None = None
    try:
        saver.save(
            inner_state.stored(optimizers, ranks.rank), storage_writer=writer,
            process_group=ranks.group,
        )  # fmt: skip
    except CheckpointException as why:
        fault = CheckpointError(
            f"cannot copy the inner state ({inner_state.reason(why)}); diloco.overlap=false writes "
            "it without a copy"
        )
    ranks.agree_on_fault(fault)
    files = {name: stream.getbuffer() for name, stream in writer.memory.files.items()}
    if ranks.rank == 0:
        inner = Inner(FORMAT, step, ranks.world, fresh)
        files[FILE] = memoryview((json.dumps(asdict(inner)) + "\n").encode())
    return InnerFiles(files)


class _Writer(FileSystemWriter):
    """Torch's writer, into memory."""

    def __init__(self) -> None:
        super().__init__("inner", sync_files=False, overwrite=False)
        self.memory = _Memory()
        self.fs = self.memory


class _Kept(io.BytesIO):
    """A stream that torch may close: its bytes are wanted afterwards."""

    def close(self) -> None:
        """Keeps them."""


class _Memory(FileSystem):
    """A folder that is nowhere."""

    def __init__(self) -> None:
        self.files: dict[str, _Kept] = {}

    @contextmanager
    def create_stream(self, path: str | PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """A file that stays when it is closed."""
        assert mode == "wb", "this folder is for writing"
        stream = self.files[Path(path).name] = _Kept()
        yield stream

    def mkdir(self, path: str | PathLike[str]) -> None:
        """There is no folder to be made."""

    def exists(self, path: str | PathLike[str]) -> bool:
        """Whether a file was made."""
        return Path(path).name in self.files

    def rename(self, path: str | PathLike[str], new_path: str | PathLike[str]) -> None:
        """Another name for a file."""
        self.files[Path(new_path).name] = self.files.pop(Path(path).name)
