"""A real central and closed-form sites as processes, and NumPy's word on where they arrive."""

from collections import Counter

import numpy as np
from conftest import CLOSED_FORM, Child, Project
from safetensors.numpy import load_file

from pww.central.audit import audit, merged_deltas
from pww.central.ledger import Ledger
from pww.log import read_json_lines
from pww.wire import Offer, RoundReport

QUICK = (
    "data.max_windows=960", "diloco.inner_steps=20", "darl.heartbeat_s=0.3", "darl.detect_s=1.5",
    "darl.ttl_floor_s=3", "darl.restore_grace_s=3", "transport.poll_s=0.1",
    "transport.retry_max_s=1", "metrics.wandb.mode=disabled", "optim.batch_windows=4",
    "central.linger_s=1",
)  # fmt: skip


class Federation:
    """One central and its sites, on free ports, in one copy of the project."""

    def __init__(self, project: Project, ports: tuple[int, int], *overrides: str) -> None:
        self.project, self.ports = project, ports
        self.overrides = (*QUICK, *overrides)

    def central(self, *overrides: str) -> Child:
        coordinator, aggregator = self.ports
        return self.project.start(
            "-m", "pww.central", *self.overrides, "run.name=central",
            f"central.port={coordinator}", f"central.aggregator_port={aggregator}", *overrides,
            name="central",
        )  # fmt: skip

    def site(self, replica: str, *overrides: str, name: str = "", **env: str) -> Child:
        return self.project.start(
            str(CLOSED_FORM), *self.overrides, f"replica={replica}", f"run.name={name or replica}",
            f"central.url=http://127.0.0.1:{self.ports[0]}", *overrides, name=name or replica,
            **env,
        )  # fmt: skip

    def lines(self, run: str) -> list[dict[str, object]]:
        """Every row of a run's metrics, in the order of writing."""
        return read_json_lines(self.project.outputs / run / "metrics.jsonl")

    def rows(self, run: str, split: str) -> list[dict[str, object]]:
        return [row for row in self.lines(run) if row["split"] == split]

    def merges(self) -> int:
        return len(self.rows("central", "outer"))

    def check_exactly_once(self) -> None:
        """By the books, and by what the processes drew for the deltas that were merged."""
        folder = self.project.outputs / "central"
        books = audit(folder)
        assert books.ok
        assert books.exactly_once == books.blocks > 0
        space, merged = merged_deltas(folder)
        drawn: Counter[int] = Counter()
        for log in self.project.outputs.glob("*/draws.jsonl"):
            for row in read_json_lines(log):
                if row["delta"] in merged:
                    drawn.update(row["windows"])  # type: ignore[call-overload]
        assert drawn == Counter(range(space.num_windows))


def mid_phase(federation: Federation, run: str, round: int = 1) -> bool:
    rows = federation.rows(run, "train")
    if not rows or rows[-1]["round"] < round:  # type: ignore[operator]
        return False
    return rows[-1]["phase_step"] < rows[-1]["phase_steps"]  # type: ignore[operator]


def replay(federation: Federation) -> None:
    """Recomputes the last theta in fp64 NumPy from windows, tokens and rounds; compares."""
    folder = federation.project.outputs / "central"
    space, _ = merged_deltas(folder)
    ledger = Ledger.read_only(folder / "central" / "ledger.sqlite")
    offers = [
        (number, Offer.model_validate_json(str(text)))
        for number, text in ledger.rows(
            "SELECT round, offer FROM deltas WHERE outcome = 'merged' ORDER BY round, delta"
        )
    ]
    reports = dict(ledger.rows("SELECT round, report FROM rounds WHERE report IS NOT NULL"))
    ledger.close()
    goal = {w: [(w * k) % 97 / 97.0 for k in (3, 5)] for w in range(space.num_windows)}
    thetas = [(np.zeros(2), 1.0)]  # the three rows of weight are equal
    momentum = (np.zeros(2), 0.0)
    for number in sorted({n for n, _ in offers}):
        group = sorted((o for n, o in offers if n == number), key=lambda o: o.replica)
        total = sum(o.tokens for o in group)
        merged = [np.zeros(2), 0.0]
        for offer in group:
            weight, bias = (np.copy(x) for x in thetas[offer.base_round])
            span = offer.spans[0].span
            windows = [w for p in range(span.start, span.stop) for w in space.windows(p)]
            for i in range(0, len(windows), 4):
                mean = np.mean([goal[w] for w in windows[i : i + 4]], axis=0)
                weight = weight - (weight - mean) * 0.1
                bias = bias - (bias - mean.mean()) * 0.1
            p = offer.tokens / total / (1 + 0.25 * (number - 1 - offer.base_round))
            merged[0] = merged[0] + p * (thetas[offer.base_round][0] - weight)
            merged[1] = merged[1] + p * (thetas[offer.base_round][1] - bias)
        if all(o.partial for o in group):
            steps = merged
        else:
            momentum = tuple(0.9 * m + d for m, d in zip(momentum, merged, strict=True))
            steps = [d + 0.9 * m for m, d in zip(momentum, merged, strict=True)]
        thetas.append(tuple(t - 0.7 * u for t, u in zip(thetas[-1], steps, strict=True)))  # type: ignore[arg-type]  # fmt: skip
        report = RoundReport.model_validate_json(str(reports[number]))
        assert report.tokens == total
        assert report.merged == tuple(o.replica for o in group)
    last = max(n for n, _ in offers)
    found = load_file(folder / f"central/generations/round-{last:06d}/theta.safetensors")
    np.testing.assert_allclose(found["weight"], np.tile(thetas[-1][0], (3, 1)), rtol=0, atol=2e-6)
    np.testing.assert_allclose(found["bias"], thetas[-1][1], rtol=0, atol=2e-6)
