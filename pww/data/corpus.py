"""The corpus: tokenised once, cached, then windows by id. The entrance to this package.

`prepare` is safe to call from any number of processes at once; they all get the same corpus.
"""

import hashlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pww.clock import Clock, SystemClock
from pww.config.schema import Data
from pww.data.build import TOKENIZER_FILE, build, padded
from pww.data.cache import is_being_built, published
from pww.data.inputs import tokenizer_path
from pww.data.kept import SUFFIX
from pww.data.manifest import FILE, TOOL, Manifest, canonical_json, read_manifest
from pww.data.shards import Ids, Shards, Windows
from pww.data.sources import Source, open_source
from pww.data.tokenizer import TextTokenizer
from pww.errors import DataError, WorkerLost

_log = logging.getLogger(__name__)


class Corpus:
    """A tokenised corpus on disk. Training and held-out windows have their own ids, each from 0."""

    def __init__(self, folder: Path) -> None:
        """Opens a published corpus; nothing is read but the manifest and the shards' headers.

        Raises:
            DataError: manifest and shards do not fit each other.
        """
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder / FILE)
        self._training = self._open("training")
        self._held_out = self._open("held-out")

    @property
    def tokenizer_file(self) -> Path:
        """The canonical `tokenizer.json`."""
        return self.folder / TOKENIZER_FILE

    def windows(self, ids: Ids) -> Windows:
        """Training windows, int64 `[num_ids, window_tokens]`: inputs `[:, :-1]`, targets `[:, 1:]`.

        Raises:
            DataError: an id is not in `[0, manifest.num_windows)`.
        """
        return self._known(self._training.read(ids))

    def expect(self, ids: Ids) -> None:
        """Has training windows read ahead, as far as the machine does such things; never raises."""
        self._training.expect(ids)

    def held_out(self, ids: Ids) -> Windows:
        """Held-out windows, like `windows`.

        Raises:
            DataError: an id is not in `[0, manifest.num_held_out)`.
        """
        return self._known(self._held_out.read(ids))

    def decode(self, window: Sequence[int]) -> str:
        """The text of one window; a character that its edge cuts shows as U+FFFD.

        Raises:
            DataError: the tokenizer beside the shards is not the manifest's.
        """
        return self._tokenizer.decode([int(token) for token in window])

    def check(self, *, seq_len: int, vocab_multiple: int) -> None:
        """Passes if this corpus was made for these settings.

        Raises:
            DataError: it was not; the message has both values.
        """
        made = self.manifest
        rows = padded(made.vocab_size, vocab_multiple)
        for what, found, wanted in (
            ("tool", made.tool, TOOL),
            ("seq_len", made.seq_len, seq_len),
            ("padded vocabulary", made.padded_vocab, rows),
        ):
            if found != wanted:
                raise DataError(
                    f"{self.folder / FILE} has {what} {found}, this run needs {wanted};"
                    f" delete {self.folder} and start again"
                )

    def _known(self, windows: Windows) -> Windows:
        """Passes what the vocabulary has: a damaged shard would be trained on without a word."""
        largest, size = int(windows.max(initial=0)), self.manifest.vocab_size
        if largest >= size:
            raise DataError(
                f"a shard of {self.folder} is damaged: it holds token {largest}, its vocabulary has"
                f" {size:,}; delete {self.folder} and start again"
            )
        return windows

    def _open(self, what: str) -> Shards:
        made = self.manifest
        shards, num = (
            (made.shards, made.num_windows)
            if what == "training"
            else (made.held_out, made.num_held_out)
        )
        opened = Shards(
            self.folder, shards, window_tokens=made.window_tokens, dtype=made.dtype, what=what
        )
        if len(opened) != num:
            raise DataError(
                f"{self.folder / FILE} counts {num:,} {what} windows, its shards hold"
                f" {len(opened):,}; delete {self.folder} and start again"
            )
        return opened

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        path = self.tokenizer_file
        remedy = f"delete {self.folder} and start again"
        try:
            data = path.read_bytes()
        except OSError as fault:
            raise DataError(f"cannot read {path}: {fault.strerror}; {remedy}") from None
        digest = hashlib.sha256(data).hexdigest()
        if digest != self.manifest.tokenizer:
            raise DataError(
                f"{path} has digest {digest}, its manifest says {self.manifest.tokenizer}; {remedy}"
            )
        return TextTokenizer(data, origin=str(path))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the corpus of some settings is or will be, and what it is made of."""

    entry: Path
    source: Source
    tokenizer_path: Path | None

    @property
    def kept(self) -> Path:
        """Finished pieces of a build that is not finished."""
        return self.entry.with_name(f"{self.entry.name}{SUFFIX}")


def locate(data: Data, *, seq_len: int, vocab_multiple: int, project: Path) -> Place:
    """The entry of the cache: `<project>/<data.cache>/<data.name>-<key>`.

    The key is a digest of all that decides the result.

    Raises:
        DataError: the text or the tokenizer is not there.
    """
    source = open_source(data, project=project)
    given = tokenizer_path(data, project)
    settings = {
        "tool": TOOL,
        "source": source.fingerprint(),
        "tokenizer": _tokenizer_key(data, given),
        "seq_len": seq_len,
        "vocab_multiple": vocab_multiple,
        "held_out": data.held_out,
        "max_windows": data.max_windows,
    }
    key = hashlib.sha256(canonical_json(settings)).hexdigest()[:16]
    entry = project / Path(data.cache).expanduser() / f"{data.name}-{key}"
    return Place(entry, source, given)


def prepare(
    data: Data,
    *,
    seq_len: int,
    vocab_multiple: int,
    project: Path,
    clock: Clock = SystemClock(),
    place: Place | None = None,
) -> Corpus:
    """The tokenised corpus that `data` names: from the cache if it is there, else built now.

    A build that is cut off leaves nothing that a later call takes for a corpus; what it finished is
    not done again. `place` is what `locate` gave for the same settings, which reads all of the text
    once, if it was asked already.

    Raises:
        DataError: text, tokenizer or cache cannot be used, or there is too little text.
    """
    place = place or locate(data, seq_len=seq_len, vocab_multiple=vocab_multiple, project=project)

    def make(folder: Path) -> None:
        started = clock.monotonic()
        _tell_of_others(place)
        try:
            made = build(
                folder,
                place.source,
                data,
                kept_folder=place.kept,
                project=project,
                tokenizer_path=place.tokenizer_path,
                seq_len=seq_len,
                vocab_multiple=vocab_multiple,
                clock=clock,
            )
        except WorkerLost:
            raise
        except DataError:  # the text must change first, and then it is another corpus
            shutil.rmtree(place.kept, ignore_errors=True)
            raise
        _log.info(
            "tokenised %s in %.1f s: %s tokens, %s windows and %s held out, vocabulary %s",
            data.name,
            clock.monotonic() - started,
            f"{made.num_tokens:,}",
            f"{made.num_windows:,}",
            f"{made.num_held_out:,}",
            f"{made.vocab_size:,}",
        )

    if place.entry.is_dir():
        _log.info("corpus %s was tokenised already", data.name)
    published(place.entry, build=make, clock=clock)
    if place.kept.exists():
        shutil.rmtree(place.kept, ignore_errors=True)
    return _opened(place, seq_len=seq_len, vocab_multiple=vocab_multiple)


def find(data: Data, *, seq_len: int, vocab_multiple: int, project: Path, command: str) -> Corpus:
    """The tokenised corpus that `prepare` would give, if it is there already.

    Raises:
        DataError: it is not; the message has the `command` that makes it.
    """
    place = locate(data, seq_len=seq_len, vocab_multiple=vocab_multiple, project=project)
    if not place.entry.is_dir():
        began = " (a build was begun and cut off)" if place.kept.exists() else ""
        raise DataError(
            f"corpus {data.name!r} is not tokenised for these settings: there is no"
            f" {place.entry}{began}; make it with: {command}"
        )
    return _opened(place, seq_len=seq_len, vocab_multiple=vocab_multiple)


def _opened(place: Place, *, seq_len: int, vocab_multiple: int) -> Corpus:
    corpus = Corpus(place.entry)
    corpus.check(seq_len=seq_len, vocab_multiple=vocab_multiple)
    return corpus


def _tell_of_others(place: Place) -> None:
    """Says where unfinished builds of other settings lie: only a person knows if they go on."""
    for folder in sorted(place.entry.parent.glob(f"*{SUFFIX}")):
        if folder == place.kept:
            continue
        if is_being_built(folder.with_name(folder.name.removesuffix(SUFFIX))):
            _log.info("%s is in use by another process, which makes that corpus", folder)
        else:
            _log.info(
                "%s is of an unfinished build with other settings; delete it if it will not go on",
                folder,
            )


def _tokenizer_key(data: Data, path: Path | None) -> dict[str, object]:
    """What decides the tokenizer: its settings, or its file's digest."""
    if path is None:
        return data.tokenizer.model_dump()
    try:
        return {"kind": "file", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    except OSError as fault:
        raise DataError(f"cannot read tokenizer {path}: {fault.strerror}") from None
