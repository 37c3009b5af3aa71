"""A run of four ranks in two replicas is stopped and goes on with two, by the command."""

import gzip
import random
import signal
from collections import Counter
from pathlib import Path

from conftest import Project

from pww.central.audit import audit, merged_deltas
from pww.config.load import read_config
from pww.log import read_json_lines

WORDS = (
    "model=resnet_digits", "data.max_images=640", "parallel=ddp", "diloco.replicas=2",
    "diloco.inner_steps=2", "optim.batch_windows=16", "darl.block_windows=16",
    "evaluation.max_windows=32", "metrics.wandb.mode=disabled",
)  # fmt: skip


def digits(folder: Path) -> None:
    """A table where scikit-learn has its own: this test learns nothing."""
    draw = random.Random(0)
    rows = (
        ",".join(str(draw.randrange(10 + 7 * (i < 64))) for i in range(65)) for _ in range(1000)
    )
    data = folder / "sklearn" / "datasets" / "data"
    data.mkdir(parents=True)
    (folder / "sklearn" / "__init__.py").touch()
    (data / "digits.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))


def test_from_four_ranks_to_two(project: Project, tmp_path: Path) -> None:
    digits(tmp_path)
    project.env["PYTHONPATH"] += f":{tmp_path}"
    run = project.outputs / "four"
    child = project.start(
        "-m", "pww.train", *WORDS, "parallel.ranks=4", "run.name=four", name="four"
    )
    child.until(lambda: (run / "checkpoints" / "phase-000001").exists())
    child.signal(signal.SIGINT)
    assert child.wait() == 130
    before = max((run / "checkpoints").glob("phase-??????")).name
    done = project.run("-m", "pww.train", *WORDS, "parallel.ranks=2", "resume=outputs/four")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    config = read_config(run / "config.yaml")
    assert (config.parallel.ranks, config.diloco.replicas) == (2, 2)
    books = audit(run)
    assert books.ok
    assert books.exactly_once == books.blocks == 40
    _, merged = merged_deltas(run)
    drawn: Counter[int] = Counter()
    for row in read_json_lines(run / "draws.jsonl"):
        if row["delta"] in merged:
            drawn.update(row["windows"])  # type: ignore[call-overload]
    assert drawn == Counter(range(640))
    outer = [row for row in read_json_lines(run / "metrics.jsonl") if row["split"] == "outer"]
    assert [row["round"] for row in outer] == list(range(1, 11))
    assert int(before.removeprefix("phase-")) < 9  # something was left for two
