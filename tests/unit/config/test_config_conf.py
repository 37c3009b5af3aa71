"""conf/: every key is explained, every choice composes, the machines' facts are right."""

import re
from pathlib import Path

import pytest
import yaml

from pww.config import paths
from pww.config.check_codec import AVERAGING
from pww.config.check_site import cores_of
from pww.config.load import compose, read_config
from pww.config.paths import CONF
from pww.config.schema import Config
from pww.errors import ConfigError

FILES = sorted(p.relative_to(CONF).as_posix() for p in CONF.rglob("*.yaml"))
GROUPS = ("site", "model", "parallel", "data", "codec")


@pytest.mark.parametrize("name", FILES)
def test_every_key_has_a_comment(name: str) -> None:
    """A key is explained above it, beside it, or by the comment of the mapping that it is in."""
    lines = (CONF / name).read_text().splitlines()
    assert lines[0].startswith("#")
    block: int | None = None  # indent of a block text, whose lines are no keys
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if block is not None and (not line.strip() or indent > block):
            continue
        block = indent if re.search(r": [|>]$", line) else None
        key = re.match(r"\s*([\w.-]+):(\s|$)", line)
        if key is None or key[1] in ("defaults", "hydra"):
            continue
        above = next(
            (x for x in reversed(lines[:number]) if re.match(r"\s*(#|[\w.-]+:)", x)), ""
        ).strip()
        is_parent = line.rstrip().endswith(":")
        explained = "#" in line or above.startswith("#") or is_parent
        in_help = name.startswith("hydra/help")
        in_table = line.strip().endswith("}") or name == "hydra/launcher/slurm.yaml"
        in_hydra = name == "config.yaml" and indent >= 2 and "hydra:" in "\n".join(lines[:number])
        assert explained or in_help or in_table or in_hydra, f"{name}:{number + 1}: {line}"


GENERIC = ([], ["site.queue.partition=gpu", "site.ranks_per_node=4"])
"""What the generic site has to be told, and is enough for it."""


def choices(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize(
    ("group", "choice"), [(g, c) for g in GROUPS for c in choices(g)], ids=lambda x: str(x)
)
def test_every_choice_composes(group: str, choice: str) -> None:
    images = {"digits": ["model=resnet_digits"], "cifar10": ["model=resnet18"]}
    with_it = images.get(choice, []) if group == "data" else GENERIC[choice == "slurm"]
    late = AVERAGING.split() if choice in ("topk", "dct") else ()
    compose([f"{group}={choice}", *with_it, *late])


@pytest.mark.parametrize("choice", ["topk", "dct"])
def test_a_codec_that_is_late_tells_what_else_to_write(choice: str) -> None:
    with pytest.raises(ConfigError, match=f"^codec={choice}: ") as fault:
        compose([f"codec={choice}"])
    told = str(fault.value)
    assert AVERAGING in told
    compose([f"codec={choice}", *re.findall(r"diloco\.outer\.\w+=\w+", told)])
    compose([*re.findall(r"codec=int4", told)])
    compose([f"codec={choice}", *re.findall(r"codec\.force=true", told)])


def test_the_groups_exist() -> None:
    for group in ("site", "model", "parallel", "diloco", "darl", "transport", "data", "optim"):
        assert choices(group)
    assert choices("site") == ["local", "lumi", "slurm", "snellius"]
    assert choices("hydra/launcher") == ["slurm"]


def test_lumi() -> None:
    config = compose(["site=lumi", "model=qwen3_0.6b", "site.queue.account=project_1"])
    site = config.site
    assert site.queue.kind == "slurm"
    assert (site.ranks_per_node, site.cores_per_rank, site.device) == (8, 7, "rocm")
    assert site.queue.memory == "0"
    assert "singularity exec /scratch/project_1/" in site.queue.python
    # Where GCD 0..7's cores begin, as the machine's documentation has them
    assert [cores_of(m)[0] for m in site.cpu_masks] == [49, 57, 17, 25, 1, 9, 33, 41]
    every = [core for mask in site.cpu_masks for core in cores_of(mask)]
    assert len(set(every)) == len(every) == site.node_cores == 56
    assert not {core for core in every if core % 8 == 0}


@pytest.mark.parametrize(
    ("partition", "cores", "node"),
    [("gpu_h100", 16, 64), ("gpu_a100", 18, 72), ("gpu_vis", 18, 72)],
)
def test_partition_and_cores_travel_together(partition: str, cores: int, node: int) -> None:
    site = compose(["site=snellius", f"site.queue.partition={partition}"]).site
    assert (site.cores_per_rank, site.node_cores) == (cores, node)
    assert site.queue.kind == "slurm"
    assert site.queue.memory == ""
    assert site.queue.time == "01:00:00"


def test_the_generic_site_asks_for_its_two_facts() -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["site=slurm"])
    assert list(refused.value.faults) == [
        "site.ranks_per_node: has no value yet; give site.ranks_per_node=…",
        "site.queue.partition: has no value yet; give site.queue.partition=…",
    ]
    config = compose(["site=slurm", *GENERIC[True], "site.num_nodes=2"])
    assert config.site.queue.kind == "slurm"
    assert (config.parallel.ranks, config.site.queue.gpus_per_node) == (8, 4)
    assert config.site.queue.partition == "gpu"


def test_a_site_does_not_change_the_batch() -> None:
    sites = (["site=lumi"], ["site=snellius"], ["site=slurm", *GENERIC[True]])
    batches = {compose([*site, "model=qwen3_0.6b"]).optim.batch_windows for site in sites}
    assert batches == {32}


def test_a_time_without_quotes_is_never_a_number_of_seconds(tmp_path: Path) -> None:
    run = tmp_path / "config.yaml"
    values = compose(["site=snellius"]).model_dump(mode="json")
    text = yaml.safe_dump(values).replace("time: 01:00:00", "time: 12:30:00")
    run.write_text(text.replace("time: '01:00:00'", "time: 12:30:00"))
    assert "time: 12:30:00\n" in run.read_text()
    with pytest.raises(ConfigError) as refused:
        read_config(run)
    (sentence,) = refused.value.faults
    assert "site.queue.time=45000: [days-]hours:minutes:seconds, in quotes" in sentence
    site = compose(["site=lumi", "site.queue.time=2:30:00"]).site
    assert site.queue.kind == "slurm"
    assert site.queue.time == "2:30:00"


def test_the_ranks_follow_the_nodes() -> None:
    config = compose(["site=snellius", "site.num_nodes=3", "optim.batch_windows=48"])
    assert config.parallel.ranks == config.site.ranks == 12
    assert compose(["parallel.ranks=2"]).site.ranks_per_node == 2


def test_the_account_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWW_ACCOUNT", "project_7")
    site = compose(["site=lumi"]).site
    assert site.queue.kind == "slurm"
    assert site.queue.account == "project_7"


def test_the_data_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PWW_DATA", raising=False)
    first, *rest = compose([]).data.roots
    assert first == "data"
    monkeypatch.setenv("PWW_DATA", "/elsewhere")
    assert compose([]).data.roots == ("/elsewhere", *rest)


def test_a_model_may_set_its_learning_rate_and_the_user_beats_it() -> None:
    assert compose([]).optim.lr == 3e-3
    assert compose(["model=qwen3_0.6b"]).optim.lr == 3e-4
    assert compose(["optim.lr=0.5"]).optim.lr == 0.5


def test_a_run_of_randomk_from_before_it_had_force_goes_on(tmp_path: Path) -> None:
    config = compose(["codec=randomk"])
    values = config.model_dump(mode="json")
    del values["codec"]["force"]
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    assert read_config(file) == config


def test_the_frozen_file_reads_back_the_same(tmp_path: Path) -> None:
    """Including text that YAML would take for something else."""
    for words in (
        ["run.name=0123", "replica=1e3", "data.cache='12:30:00'"],
        ["site=lumi", "run.name=12e3", "resume=null", "data.files=[]"],
    ):
        config = compose(words)
        paths.freeze(config, tmp_path)
        file = tmp_path / "config.yaml"
        assert read_config(file) == config
        text = file.read_bytes()
        paths.freeze(read_config(file), tmp_path)
        assert file.read_bytes() == text
        assert not list(tmp_path.glob("*.part"))


def test_reading_a_frozen_file_that_is_not_one(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read: .*No such file"):
        read_config(file)
    file.write_text("a: [")
    with pytest.raises(ConfigError, match=r"config\.yaml: is not YAML: while parsing"):
        read_config(file)
    file.write_text("- 1")
    with pytest.raises(ConfigError, match=r"holds no configuration; start a new run"):
        read_config(file)
    values = compose([]).model_dump(mode="json")
    values["darl"]["seed"] = "x"
    values["extra"] = 1
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert [f.removeprefix(f"{file}: ").partition(":")[0] for f in caught.value.faults] == [
        "darl.seed=x",
        "extra=1",
    ]


def test_a_config_is_frozen() -> None:
    config = compose([])
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    assert isinstance(config, Config)
    assert config.replica_id == "local/a"
