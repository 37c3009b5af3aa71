"""One rank in a test of the queue: called as `slurm_rank.py -m MODULE RUN`, does RANK_DOES.

finish   notes its environment and marks the run as finished
raise    rank 1 fails with a traceback, the others go on for long
closed   the real worker, with a closed form in place of the engine
killed   rank 1 is killed, as for want of memory; the others go on for long
little   the real worker, with a trainer whose parameters replicas of one allocation can average
agree    several ranks step until they agree on a stop, and note at which step that was
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration" / "programs")]  # PYTHONSAFEPATH


def finish(run: Path, rank: int) -> int:
    told = {**os.environ, "PYTHON_OF_THE_RANK": ".".join(map(str, sys.version_info[:2]))}
    (run / f"environ-{rank}.json").write_text(json.dumps(told))
    if rank == 0:
        (run / "metrics.jsonl").write_text('{"split": "eval", "loss": 0.25}\n')
        (run / "finished").touch()
    return 0


def objective(run: Path, rank: int) -> int:
    text = (run / "config.yaml").read_text()
    seed = int(text.partition("\nseed: ")[2].split()[0])
    (run / "metrics.jsonl").write_text(json.dumps({"split": "eval", "loss": 1 / seed}) + "\n")
    (run / "finished").touch()
    return 0


def fail(run: Path, rank: int) -> int:
    if rank == 1:
        raise RuntimeError("broken on purpose")
    time.sleep(300)
    return 0


def killed(run: Path, rank: int) -> int:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
    return 0


def closed(run: Path, rank: int) -> int:
    from closed_form_site import ClosedForm

    from pww.worker import main

    (run / "paths.txt").open("a").write(f"{os.environ.get('PATH')}\n")
    return main([str(run)], engine=ClosedForm)


def little(run: Path, rank: int) -> int:
    from little import Little

    from pww.worker import main

    step_s = float(os.environ.get("STEP_S", "0"))
    return main(
        [str(run)],
        engine=lambda config, corpus, ranks: Little(ranks, at_step=lambda _: time.sleep(step_s)),
    )


def agree(run: Path, rank: int) -> int:
    from pww.config.load import read_config
    from pww.trainer import signals
    from pww.trainer.ranks import Ranks, init_ranks

    signals.defer()
    init_ranks(read_config(run / "config.yaml"))
    ranks = Ranks()
    ranks.handle_signals()
    step = 0
    while not ranks.agreed():
        step += 1
        if step == 5:
            (run / f"going-{rank}").touch()
        time.sleep(0.01 * (1 + rank))  # no two ranks are equally fast
    gloo = os.environ.get("GLOO_SOCKET_IFNAME", "")
    (run / f"stopped-{rank}.json").write_text(json.dumps({"step": step, "gloo": gloo}))
    if rank == 0:
        (run / "finished").touch()
    ranks.close()
    return 0


if __name__ == "__main__":
    assert sys.argv[1:3] in (["-m", "pww.worker"], ["-m", "pww.smoke.rank"]), sys.argv
    does = {
        "finish": finish, "objective": objective, "raise": fail, "closed": closed, "agree": agree,
        "killed": killed, "little": little,
    }  # fmt: skip
    code = does[os.environ["RANK_DOES"]](Path(sys.argv[3]), int(os.environ["SLURM_PROCID"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
