"""The central as a service: one port or two, its end, what it shows, a corpus it only knows of."""

import json
import resource
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from conftest import NursedProject, Project

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from federation import Federation, mid_phase, replay


@pytest.fixture
def federation(nursed: NursedProject, free_ports: tuple[int, int]) -> Federation:
    return Federation(nursed, free_ports)


def test_both_services_on_one_port(federation: Federation) -> None:
    federation.ports = (federation.ports[0], federation.ports[0])
    central = federation.central()
    sites = [federation.site(name, STEP_S="0.01") for name in ("a", "b")]
    assert [site.wait() for site in sites] == [0, 0]
    assert central.wait() == 0
    federation.check_exactly_once()
    replay(federation)


def test_a_site_that_was_cut_off_at_the_end_is_told(federation: Federation) -> None:
    """It was silent when the last block came in; the central is still there when it comes back."""
    central = federation.central("central.linger_s=60")
    a = federation.site("a", STEP_S="0.03")
    b = federation.site("b", STEP_S="0.03")
    b.until(lambda: mid_phase(federation, "b"))
    b.signal(signal.SIGSTOP)
    assert a.wait() == 0
    central.until(lambda: "waiting 60 s for local/b, which did not say goodbye" in central.text())
    assert central.process.poll() is None
    b.signal(signal.SIGCONT)
    assert b.wait() == 0
    assert "corpus" in b.text()
    assert central.wait() == 0
    federation.check_exactly_once()


def test_a_complete_central_that_is_started_again_tells_who_was_not_told(
    federation: Federation,
) -> None:
    central = federation.central("central.linger_s=0")
    a = federation.site("a", STEP_S="0.03")
    b = federation.site("b", STEP_S="0.03")
    b.until(lambda: mid_phase(federation, "b"))
    b.signal(signal.SIGSTOP)
    assert a.wait() == 0
    assert central.wait() == 0
    again = federation.central("central.linger_s=60")
    again.until(lambda: "did not say goodbye" in again.text())
    b.signal(signal.SIGCONT)
    assert b.wait() == 0
    assert again.wait() == 0
    federation.check_exactly_once()
    last = federation.central("central.linger_s=60")
    assert last.wait(60) == 1
    assert "is complete" in last.text()


def test_status_shows_a_run_that_goes_on(federation: Federation) -> None:
    nobody = federation.project.run(
        "-m", "pww.status", f"url=http://127.0.0.1:{federation.ports[0]}"
    )
    assert nobody.returncode == 1
    assert "no central answers at" in nobody.stderr
    central = federation.central()
    a = federation.site("a", STEP_S="0.1")
    central.until(lambda: federation.merges() >= 2)
    shown = federation.project.run("-m", "pww.status")
    assert shown.returncode == 0, shown.stderr
    assert "local/a" in shown.stdout
    assert "committed" in shown.stdout
    told = json.loads(federation.project.run("-m", "pww.status", "json=true").stdout)
    (member,) = told["members"]
    assert told["round"] >= 2
    assert member["phase"]["steps"] == 20
    assert member["phase"]["tokens_per_s"] > 0
    assert told["tokens"] == told["committed_windows"] * 64
    assert told["left_s"] > 0
    watcher = federation.project.start("-m", "pww.status", "watch=true", name="watcher")
    watcher.until(lambda: watcher.text().count("local/a") >= 2)
    watcher.kill()
    assert a.wait() == 0
    assert central.wait() == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["wotch=true"], "wotch=true: no such word; there are FOLDER, url, bundle, watch, json"),
        (["watch=yes"], "watch=yes: true or false"),
        (["a", "b"], "a b: one folder at most"),
        (["outputs/nothing"], "is not the folder of a central that was started"),
        (["bundle=x"], "bundle=x: goes with url="),
        (["url=http://x", "outputs"], "outputs: a folder or url=, not both"),
        (["watch=true", "watch=true"], "watch=true: given twice"),
        (["url=nonsense"], "no central answers at nonsense"),
        (["url=https://127.0.0.1:1", "bundle=nowhere"], "nowhere holds no key"),
    ],
)
def test_status_says_what_it_does_not_understand(nursed: NursedProject, words, told) -> None:
    ended = nursed.run("-m", "pww.status", *words)
    assert ended.returncode in (1, 2)
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_status_starts_fast_and_helps(project: Project) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    helped = project.run("-m", "pww.status", "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert helped.returncode == 0
    assert "watch=true" in helped.stdout
    assert after.ru_utime - before.ru_utime < 1.5


def test_a_central_needs_no_more_than_the_manifest(federation: Federation) -> None:
    # the cache of all tests may have other corpora too
    first = federation.central("data.cache=outputs/alone")
    a = federation.site("a", "data.cache=outputs/alone")
    assert a.wait() == 0
    assert first.wait() == 0
    outputs = federation.project.outputs
    (manifest,) = outputs.glob("alone/**/manifest.json")
    copy = federation.project.folder / "manifest-copy.json"
    shutil.copy(manifest, copy)
    try:
        central = federation.central(
            "run.name=other", "central.manifest=manifest-copy.json", "data.cache=outputs/none"
        )
        b = federation.site("b", STEP_S="0.01")
        assert b.wait() == 0
        assert central.wait() == 0
        assert not (outputs / "none").exists()
    finally:
        copy.unlink()


def test_open_connections_do_not_take_the_centrals_files(federation: Federation) -> None:
    """A low soft limit of open files is raised as far as it may be."""
    script = federation.project.folder / "few_files.py"
    script.write_text(
        "import resource, runpy, sys\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))\n"
        "sys.argv[0] = 'pww.central'\n"
        "runpy.run_module('pww.central', run_name='__main__', alter_sys=True)\n"
    )
    coordinator, aggregator = federation.ports
    central = federation.project.start(
        str(script), *federation.overrides, "run.name=central", f"central.port={coordinator}",
        f"central.aggregator_port={aggregator}", f"central.blob_port={aggregator}", name="central",
    )  # fmt: skip
    central.until(lambda: "serves http" in central.text())
    idle = [socket.create_connection(("127.0.0.1", coordinator)) for _ in range(400)]
    try:
        site = federation.site("a")
        assert site.wait() == 0
        assert central.wait() == 0
    finally:
        script.unlink()
        for each in idle:
            each.close()
    federation.check_exactly_once()
