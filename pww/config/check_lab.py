"""Rules of a study: what a method, a merge or an attack has no use for is refused, not ignored."""

from collections.abc import Callable, Iterator

from pww.config.check import momentum_fits
from pww.config.check_codec import coarse, forced
from pww.config.check_site import GPUS, OF_ANY_JOB, gpus_fit
from pww.config.lab_model import model_fits
from pww.config.schema.lab import DilocoMethod, LabConfig, NoAttack, Quadratic


def check_lab(config: LabConfig, at_fault: Callable[[str], bool] = lambda key: False) -> list[str]:
    """One sentence for each broken rule; rules that read a key `at_fault` are left out."""
    found: list[str] = []
    for keys, rule in RULES:
        if not any(at_fault(key) for key in keys):
            found += rule(config)
    return found


def outer_is_there(config: LabConfig) -> Iterator[str]:
    """The outer loop belongs to the methods that have one."""
    if (config.diloco is not None) != (config.method.kind == "diloco"):
        yield f"diloco: method={config.method.name} and an outer loop; leave diloco to the method"
    elif config.diloco is not None:
        yield from momentum_fits(config.diloco.outer)


def steps_are_phases(config: LabConfig) -> Iterator[str]:
    """Half a phase would not be merged."""
    if config.diloco is None:
        return
    steps, inner = config.lab.steps, config.diloco.inner_steps
    if steps % inner:
        lower, upper = steps // inner * inner, (steps // inner + 1) * inner
        near = f"{lower} or {upper}" if lower else f"{upper}"
        yield (
            f"lab.steps={steps}: is not a whole number of phases of diloco.inner_steps={inner}; "
            f"use lab.steps={near}"
        )


def codec_fits(config: LabConfig) -> Iterator[str]:
    """What dgc and demo compress has a form; what others drop comes back. What comes back too late
    may be tried here: it is told and not refused.
    """
    kind, codec = config.method.kind, config.codec
    if isinstance(config.task, Quadratic):
        return
    if kind == "dgc" and codec.kind != "topk":
        yield f"codec={codec.kind}: method=dgc sends the largest values; use codec=topk"
    elif kind == "demo" and codec.kind != "dct":
        yield f"codec={codec.kind}: method=demo sends cosine coefficients; use codec=dct"
    elif kind in ("sync", "diloco"):
        if not forced(codec):  # in a sweep it may be there for others
            yield from coarse(codec)
        method = config.method
        if method.kind in ("sync", "diloco") and method.feedback_decay != 1 and not codec.feedback:
            yield (
                f"method.feedback_decay={method.feedback_decay:g}: codec={codec.kind} keeps no "
                "residual; use 1, or a codec with codec.feedback=true"
            )


def optimiser_fits(config: LabConfig) -> Iterator[str]:
    """dgc and demo have a momentum and a step of their own."""
    optim = config.optim
    if optim.accumulate != 1:
        yield f"optim.accumulate={optim.accumulate}: the lab takes a batch at once; use 1"
    if config.method.kind not in ("dgc", "demo"):
        return
    if optim.name != "sgd":
        yield (
            f"optim={optim.name}: method={config.method.name} steps by what it averaged, without "
            "an optimiser's state; use optim=sgd"
        )
    elif optim.momentum != 0 or optim.weight_decay != 0:
        yield (
            f"optim.momentum={optim.momentum:g}, optim.weight_decay={optim.weight_decay:g}: "
            f"method={config.method.name} has its own momentum and no decay; use 0 for both"
        )


def phases_fit(config: LabConfig) -> Iterator[str]:
    """What of a phase goes together."""
    method, outer = config.method, config.diloco
    if not isinstance(method, DilocoMethod) or outer is None:
        return
    plain = method.participation == 1 and not method.worker_steps
    if method.eager and method.delay != 1:
        yield (
            f"method.eager=true: replaces a delta that is a round late, and "
            f"method.delay={method.delay}; use method.delay=1"
        )
    if method.eager and not (
        config.merge.kind == "mean" and plain and isinstance(config.attack, NoAttack)
    ):
        yield (
            "method.eager=true: a worker swaps its own share of the mean; it needs merge=mean, "
            "attack=none, method.participation=1 and method.worker_steps=[]"
        )
    if method.fragments > outer.inner_steps:
        yield (
            f"method.fragments={method.fragments}: each goes at a step of its own of "
            f"diloco.inner_steps={outer.inner_steps}; use at most that many"
        )
    if method.overlap_steps >= outer.inner_steps:
        yield (
            f"method.overlap_steps={method.overlap_steps}: the outer step comes within the phase "
            f"after its own, of diloco.inner_steps={outer.inner_steps}; use fewer, or "
            "method.delay, which counts whole rounds"
        )
    if method.overlap_steps and not (plain and method.delay == 0):
        yield (
            f"method.overlap_steps={method.overlap_steps}: every worker goes on from its own "
            "parameters; needs method.delay=0, method.participation=1 and method.worker_steps=[]"
        )
    if method.fragments > 1 and not (plain and method.delay == 0):
        yield (
            f"method.fragments={method.fragments}: needs method.delay=0, method.participation=1 "
            "and method.worker_steps=[]"
        )
    if method.divide_by == "expected" and (
        method.participation == 1 or config.merge.kind != "mean"
    ):
        yield (
            "method.divide_by=expected: only changes a mean where some are absent; use present, "
            "or method.participation below 1 with merge=mean"
        )
    steps = method.worker_steps
    if steps and (len(steps) != config.workers or max(steps) != outer.inner_steps):
        yield (
            f"method.worker_steps={list(steps)}: needs a number for each of workers="
            f"{config.workers}, the largest of them diloco.inner_steps={outer.inner_steps}"
        )
    if steps and method.weighting == "tokens" and config.merge.kind not in ("mean", "clipped"):
        yield (
            f"method.weighting=tokens: merge={config.merge.kind} has no weights; use "
            "method.weighting=equal"
        )


def merge_fits(config: LabConfig) -> Iterator[str]:
    """Enough workers for the rule, in every round."""
    merge, workers, method = config.merge, config.workers, config.method
    if merge.kind == "trimmed" and 2 * merge.trim >= workers:
        yield (f"merge.trim={merge.trim}: leaves nothing of workers={workers}; use less than half")
    if merge.kind == "krum" and workers < 2 * merge.attackers + 3:
        yield (
            f"merge.attackers={merge.attackers}: krum needs 2 f + 3 = {2 * merge.attackers + 3} "
            f"workers or more, and workers={workers}"
        )
    if (
        isinstance(method, DilocoMethod)
        and method.participation < 1
        and merge.kind in ("trimmed", "krum")
    ):
        yield (
            f"method.participation={method.participation:g}: merge={merge.kind} needs the same "
            "number of workers in every round; use 1, or mean, median, clipped, geometric"
        )


def attack_fits(config: LabConfig) -> Iterator[str]:
    """The honest are the majority, or half."""
    attack, method = config.attack, config.method
    if isinstance(attack, NoAttack):
        return
    if (
        isinstance(method, DilocoMethod)
        and method.participation < 1
        and not isinstance(config.task, Quadratic)
    ):
        yield (
            f"attack={attack.kind}: attackers know who is honest, and with "
            f"method.participation={method.participation:g} who is there changes; use 1"
        )
    if 2 * attack.workers > config.workers:
        yield (
            f"attack.workers={attack.workers}: more than half of workers={config.workers}, which "
            f"no rule withstands; use at most {config.workers // 2}"
        )


def quadratic_fits(config: LabConfig) -> Iterator[str]:
    """What the simulation of the quadratic knows."""
    task, method, codec = config.task, config.method, config.codec
    if not isinstance(task, Quadratic):
        return
    if not isinstance(method, DilocoMethod):
        yield f"method={method.name}: task=quadratic knows diloco and local"
    elif method.eager or method.fragments > 1 or method.feedback_decay != 1:
        yield (
            "method.eager, method.fragments, method.feedback_decay: task=quadratic does not know "
            "them; use false, 1, 1"
        )
    elif method.weighting == "tokens" and method.worker_steps:
        yield "method.weighting=tokens: task=quadratic has task.weights instead; use equal"
    if config.diloco is not None and config.diloco.outer.solo_full_step:
        yield "diloco.outer.solo_full_step=true: task=quadratic does not know it; use false"
    optim = config.optim
    if optim.name != "sgd" or optim.momentum != 0 or optim.decay != "constant" or optim.warmup:
        yield (
            f"optim={optim.name}: task=quadratic takes plain steps of one learning rate; use "
            "optim=sgd optim.momentum=0 optim.warmup=0 optim.decay=constant"
        )
    if codec.kind not in ("fp32", "randomk"):
        yield f"codec={codec.kind}: task=quadratic knows fp32 and randomk, and task.dither"
    elif task.dither and codec.kind != "fp32":
        yield f"task.dither={task.dither:g}: takes the place of a codec; use codec=fp32"
    if config.attack.kind == "noise" and config.attack.coordinated:
        yield "attack.coordinated=true: task=quadratic knows independent noise only"
    if config.attack.kind == "sign_flip" and not config.attack.coordinated:
        yield (
            "attack.coordinated=false: task=quadratic knows a coordinated sign flip only; use true"
        )


def one_process(config: LabConfig) -> Iterator[str]:
    """A cell is one process, with no more threads than its job has cores."""
    site, threads = config.site, config.lab.threads
    if site.num_nodes * site.ranks_per_node != 1:
        yield (
            f"site.num_nodes={site.num_nodes}, site.ranks_per_node={site.ranks_per_node}: a cell "
            "is one process; use 1 for both"
        )
    if site.queue.kind == "slurm" and threads > site.cores_per_rank:
        yield (
            f"lab.threads={threads}: its job has site.cores_per_rank={site.cores_per_rank} cores; "
            "use at most that many"
        )


def gpus_of_a_cell(config: LabConfig) -> Iterator[str]:
    """None where none comes with the cores; else as any job of one rank."""
    site, queue = config.site, config.site.queue
    if queue.kind != "slurm" or site.num_nodes * site.ranks_per_node != 1:
        return
    if queue.gpus_per_node:
        yield from gpus_fit(config)
    elif queue.partition in queue.partitions:
        yield (f"site.queue.gpus_per_node=0: {queue.partition} gives cores with a GPU; use 1")


Check = Callable[[LabConfig], Iterator[str]]
RULES: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("task.kind", "model"), model_fits),
    (("method", "diloco"), outer_is_there),
    (("lab.steps", "diloco.inner_steps"), steps_are_phases),
    (("method", "codec", "task.kind"), codec_fits),
    (("method.kind", "optim"), optimiser_fits),
    (("method", "diloco", "workers", "merge.kind", "attack.kind"), phases_fit),
    (("merge", "workers", "method"), merge_fits),
    (("attack", "workers", "method", "task.kind"), attack_fits),
    (("task", "method", "diloco", "optim", "codec", "attack"), quadratic_fits),
    (("site.num_nodes", "site.ranks_per_node", "site.cores_per_rank", "lab.threads"), one_process),
    (GPUS, gpus_of_a_cell),
    *OF_ANY_JOB,
)
