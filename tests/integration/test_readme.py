"""The README's commands, run as they stand there, and its links followed."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, Project

from pww.log import read_json_lines

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line
]
SETUP = [line for line in COMMANDS if line.startswith("python3 -m venv")]
PYTHON = [line for line in COMMANDS if line not in SETUP]


def words(command: str) -> list[str]:
    """What follows `python` in a command of the README."""
    first, *rest = shlex.split(command)
    assert first == "python", command
    return rest


@pytest.fixture
def shakespeare(project: Project) -> None:
    """`data=tinyshakespeare` as a user has it: the real file where it is, else other text."""
    for folder in (os.environ.get("PWW_DATA", ""), ROOT / "data", ROOT / "../shared/data"):
        real = Path(folder, "tinyshakespeare", "input.txt").resolve()
        if folder and real.is_file():
            project.env["PWW_DATA"] = str(real.parents[1])
            return
    from pydoc_data.topics import topics

    path = project.folder / "data" / "tinyshakespeare" / "input.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(topics[key] for key in sorted(topics)))


def test_the_set_up_is_two_lines_of_which_the_gate_runs_the_install() -> None:
    install, trains = SETUP[0].rsplit(" && ", 1)
    again, tests = SETUP[1].rsplit(" && ", 1)
    assert len(SETUP) == 2
    assert install == again
    assert trains == ".venv/bin/python -m pww.train"
    assert tests == ".venv/bin/python -m pytest"
    gate = (ROOT / ".ci" / "run").read_text()
    assert "grep -m1 '^python3 -m venv' README.md" in gate
    assert "python -m pytest\n" in gate


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 15
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_every_option_in_the_table_of_groups_exists() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (.*?) \|$", README, re.MULTILINE)
    assert len(rows) == 9
    for group, options in rows:
        family = ""  # `qwen3_0.6b` `_1.7b`: what the second one leaves out is the first one's
        for written in re.findall(r"`([\w./]+)`", options):
            option = family + written if written.startswith("_") else written
            family = option.partition("_")[0]
            if "." not in option or group == "model":
                assert (ROOT / "conf" / group / f"{option}.yaml").is_file(), (group, option)


def test_the_first_command_trains(project: Project) -> None:
    done = project.run("-m", "pww.train", timeout_s=280)
    assert done.returncode == 0, done.stderr
    (run,) = [p for p in project.outputs.iterdir() if (p / "finished").exists()]
    losses = [r["loss"] for r in read_json_lines(run / "metrics.jsonl") if r["split"] == "eval"]
    assert losses[-1] < losses[0] - 1.5  # type: ignore[operator]


def test_the_commands_that_show_something(project: Project) -> None:
    shown = [c for c in PYTHON if "--" in c or "dry=true" in c]
    assert len(shown) == 3
    for command in shown:
        done = project.run(*words(command))
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout


CENTRALS = [
    c for c in PYTHON if "pww.central" in c and "tinyshakespeare" in c and "central.roles" not in c
]


@pytest.mark.parametrize("central", CENTRALS)
def test_two_sites_one_central_and_the_audit(
    project: Project, shakespeare: None, central: str
) -> None:
    assert len(CENTRALS) == 2
    sites = [c for c in PYTHON if "pww.train" in c and "data=tinyshakespeare" in c]
    assert len(sites) == 2
    short = ["data.max_windows=800"] if "codec" in central else []  # the other one runs whole
    children = [project.start(*words(central), *short, name="central")]
    children += [project.start(*words(c), *short, name=c.split()[4]) for c in sites]
    assert [child.wait(280) for child in children] == [0, 0, 0]
    (audit,) = [c for c in PYTHON if c.endswith("audit")]
    done = project.run(*words(audit))
    assert done.returncode == 0, done.stdout
    assert re.search(r"exactly once [1-9]\d*, lost 0, doubled 0", done.stdout)
    final = project.outputs / "central-tinyshakespeare" / "final"
    exported = {"config.json", "model.safetensors", "tokenizer.json", "theta.safetensors"}
    assert exported <= {path.name for path in final.iterdir()}
    assert "export   outputs/central-tinyshakespeare/final" in children[0].text()


def test_the_demonstration_with_a_kill_and_a_late_site(project: Project) -> None:
    (command,) = [c for c in PYTHON if "pww.demo" in c]
    done = project.run(*words(command), timeout_s=280)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["committed"] == counted["blocks"] > 0
    assert counted["duplicates"] == counted["missing"] == 0
    assert counted["held_out_last"] < counted["held_out_first"]
    assert "killed b in the middle of a phase" in done.stdout
    assert "c joins" in done.stdout


def test_keys_are_made_extended_and_revoked(project: Project) -> None:
    commands = [c for c in PYTHON if re.search(r"central (init|add|revoke) ", c)]
    assert len(commands) == 3
    for command in commands:
        done = project.run(*words(command))
        assert done.returncode == 0, (command, done.stderr)
    keys = project.outputs / "central-keys"
    assert list(json.loads((keys / "allowed.json").read_text())["replicas"]) == ["lumi/a", "lumi/b"]
    assert "revoked snellius/a" in done.stdout


def test_your_own_text_is_tokenised_and_shown(project: Project) -> None:
    make, show = [c for c in PYTHON if "pww.data" in c]
    from pydoc_data.topics import topics

    books = project.folder / "data" / "books"
    books.mkdir(parents=True)
    for i, key in enumerate(sorted(topics)):
        if i % 10 == 0:
            (books / f"{key}.txt").write_text(topics[key] or "empty")
    env = dict(project.env)
    project.env.pop("PWW_DATA", None)
    done = project.run(*words(make))
    assert done.returncode == 0, done.stderr
    assert "train on it with: python -m pww.train data=text" in done.stdout
    done = project.run(*words(show))
    project.env |= env
    assert done.returncode == 0, done.stderr
    assert "window 3:" in done.stdout


def test_the_status_of_nobody_is_a_sentence(project: Project) -> None:
    """With a central it is shown in test_central_service.py."""
    (command,) = [c for c in PYTHON if "pww.status" in c]
    done = project.run(*words(command))
    assert done.returncode == 1
    assert "central" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_replicas_in_one_allocation(project: Project) -> None:
    """Shorter than it stands there: two rounds of 20 steps."""
    (command,) = [c for c in PYTHON if "pww.train" in c and "diloco.replicas=" in c]
    short = ["data.max_windows=640", "diloco.inner_steps=20", "metrics.wandb.mode=disabled"]
    done = project.run(*words(command), *short, timeout_s=280)
    assert done.returncode == 0, done.stderr
    (run,) = [p for p in project.outputs.iterdir() if (p / "finished").exists()]
    rows = list(read_json_lines(run / "metrics.jsonl"))
    assert [row["contributors"] for row in rows if row["split"] == "outer"] == [2, 2]
    losses = [row["loss"] for row in rows if row["split"] == "eval"]
    assert losses[-1] < losses[0]  # type: ignore[operator]
    done = project.run("-m", "pww.central", "audit", str(run))
    assert done.returncode == 0, done.stdout
    assert "lost 0, doubled 0" in done.stdout


def test_the_smoke_test(project: Project) -> None:
    (command,) = [c for c in PYTHON if "pww.smoke" in c]
    done = project.run(*words(command), timeout_s=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "PASS"
    assert any("a known parameter moved by 0.5000 (nesterov" in line for line in lines)
    assert "% at H=500" in lines[-2]
    (folder,) = (project.outputs / "smoke").iterdir()
    assert (folder / "verdict").read_text() == "PASS\n"


def test_images(project: Project) -> None:
    """A few of them, where CIFAR-10 is; elsewhere what the command would do."""
    (command,) = [c for c in PYTHON if "model=resnet18" in c]
    short = ["dry=true"]
    for folder in (os.environ.get("PWW_DATA", ""), ROOT / "data", ROOT / "../shared/data"):
        if folder and Path(folder, "cifar10").is_dir():
            project.env["PWW_DATA"] = str(Path(folder).resolve())
            short = [
                "data.max_images=32", "optim.batch_windows=16", "darl.block_windows=16",
                "diloco.inner_steps=2", "evaluation.max_windows=16", "metrics.wandb.mode=disabled",
            ]  # fmt: skip
            break
    done = project.run(*words(command), *short, timeout_s=280)
    assert done.returncode == 0, done.stderr
    if "dry=true" not in short:
        assert "accuracy" in done.stderr
        told = "measured on the every 5th image of the CIFAR-10 training set, held out"
        assert told in " ".join(done.stderr.split())


def test_a_first_study_and_one_of_your_own(project: Project) -> None:
    """Shorter, at one rate and with two seeds where the command line says how many."""
    first, *mine = [c for c in PYTHON if "pww.lab" in c]
    quick = ["lab.steps=50", "lab.seeds=2", "lab.tune.lr=[]"]
    done = project.run(*words(first), *quick, "lab.seeds=1")
    assert done.returncode == 0, done.stderr
    report = project.outputs / "lab" / "first" / "report"
    assert {p.suffix for p in report.iterdir()} == {".md", ".csv", ".svg", ".png"}
    for command in mine:
        runs = "lab.study=" in command
        done = project.run(*words(command), *(quick if runs else []))
        assert done.returncode == 0, (command, done.stderr)
    assert re.search(r"int4 costs .* (confirmed|refuted|inconclusive)", done.stdout)
    assert "open" not in done.stdout.partition("## Predictions")[2].partition("##")[0]


def test_every_command_was_tried() -> None:
    tried = [c for c in PYTHON if c == "python -m pww.train" or "pww.demo" in c or "--" in c]
    tried += [c for c in PYTHON if "dry=true" in c or "audit" in c or "tinyshakespeare" in c]
    tried += [c for c in PYTHON if "pww.simulate" in c]  # by test_simulate.py
    tried += [c for c in PYTHON if "central.roles=" in c]  # by test_split_roles.py
    tried += [c for c in PYTHON if re.search(r"central (init|add|revoke) ", c)]
    tried += [c for c in PYTHON if "pww.status" in c or "pww.data" in c]
    tried += [c for c in PYTHON if "pww.smoke" in c]
    tried += [c for c in PYTHON if "diloco.replicas=" in c or "model=resnet18" in c]
    tried += [c for c in PYTHON if "pww.lab" in c]
    assert set(tried) == set(PYTHON)
