"""Compressed both ways, carried every way: real processes, kills, the same bits on all sides."""

import json
import sys
from pathlib import Path

import pytest
from conftest import NursedProject

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from federation import Federation, mid_phase

from pww.config.check_codec import AVERAGING

ROWS = "4000"
WHOLE = 4 * 8000
"""Bytes of theta, about."""
WAYS = {
    "blob": ("transport=blob", "transport.down=int8", "codec=int8", "central.keep_deltas=true"),
    "messages": ("transport=inline", "transport.down=int4", "codec=int4"),
    "both": ("transport=auto", "transport.limit_mb=1", "transport.down=bf16", "codec=fp16"),
    "file": ("transport=file", "transport.down=int8", "codec=topk", *AVERAGING.split()),
}


def told(federation: Federation, name: str) -> list[dict[str, object]]:
    return [row for row in federation.rows(name, "outer") if "bytes_received" in row]


def check_hashes(federation: Federation, names: str) -> None:
    """Every theta that a site evaluated is the central's of that round, to the bit."""
    final = json.loads((federation.project.outputs / "central/final/theta.json").read_text())
    rows = [row for name in names for row in federation.rows(name, "eval")]
    by_round: dict[object, set[object]] = {}
    for row in rows:
        by_round.setdefault(row["round"], set()).add(row["state_hash"])
    assert all(len(hashes) == 1 for hashes in by_round.values()), by_round
    assert by_round[final["round"]] == {final["state_hash"]}


@pytest.mark.parametrize("way", list(WAYS))
def test_two_sites_have_the_centrals_bits_with_few_bytes(
    nursed: NursedProject, free_ports: tuple[int, int], way: str
) -> None:
    shared = nursed.outputs / "shared"
    url = [f"transport.url=file://{shared}"] if way == "file" else []
    federation = Federation(nursed, free_ports, *WAYS[way], *url)
    central = federation.central()
    sites = [federation.site(name, STEP_S="0.02", ROWS=ROWS) for name in "ab"]
    assert [site.wait() for site in sites] == [0, 0], sites[0].text() + sites[1].text()
    assert central.wait() == 0, central.text()
    federation.check_exactly_once()
    check_hashes(federation, "ab")
    for name, site in zip("ab", sites, strict=True):
        assert "downloaded whole" not in site.text(), "an update led elsewhere"
        rows = told(federation, name)
        assert rows
        assert all(0 < row["bytes_received"] < 0.8 * WHOLE for row in rows), rows  # type: ignore[operator]
        assert all(row["bytes_sent"] < 0.6 * WHOLE for row in rows)  # type: ignore[operator]
        assert all(row["retries"] >= 0 for row in rows)  # type: ignore[operator]
        assert sum(row["theta_updates"] for row in rows) > 0  # type: ignore[misc]
        assert not any(row["theta_repairs"] for row in rows)
    assert all(row["retries"] == 0 for row in federation.rows("central", "outer"))
    state = nursed.outputs / "central/central"
    objects = state / "blobs/objects"
    assert not objects.exists() or not list(objects.iterdir()), "what is merged is not kept"
    if way == "file":
        final = json.loads((nursed.outputs / "central/final/theta.json").read_text())
        (own,) = shared.iterdir()  # a run's own part: others may have theirs beside it
        assert final["state_hash"] in {path.name for path in own.iterdir()}
        chain = {path.stem for path in (state / "updates").glob("*.payload")}
        names = {path.name for path in own.iterdir()}
        # theta, the one before for who is still at it, and their updates
        assert 1 + len(chain) <= len(names) <= 3 + len(chain), "what is merged is not kept"
    if way == "blob":
        replayed = nursed.run("-m", "pww.central", "replay", "outputs/central")
        assert "the run's theta, bit for bit" in replayed.stdout


def test_kills_on_both_sides_change_no_bit(
    nursed: NursedProject, free_ports: tuple[int, int]
) -> None:
    """A site goes on from the theta on its disk; the central from its residual and chain."""
    federation = Federation(nursed, free_ports, *WAYS["blob"])
    central = federation.central()
    a = federation.site("a", STEP_S="0.05", ROWS=ROWS)
    b = federation.site("b", STEP_S="0.05", ROWS=ROWS)
    b.until(lambda: mid_phase(federation, "b"))
    b.kill()
    central.kill()
    central = federation.central()
    again = federation.site("b", STEP_S="0.02", ROWS=ROWS)
    assert [a.wait(), again.wait(), central.wait()] == [0, 0, 0]
    federation.check_exactly_once()
    check_hashes(federation, "ab")
    assert "downloaded whole" not in a.text() + again.text()
    replayed = nursed.run("-m", "pww.central", "replay", "outputs/central")
    assert "the run's theta, bit for bit" in replayed.stdout


def test_a_spoiled_theta_on_a_sites_disk_is_repaired(
    nursed: NursedProject, free_ports: tuple[int, int]
) -> None:
    federation = Federation(nursed, free_ports, *WAYS["blob"])
    central = federation.central()
    a = federation.site("a", STEP_S="0.05", ROWS=ROWS)
    a.until(lambda: mid_phase(federation, "a"))
    newest = sorted((nursed.outputs / "a/theta").glob("theta-*"))[-1]
    data = bytearray(newest.read_bytes())
    data[-2] ^= 1
    newest.write_bytes(bytes(data))
    assert a.wait() == 0
    assert central.wait() == 0
    check_hashes(federation, "a")


def test_the_centrals_codec_holds_for_every_site(
    nursed: NursedProject, free_ports: tuple[int, int]
) -> None:
    federation = Federation(nursed, free_ports, "codec=int8")
    central = federation.central()
    a = federation.site("a", "codec=fp32", ROWS=ROWS)
    assert [a.wait(), central.wait()] == [0, 0]
    assert "deltas travel as int8: the central's codec, not fp32" in a.text()
    assert all(row["bytes_sent"] < 0.5 * WHOLE for row in federation.rows("a", "outer"))  # type: ignore[operator]
    federation.check_exactly_once()
