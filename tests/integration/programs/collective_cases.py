"""What a collective outer step measures, carries and refuses; every rank runs each case."""

from collections.abc import Callable

import torch
from allocation import ROWS, WIDTH, Here, diloco, linear, one_value, plain, shift, whole
from torch import nn

from pww.codec import codec_named
from pww.errors import TrainerError
from pww.replica.live import pieces
from pww.trainer.resnet import small_resnet


def norms(replicas: int) -> None:
    """Right angles agree to 1/sqrt(k), equal moves to 1; drift's mean hides what its max shows."""
    here = Here(replicas)
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(8, dtype=torch.float64))
    with torch.no_grad():
        model.w[0] = 1.0
    collective = here.collective(model, diloco=diloco("sgd", 2.0**-10, 0.0))
    with torch.no_grad():
        model.w[here.replica + 1] += 0.5
    report = collective.step(1)
    assert abs(report.agreement - replicas**-0.5) < 1e-12
    assert abs(report.delta_norm - 0.5 * replicas**-0.5) < 1e-12
    assert abs(report.avg_delta_norm - 0.5) < 1e-12
    with torch.no_grad():
        model.w[0] += 0.25
    report = collective.step(1)
    assert abs(report.agreement - 1.0) < 1e-12
    size = float(collective.theta("w").norm())
    drifts = [0.30, *[0.01] * (replicas - 1)]
    with torch.no_grad():
        model.w[7] += drifts[here.replica] * size
    report = collective.step(1)
    assert abs(report.drift_max - 0.30) < 1e-9
    assert abs(report.drift_mean - sum(drifts) / replicas) < 1e-9
    assert report.bytes_sent == report.bytes_received == 8 * 8 * here.inner.size * (replicas - 1)


def sharded_norms(replicas: int, kind: str) -> None:
    """Norms count every element once, however the ranks share it."""
    here = Here(replicas)
    model = here.shared(linear(9), kind)
    collective = here.collective(plain(model))
    shift(plain(model), 0.5)
    report = collective.step(1)
    assert abs(report.delta_norm - 0.5 * (ROWS * WIDTH + ROWS) ** 0.5) < 1e-12


def feedback(kind: str, codec: str) -> None:
    """What arrived and the last residuals are the sum of the deltas."""
    here = Here(2)
    model = here.shared(linear(11, torch.float32), kind)
    collective = here.collective(plain(model), codec=codec_named(codec), feedback=True)
    first = whole(model)
    made = torch.Generator().manual_seed(here.rank)
    moved = {piece.name: torch.zeros_like(piece.values) for piece in pieces(plain(model), ranks=1)}
    for _ in range(5):
        for piece in pieces(plain(model), ranks=1):
            if kind == "ddp":  # copies of a replica move alike
                made.manual_seed(here.replica)
            move = torch.randn(piece.values.shape, generator=made) * 0.01
            before = piece.values.clone()
            piece.values.sub_(move)
            moved[piece.name] += before - piece.values
        collective.step(1)
    lost = 0.0
    for name, own in moved.items():
        residual = collective.residual(name)
        lost = max(lost, float(residual.abs().max()) if residual.numel() else 0.0)
        sums = here.outer.gather(own - residual)
        start = torch.cat(here.outer.gather(collective.theta(name)))[: own.numel()]
        moved[name] = start + (sums[0] + sums[1]) / 2
    assert lost > 0 or not any(one.numel() for one in moved.values())
    with torch.no_grad():
        for piece in pieces(plain(model), ranks=1):
            piece.values.copy_(moved[piece.name])
    for ours, theirs in zip(whole(model), first, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5)


def buffers_are_their_own_kind() -> None:
    """Running means 0 and 2 become 1 at once, counters stay whole numbers, no momentum acts."""
    here = Here(2)
    model = nn.BatchNorm1d(3)
    model.register_buffer("table", torch.arange(3.0) + here.rank, persistent=False)
    collective = here.collective(model, diloco=diloco("nesterov", 0.7, 0.9))
    layout = {name: (b.shape, b.dtype) for name, b in model.named_buffers()}
    for step in range(3):
        model.running_mean.fill_(2.0 * here.replica)
        model.running_var.fill_(1.0 + here.inner.place)
        model.num_batches_tracked.fill_(2**53 + 1 + step)
        collective.step(1)
        assert model.running_mean.tolist() == [1.0] * 3
        assert model.running_var.tolist() == [1.5 if here.inner.size == 2 else 1.0] * 3
        assert int(model.num_batches_tracked) == 2**53 + 1 + step
    assert {name: (b.shape, b.dtype) for name, b in model.named_buffers()} == layout
    assert model.table.tolist() == [here.rank + x for x in (0.0, 1.0, 2.0)]
    model.running_mean.fill_([8.0, 4.0][here.replica])
    collective.step([1, 3][here.replica])
    assert model.running_mean.tolist() == [5.0] * 3


def resnet_buffers() -> None:
    """A ResNet under DDP: running means 0 and 2 become 1 at the first step, its layout stays."""
    here = Here(2)
    wrapped = here.shared(small_resnet(classes=10, seed=here.rank, width=4), "ddp")
    model = plain(wrapped)
    layout = {name: (t.shape, t.dtype) for name, t in model.state_dict().items()}
    collective = here.collective(model, diloco=diloco("nesterov", 0.7, 0.9))
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.fill_(2.0 * here.replica)
        elif name.endswith("num_batches_tracked"):
            buffer.fill_(5)
    collective.step(1)
    assert {name: (t.shape, t.dtype) for name, t in model.state_dict().items()} == layout
    counters = [b for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]
    means = [b for name, b in model.named_buffers() if name.endswith("running_mean")]
    assert len(counters) == len(means) == 9
    assert all(int(counter) == 5 and counter.dtype == torch.int64 for counter in counters)
    assert all(bool((mean == 1.0).all()) for mean in means)
    wrapped.train()
    wrapped(torch.randn(2, 1, 8, 8)).sum().backward()  # DDP goes on with what was written


def one_start() -> None:
    """Ranks that begin with parameters and statistics of their own begin with those of rank 0."""
    here = Here(2)
    model = nn.BatchNorm1d(2)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(here.rank + 3)
    here.collective(model)
    assert {name: t.tolist() for name, t in model.state_dict().items()} == {
        "weight": [3.0] * 2, "bias": [3.0] * 2, "running_mean": [3.0] * 2,
        "running_var": [3.0] * 2, "num_batches_tracked": 3,
    }  # fmt: skip


def buffers_are_rounded_once() -> None:
    """Three parts that are each too small to show in fp32 show together."""
    here = Here(4)
    model = nn.BatchNorm1d(1)
    collective = here.collective(model)
    model.running_mean.fill_(1.0 if here.replica == 0 else 2.0**-25)
    model.num_batches_tracked.fill_([4, 9, 2, 7][here.replica])
    collective.step(1)
    assert model.running_mean.tolist() == [0.25 + 2.0**-25]
    assert int(model.num_batches_tracked) == 9


def left_out() -> None:
    """A replica that is not finite, or has no tokens, counts for nothing; with nobody, void."""
    here = Here(2)
    model = nn.BatchNorm1d(2)
    collective = here.collective(model)
    with torch.no_grad():
        model.weight.fill_([float("nan"), 0.5][here.replica])
        model.running_mean.fill_([float("inf"), 3.0][here.replica])
        model.num_batches_tracked.fill_([99, 7][here.replica])
    report = collective.step(1)
    assert report.merged == (1,)
    assert model.weight.tolist() == [0.5, 0.5]
    assert model.running_mean.tolist() == [3.0, 3.0]
    assert int(model.num_batches_tracked) == 7
    with torch.no_grad():
        model.weight.fill_([0.25, 9.0][here.replica])
    assert collective.step([4, 0][here.replica]).merged == (0,)
    assert model.weight.tolist() == [0.25, 0.25]
    with torch.no_grad():
        model.weight.fill_(float("nan"))
        model.running_var.fill_(float("nan"))
        model.num_batches_tracked.fill_(99)
    assert collective.step(1).merged == ()
    assert model.weight.tolist() == [0.25, 0.25]
    assert model.running_mean.tolist() == [3.0, 3.0]
    assert model.running_var.tolist() == [1.0, 1.0]
    assert int(model.num_batches_tracked) == 7


def partial_flush() -> None:
    """A short phase steps without momentum and leaves it; nothing is flushed twice."""
    here = Here(2)
    model = one_value(1.0, torch.float64)
    collective = here.collective(model, diloco=diloco("nesterov", 0.5, 0.5))
    shift(model, 0.5)
    collective.step(1)
    assert float(collective.momentum("w")) == 0.5
    assert float(model.w) == 1.0 - 0.5 * (0.5 + 0.5 * 0.5)
    before = float(model.w)
    shift(model, 0.25)
    report = collective.flush(1)
    assert report is not None
    assert report.partial
    assert float(model.w) == before - 0.5 * 0.25
    assert float(collective.momentum("w")) == 0.5
    assert collective.flush(0) is None
    shift(model, 0.5 * here.replica)  # one of two is whole: an ordinary round
    assert not collective.step(1, partial=here.replica == 0).partial


def refused(work: Callable[[], object]) -> str:
    try:
        work()
    except TrainerError as fault:
        return str(fault)
    raise AssertionError("not refused")


def unlike() -> None:
    """Other shapes, other rounds: every rank says so, none waits."""
    here = Here(2)
    said = refused(lambda: here.collective(nn.Linear(2 + here.replica, 2)))
    assert "have other parameters, shapes or shards" in said
    collective = here.collective(one_value(1.0))
    collective.round = here.replica
    assert "are at rounds [0, 1]: resume all" in refused(lambda: collective.step(1))
    collective = here.collective(one_value(1.0), diloco=diloco("sgd", 1e9, 0.0))
    shift(collective._model, -9e29)
    assert "outer step 1 would make theta not finite" in refused(lambda: collective.step(1))
    model = nn.Module()
    model.register_buffer("phase", torch.zeros(1, dtype=torch.complex64))
    model.w = nn.Parameter(torch.zeros(1))
    collective = here.collective(model)
    assert "buffer phase is torch.complex64" in refused(lambda: collective.step(1))
