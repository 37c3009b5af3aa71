"""Faults of every kind, all of them in one go, each with its key, its value and what is allowed."""

import pytest

from pww.config.load import compose
from pww.errors import ConfigError

GROUPS = (
    "central, checkpoint, codec, darl, data, diloco, dry, evaluation, launcher, metrics, model, "
    "optim, parallel, replica, resume, run, seed, site, transport"
)
DILOCO = (
    "grace, inner_steps, norm_clip, outer, overlap, phase, quorum, recalibrate_bn, replicas, "
    "staleness_discount, staleness_window"
)


def faults_of(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(words)
    assert caught.value.exit_code == 2
    assert not any("\n" in fault for fault in caught.value.faults)
    return list(caught.value.faults)


def test_faults_of_every_kind_mixed_in_one_command() -> None:
    found = faults_of(
        "sit=lumi",
        "diloco.inner_steps=abc",
        "+diloco.foo=3",
        "optim.batch_windows=3",
        "parallel.ranks=2",
        "diloco.replicas=3",
    )
    assert sorted(found) == sorted(
        [
            f"sit=lumi: no such key or group; there are {GROUPS}; did you mean site?",
            "diloco.inner_steps=abc: a whole number, 1 or more",
            f"diloco.foo=3: no such key; diloco has {DILOCO}",
            "optim.batch_windows=3: must be a multiple of parallel.ranks=2; for example 4",
            "diloco.replicas=3: must divide parallel.ranks=2, so that replicas are equal blocks of "
            "ranks; one of 1, 2",
        ]
    )


def test_words_that_hydra_refuses() -> None:
    found = faults_of(
        "site=lmui",
        "site.queue.partition=x",  # cannot be said to be wrong: its group was refused
        "audit",
        "=3",
        "run.root=[1",
        "~darl.seed",
        "~transport",
        "codec@x=bf16",
        "+data=pydocs",
        "+seed=3",
        "replica=a,b",
        "diloco.inner_step=3",
        "optim.lr.x=3",
        "darl={foo:3}",
        "hydra.mode=X",
    )
    assert sorted(found) == sorted(
        [
            "site=lmui: site is one of local, lumi, slurm, snellius; did you mean lumi?",
            "audit: not an override; write key=value, or group=choice",
            "=3: not an override; write key=value, or group=choice",
            "run.root=[1: not an override; the value cannot be read; put text with special "
            "characters in quotes: 'run.root=\"…\"'",
            "~darl.seed: every key is needed; to change it write darl.seed=…",
            "~transport: every key is needed; to change it write transport=…",
            "codec@x=bf16: a group's place is fixed; write codec=choice",
            "+data=pydocs: data is chosen already; write data=pydocs",
            "+seed=3: the key exists already; write seed=3",
            "replica=a,b: several values are a sweep; add -m, or write 'replica=\"a,b\"' if "
            "they are one text",
            f"diloco.inner_step=3: diloco has no key inner_step; it has {DILOCO}; did you mean "
            "diloco.inner_steps?",
            "optim.lr.x=3: optim.lr is a value and has no keys below it",
            "darl={foo:3}: Key 'foo' is not in struct",
            "hydra.mode=X: Invalid value 'X', expected one of [RUN, MULTIRUN]",
        ]
    )


def test_values_that_the_schema_refuses() -> None:
    found = faults_of(
        "seed=-1",
        "replica=A",
        "dry=1",
        "run.name=a/b",
        "metrics.wandb.project=a/b",
        "metrics.wandb.mode=onlin",
        "model.dtype=fp16",
        "data.held_out=0.7",
        "optim.lr=.inf",
        "diloco.quorum=2",
        "diloco.outer.lr=1e39",
        "diloco.staleness_discount=1e300",
        "checkpoint.keep=null",
        "central.port=70000",
        "data.files=x",
        "data.tokenizer.kind=foo",
        "codec.kind=zip",
        "evaluation=3",
        "resume=[1]",
        "darl.seed=4611686018427387904",
        "++optim.foo={a:1}",
    )
    assert sorted(found) == sorted(
        [
            "seed=-1: a whole number, 0 or more, less than 2147483648",
            "replica=A: 1 to 32 of a-z 0-9 . _ -, starting with a letter or digit",
            "dry=1: true or false",
            "run.name=a/b: auto, or 1 to 64 of letters, digits, . _ -, not starting with . _ -",
            "metrics.wandb.project=a/b: 1 to 128 characters without / \\ # ? % :",
            "metrics.wandb.mode=onlin: one of offline, online, disabled; did you mean online?",
            "model.dtype=fp16: one of fp32, bf16; did you mean bf16?; fp16 has no gradient scaler "
            "here, use bf16",
            "data.held_out=0.7: a number, 0 or more, less than 0.5",
            "optim.lr=.inf: a number, more than 0",
            "diloco.quorum=2: a number, 0 or more, at most 1",
            "diloco.outer.lr=1.0e+39: a number, more than 0, at most 1e+09",
            "diloco.staleness_discount=1.0e+300: a number, 0 or more, at most 1e+09",
            "checkpoint.keep=null: a whole number, 2 or more",
            "central.port=70000: a whole number, 1 or more, at most 65535",
            "data.files=x: a list, each item text (in quotes)",
            "data.tokenizer.kind=foo: one of bpe, file",
            f"codec.kind=zip: one of {CODECS}",
            "evaluation=3: keys: every_rounds, max_windows, sets",
            "resume=[1]: text (in quotes)",
            "darl.seed=4611686018427387904: a whole number, 0 or more, less than "
            "4611686018427387904",
            "optim.foo={a: 1}: no such key; optim has accumulate, batch_windows, beta1, beta2, "
            "clip_norm, decay, decay_share, lr, min_lr, name, warmup, weight_decay",
        ]
    )


def test_interpolations_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PWW_NOWHERE", raising=False)
    found = faults_of(
        "data.cache=${oc.env:PWW_NOWHERE}",
        "data.roots=[a,'${foo.bar}']",
        "run.root=${nope:1}",
        "data/tokenizer=file",
        "darl.seed=${data.tokenizer.path}",
        "optim.lr=0",
    )
    assert sorted(found) == sorted(
        [
            "data.cache=${oc.env:PWW_NOWHERE}: cannot be resolved: the environment variable "
            "PWW_NOWHERE is not set; set it, or give data.cache=…",
            "data.roots[1]=${foo.bar}: cannot be resolved: there is no key foo.bar; give "
            "data.roots[1]=… or a key that exists",
            "run.root=${nope:1}: cannot be resolved: Unsupported interpolation type nope; give "
            "run.root=…",
            "data.tokenizer.path: has no value yet; give data.tokenizer.path=…",
            "optim.lr=0: a number, more than 0",
        ]
    )


def test_what_was_derived_from_a_fault_is_not_a_second_fault() -> None:
    assert faults_of("site=lumi", "site.num_nodes=abc") == [
        "site.num_nodes=abc: a whole number, 1 or more"
    ]
    assert faults_of("site=lumi", "site.ranks_per_node=0") == [
        "site.ranks_per_node=0: a whole number, 1 or more"
    ]
    assert faults_of("site=snellius", "site.queue.partition=gpu", "seed=a") == [
        "site.queue.partition=gpu: one of gpu_h100, gpu_a100, gpu_vis (site.queue.partitions); did "
        "you mean gpu_vis?",
        "seed=a: a whole number, 0 or more, less than 2147483648",
    ]


def test_a_variant_wants_its_own_keys() -> None:
    assert faults_of("data={tokenizer: {kind: file}}") == [
        "data.tokenizer.path: missing; give data.tokenizer.path=…: text (in quotes)",
        "data.tokenizer.vocab_size=2048: no such key; data.tokenizer has kind, path",
    ]


@pytest.mark.parametrize("typed", ["0123", "12e3", "true", "null", "1_000", "1.50"])
def test_text_stays_what_was_typed(typed: str) -> None:
    config = compose([f"run.name={typed}", f"metrics.wandb.project={typed}"])
    assert config.run.name == typed
    assert config.metrics.wandb.project == typed


def test_text_in_quotes_and_interpolations_are_left_alone() -> None:
    config = compose(["run.name=central-${data.name}", "central.url='none'"])
    assert config.run.name == "central-pydocs"
    assert config.central.url == "none"


CODECS = "bf16, dct, dither, fp16, fp32, int2, int4, int8, randomk, sign, topk"


@pytest.mark.parametrize("word", ["codec=[1]", "codec=[a,b]", "codec=", "codec=null"])
def test_a_group_is_chosen_by_a_name(word: str) -> None:
    with pytest.raises(ConfigError) as fault:
        compose([word])
    assert fault.value.faults == (f"{word}: codec is one of {CODECS}",)


def test_feedback_belongs_to_a_codec_that_loses_something() -> None:
    assert compose().codec.feedback is False
    assert compose(["codec=bf16"]).codec.feedback is True
    assert compose(["codec=bf16", "codec.feedback=false"]).codec.feedback is False
    for words, fault in (
        (["codec.feedback=true"], "codec.feedback=true: codec has no key feedback; it has kind"),
        (["codec=bf16", "codec.feedback=1"], "codec.feedback=1: true or false"),
    ):
        with pytest.raises(ConfigError) as caught:
            compose(words)
        assert caught.value.faults == (fault,)


def test_a_key_of_another_choice_is_told_whose_it_is() -> None:
    with pytest.raises(ConfigError) as fault:
        compose(["optim.momentum=0.9", "optim.newton=3", "model.flavor=8B"])
    of_muon, of_none, of_kind = fault.value.faults
    assert of_muon.startswith("optim.momentum=0.9: optim has no key momentum; it has accumulate, ")
    assert of_muon.endswith(", weight_decay; it is of optim=muon and of optim=sgd")
    assert "it is of" not in of_none
    assert "it is of" not in of_kind  # model.kind has variants, which are no choices of model=
