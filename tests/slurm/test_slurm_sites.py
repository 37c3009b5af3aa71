"""The two machines' configurations on a real Slurm: a full node of each, with stand-in ranks."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

RANK = f"{sys.executable} {ROOT / 'tests' / 'programs' / 'slurm_rank.py'}"
SITES = {
    "lumi": (
        "site.queue.account=project_1",
        f"site.queue.python='bash {ROOT}/launch/site/lumi.sh {RANK}'",
    ),
    "snellius": (f"site.queue.python='{RANK}'", "site.queue.setup=[]"),
}


@pytest.mark.parametrize(
    ("name", "ranks", "cores", "devices"),
    [("lumi", 8, "7", "ROCR_VISIBLE_DEVICES"), ("snellius", 4, "16", "CUDA_VISIBLE_DEVICES")],
)
def test_a_full_node(
    name: str, ranks: int, cores: str, devices: str, submitter: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    site = replace(submitter(), words=(f"site={name}", *SITES[name]))
    # What the shell that submits had of its own devices names none of the job's
    for foreign in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.setenv(foreign, "7")
    assert site.train("run.name=x", "launcher.wait=true") == 0, site.log(site.outputs / "x")
    (job,) = site.jobs()
    folder = site.outputs / "x"
    environs = [json.loads((folder / f"environ-{rank}.json").read_text()) for rank in range(ranks)]
    assert [e["SLURM_LOCALID"] for e in environs] == [str(rank) for rank in range(ranks)]
    for environ in environs:
        assert environ["SLURM_CPUS_PER_TASK"] == environ["OMP_NUM_THREADS"] == cores
        assert environ["HF_HUB_OFFLINE"] == "1"
        # Slurm names the devices where it may make them up, as root
        named = [key for key in environ if key.endswith("_VISIBLE_DEVICES")]
        assert named in ([devices], [])
    shown = site.box.job(job["job"])
    assert (shown["NumTasks"], shown["CPUs/Task"], shown["Requeue"]) == (str(ranks), cores, "1")
    caches = {environ.get("MIOPEN_USER_DB_PATH") for environ in environs}
    assert caches == {environ.get("MIOPEN_CUSTOM_CACHE_DIR") for environ in environs}
    if name == "lumi":
        assert len(caches) == ranks
        for cache in caches:
            assert job["job"] in cache
            assert Path(cache).parent == Path("/tmp")
            shutil.rmtree(cache)
    else:
        assert caches == {None}
