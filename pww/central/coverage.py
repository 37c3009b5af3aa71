"""Is every block in theta exactly once: counted from what the processes drew, then held to the
books.

The drawers' side: each replica's folder has `draws.jsonl` (windows by delta id, fsynced before the
delta is sent) and, where its inner loop writes one, `batches.jsonl` (every batch, as it is drawn).
The central's side gives one thing only: the ids of the deltas that were merged. A duplicate is a
block that was drawn in two merged deltas, or twice in one; a missing one was drawn in none (with
several epochs: more, or fewer times than there are epochs, whichever epoch it was for). Draws
that never became a delta, and deltas that were not merged, are counted apart: their blocks went
back to the pool.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pww.central.audit import Audit, audit, merged_deltas
from pww.log import read_json_lines

DRAWS, BATCHES = "draws.jsonl", "batches.jsonl"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The outcome; counts are of blocks unless their name says otherwise."""

    blocks: int
    covered: int
    duplicates: int
    missing: int
    shares: Mapping[str, int]  # blocks' worth of windows merged, by replica
    abandoned_windows: int  # drawn in a phase that never became a delta
    rejected_windows: int  # drawn for a delta that was not merged
    differences: tuple[str, ...]  # where the books say something else than the draws
    books: Audit

    @property
    def ok(self) -> bool:
        """Every block exactly once, and the books agree."""
        return not (self.duplicates or self.missing or self.differences)

    def render(self) -> str:
        """The outcome for people."""
        lines = [f"  {who}: {blocks} blocks merged" for who, blocks in sorted(self.shares.items())]
        lines.append(
            f"  drawn and not merged: {self.abandoned_windows} windows of abandoned phases, "
            f"{self.rejected_windows} of rejected deltas; their blocks went back to the pool"
        )
        lines += [f"  the books differ: {each}" for each in self.differences]
        return "\n".join(lines)


def coverage(central: Path, replicas: Mapping[str, Path]) -> Coverage:
    """Joins the draw logs of `replicas` (id: folder) with the merges of the run in `central`.

    Raises:
        StateError: there is no ledger.
    """
    space, merged = merged_deltas(central)
    drawn = Counter[int]()
    merged_windows = dict.fromkeys(replicas, 0)
    abandoned = rejected = 0
    differences = []
    logged = Counter[str]()
    for who, folder in replicas.items():
        in_deltas = Counter[int]()
        for row in read_json_lines(folder / DRAWS):
            windows, delta = cast(list[int], row["windows"]), str(row["delta"])
            in_deltas.update(windows)
            if delta in merged:
                drawn.update(windows)
                logged[delta] += 1
                merged_windows[who] += len(windows)
            else:
                rejected += len(windows)
        if (folder / BATCHES).exists():
            batches = Counter[int]()
            for row in read_json_lines(folder / BATCHES):
                batches.update(cast(list[int], row["windows"]))
            abandoned += (batches - in_deltas).total()
            if invented := (in_deltas - batches).total():
                differences.append(f"{who} offered {invented} windows that it never drew")
    differences += [
        f"merged delta {delta} is in {logged[delta]} rows of the draw logs"
        for delta in sorted(merged)
        if logged[delta] != 1
    ]
    duplicates = missing = covered = 0
    for position in range(space.num_blocks):  # one epoch names every block
        counts = [drawn[window] for window in space.windows(position)]
        duplicates += max(counts) > space.epochs
        missing += min(counts) < space.epochs
        covered += min(counts) >= space.epochs
    shares = {who: -(-count // space.block_windows) for who, count in merged_windows.items()}
    books = audit(central)
    differences += _against_books(books, shares, covered=covered * space.epochs)
    return Coverage(
        blocks=space.num_blocks,
        covered=covered,
        duplicates=duplicates,
        missing=missing,
        shares=shares,
        abandoned_windows=abandoned,
        rejected_windows=rejected,
        differences=tuple(differences),
        books=books,
    )


def _against_books(books: Audit, shares: Mapping[str, int], *, covered: int) -> list[str]:
    """Where `central audit` says something else than the draws."""
    differences = list(books.faults)
    if books.lost or books.doubled:
        differences.append(f"the audit counts {books.lost} lost and {books.doubled} doubled")
    if books.exactly_once != covered:
        differences.append(f"the audit counts {books.exactly_once} blocks, the draws {covered}")
    theirs = {share.replica: share.blocks for share in books.shares}
    for who in sorted({*theirs, *shares}):
        if theirs.get(who, 0) != shares.get(who, 0):
            differences.append(
                f"{who} has {theirs.get(who, 0)} blocks in the books, {shares.get(who, 0)} by its "
                "draws"
            )
    return differences
