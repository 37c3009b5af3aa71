"""What was typed and nothing would read: refused, where a default of the same key may stand."""

from collections.abc import Collection, Iterator

from pww.config.check_given import unused
from pww.config.schema.lab import DilocoMethod, LabConfig, Quadratic, TextTask

NOT_QUADRATIC = (
    "lab.eval_windows", "lab.log_every", "lab.threads", "optim.batch_windows", "optim.clip_norm",
    "optim.accumulate",
)  # fmt: skip

OF_RANKS = (
    "site.device", "site.device_kind", "site.peak_tflops", "site.allreduce_node_gb_s",
    "site.allreduce_nodes_gb_s", "site.interface", "site.outbound", "site.ranks",
)  # fmt: skip


def without_effect(config: LabConfig, given: Collection[str]) -> Iterator[str]:
    """A sentence for each key of `given` that this cell has no use for."""
    yield from unused(config.optim, given)
    yield from _of_the_site(config, given)
    if "cell" in given:
        yield "cell: goes with the site by itself; leave it out"
    method, task = config.method, config.task
    if method.kind in ("dgc", "demo"):
        for key in ("codec.feedback", "codec.force"):
            if key in given:
                yield (
                    f"{key}: method={method.name} keeps what is not sent in its own momentum; "
                    "leave it out"
                )
    if config.lab.tune.lr and "optim.lr" in given:
        yield "optim.lr: lab.tune.lr takes its place; leave one of them out"
    rates = config.lab.tune.lr
    if len(rates) == 1 or len(set(rates)) < len(rates):
        yield (
            f"lab.tune.lr={list(rates)}: names several different learning rates to choose from; "
            "for one alone give optim.lr"
        )
    if isinstance(method, DilocoMethod):
        if "method.weighting" in given and not method.worker_steps:
            yield (
                f"method.weighting={method.weighting}: workers that take equally many steps "
                "weigh the same; leave it out, or give method.worker_steps"
            )
        if "method.divide_by" in given and method.participation == 1:
            yield (
                f"method.divide_by={method.divide_by}: nobody is absent with "
                "method.participation=1; leave it out"
            )
    if isinstance(task, TextTask) and task.text == "pydocs" and "task.roots" in given:
        yield "task.roots: task.text=pydocs reads no files; leave it out"
    if isinstance(task, Quadratic):
        for key in sorted(set(NOT_QUADRATIC) & set(given)):
            yield f"{key}: task=quadratic has no use for it; leave it out"


def _of_the_site(config: LabConfig, given: Collection[str]) -> Iterator[str]:
    for key in sorted(set(OF_RANKS) & set(given)):
        yield f"{key}: a cell is one process that computes on cores and meets nobody; leave it out"
    if config.site.queue.kind == "none":
        for key in ("launcher.wait", "launcher.requeues"):
            if key in given:
                yield f"{key}: site={config.site.name} has no queue; leave it out"
