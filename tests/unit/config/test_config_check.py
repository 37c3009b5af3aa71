"""Every rule across groups: the sentence when it is broken, silence when it is not."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

from pww.config.check import check, is_loopback
from pww.config.check_site import cores_of
from pww.config.load import compose
from pww.config.prepare import validate
from pww.config.schema import Config
from pww.errors import ConfigError

NO_PLACE = (
    "transport=file needs a place that every site and the central can write to and read from: "
    "s3://BUCKET/PATH, or file:///PATH of a folder that they share"
)

BASES: dict[str, dict[str, Any]] = {}


def tree(site: str) -> dict[str, Any]:
    if site not in BASES:
        told = ["site.queue.partition=gpu", "site.ranks_per_node=4"] if site == "slurm" else []
        BASES[site] = compose([f"site={site}", *told]).model_dump(mode="json")
    return deepcopy(BASES[site])


def changed(site: str, keys: Mapping[str, object]) -> Config:
    values = tree(site)
    for key, value in keys.items():
        here = values
        *above, leaf = key.split(".")
        for part in above:
            here = here[part]
        here[leaf] = value
    return Config.model_validate(values)


def broken(keys: Mapping[str, object], *, site: str = "local") -> list[str]:
    return check(changed(site, keys))


@pytest.mark.parametrize("site", ["local", "lumi", "snellius", "slurm"])
def test_the_defaults_of_every_site_pass(site: str) -> None:
    assert broken({}, site=site) == []


def ranks(n: int) -> dict[str, object]:
    return {
        "parallel.ranks": n, "parallel.shard_ranks": n, "site.ranks_per_node": n,
        "optim.batch_windows": 8 * n,
    }  # fmt: skip


COARSE = (
    "bits a parameter, and what it drops is known to cost +32 % loss without error feedback; use "
    "codec.feedback=true, or codec.force=true to do so all the same"
)
SIZED = {"seq_len": 64, "tie_embeddings": True, "vocab_multiple": 256, "dtype": "bf16"}
SHIPPED = {"kind": "shipped", "family": "qwen3", "name": "x", "flavor": "8B", **SIZED}
HF = {"kind": "hf", "name": "gpt2", "config": "gpt2", "changes": {}, **SIZED}
TOPK = {"kind": "topk", "keep": 64, "value_bits": 2, "feedback": True, "force": False}
DCT = {"kind": "dct", "keep": 64, "feedback": True, "force": False}
INT2 = {"kind": "int2", "feedback": True, "force": False}
RANDOMK = {"kind": "randomk", "keep": 64, "feedback": False, "force": False}
NO_FORCE = "codec.force=true: has no effect with codec.feedback=true and"
LEAVE = "where nothing is refused; leave it out"


def outer(optimizer: str, lr: float, momentum: float) -> dict[str, object]:
    return {
        "diloco.outer.optimizer": optimizer, "diloco.outer.lr": lr,
        "diloco.outer.momentum": momentum,
    }  # fmt: skip


AVERAGED = outer("sgd", 1.0, 0.0)


def late(kind: str, name: str, keep: int, *, step: str, most: str, enough: int = 0) -> str:
    more = f", or codec.keep={enough} or more" if enough else ""
    return (
        f"codec={kind}: {name} sends {keep} of 4096 values and the others late, and an outer step "
        f"of diloco.outer.lr / (1 - diloco.outer.momentum) = {step} overshoots with those (above "
        f"{most} it costs 10 % of loss and more, up to divergence); use "
        "diloco.outer.optimizer=sgd diloco.outer.lr=1 diloco.outer.momentum=0"
        f"{more}, or codec=int4, which sends every value every round; or codec.force=true to do so "
        "all the same"
    )


LATE_TOPK = late("topk", "topk-64-b2", 64, step="7", most="2.125")


CASES: list[tuple[dict[str, object], list[str]]] = [
    (
        {"data.held_out": 0.0},
        ["data.held_out=0: nothing would be left to evaluate on; use more than 0, less than 0.5"],
    ),
    ({"codec": INT2 | {"feedback": False}}, [f"codec.feedback=false: int2 sends 2 {COARSE}"]),
    (
        {"codec": INT2 | {"kind": "sign", "feedback": False}},
        [f"codec.feedback=false: sign sends 1 {COARSE}"],
    ),
    (
        {"codec": TOPK | {"feedback": False}},
        [f"codec.feedback=false: topk-64-b2 sends 0.22 {COARSE}"],
    ),
    ({"codec": TOPK | {"feedback": False, "force": True}}, []),
    (
        {"codec": TOPK | {"feedback": False, "value_bits": 4}},
        [f"codec.feedback=false: topk-64-b4 sends 0.25 {COARSE}"],
    ),
    (
        {"codec": TOPK | {"feedback": False, "value_bits": 4, "keep": 2048}},
        [f"codec.feedback=false: topk-2048-b4 sends 8 {COARSE}"],
    ),
    (
        {"codec": TOPK | {"feedback": False, "value_bits": 16}},
        [f"codec.feedback=false: topk-64-b16 sends 0.44 {COARSE}"],
    ),
    ({"codec": TOPK | {"feedback": False, "value_bits": 8, "keep": 512}}, []),
    (
        {"codec": TOPK | {"feedback": False, "value_bits": 8, "keep": 512, "force": True}},
        [
            "codec.force=true: has no effect with codec.feedback=false and topk-512-b8, where "
            "nothing is refused; leave it out"
        ],
    ),
    ({"codec": DCT | {"feedback": False}}, [f"codec.feedback=false: dct2-64 sends 0.44 {COARSE}"]),
    ({"codec": DCT | {"feedback": False, "force": True}}, []),
    ({"codec": DCT | {"feedback": False, "keep": 512}}, []),
    ({"codec": RANDOMK}, []),
    ({"codec": TOPK}, [LATE_TOPK]),
    ({"codec": TOPK | {"force": True}}, []),
    ({"codec": TOPK, **AVERAGED}, []),
    ({"codec": TOPK | {"force": True}, **AVERAGED}, [f"{NO_FORCE} topk-64-b2, {LEAVE}"]),
    ({"codec": TOPK | {"keep": 1}, **outer("nesterov", 0.7, 0.5)}, []),
    ({"codec": TOPK | {"keep": 256}, **outer("nesterov", 0.7, 0.7)}, []),
    (
        {"codec": TOPK | {"keep": 256, "value_bits": 16}, **outer("nesterov", 0.3, 0.9)},
        [late("topk", "topk-256-b16", 256, step="3", most="2.5", enough=512)],
    ),
    ({"codec": TOPK | {"keep": 512}, **outer("nesterov", 0.3, 0.9)}, []),
    (
        {"codec": TOPK | {"keep": 511}, **outer("nesterov", 0.3, 0.9)},
        [late("topk", "topk-511-b2", 511, step="3", most="2.998", enough=512)],
    ),
    ({"codec": TOPK | {"keep": 2560}}, []),
    (
        {"codec": TOPK | {"keep": 2559}},
        [late("topk", "topk-2559-b2", 2559, step="7", most="6.998")],
    ),
    ({"codec": TOPK | {"keep": 4096}, **outer("nesterov", 1.0, 0.95)}, []),
    (
        {"codec": TOPK, **outer("sgd", 20.0, 0.0)},
        [late("topk", "topk-64-b2", 64, step="20", most="2.125")],
    ),
    ({"codec": DCT}, [late("dct", "dct2-64", 64, step="7", most="2.125")]),
    ({"codec": DCT, **AVERAGED}, []),
    (
        {"codec": RANDOMK | {"feedback": True}},
        [late("randomk", "randomk-64-raw", 64, step="7", most="2.125")],
    ),
    ({"codec": RANDOMK | {"feedback": True, "force": True}}, []),
    (
        {"transport.down": "topk-64-b2"},
        [
            "transport.down=topk-64-b2: sends 64 of 4096 values of an update and the others late, "
            "and an outer step of diloco.outer.lr / (1 - diloco.outer.momentum) = 7 overshoots "
            "with those (above 2.125 it costs 10 % of loss and more, up to divergence); use "
            "diloco.outer.optimizer=sgd diloco.outer.lr=1 diloco.outer.momentum=0, or "
            "transport.down=int4, which sends every value every round"
        ],
    ),
    ({"transport.down": "topk-64-b2", **AVERAGED}, []),
    ({"transport.down": "int4"}, []),
    (
        {"codec": RANDOMK | {"force": True}},
        [f"{NO_FORCE.replace('true and', 'false and')} randomk-64, {LEAVE}"],
    ),
    (
        {"codec": INT2 | {"force": True}},
        [
            "codec.force=true: has no effect with codec.feedback=true and int2, where nothing is "
            "refused; leave it out"
        ],
    ),
    ({"transport.kind": "file", "transport.url": "s3://bucket/run"}, []),
    (
        {"transport.kind": "file", "transport.url": "memory://x"},
        [f"transport.url=memory://x: {NO_PLACE}"],
    ),
    (
        {"transport.kind": "file", "transport.url": "file://relative/x"},
        [f"transport.url=file://relative/x: {NO_PLACE}"],
    ),
    (
        {"transport.kind": "file", "transport.url": "s3://"},
        [f"transport.url=s3://: {NO_PLACE}"],
    ),
    (
        {"transport.kind": "file"},
        [f"transport.url=none: {NO_PLACE}"],
    ),
    (
        {"transport.url": "file:///shared/run"},
        ["transport.url=file:///shared/run: only transport=file uses it; leave it at none"],
    ),
    (
        {"transport.kind": "file", "transport.url": "s3://key:word@bucket/run"},
        [
            "transport.url: names a user or a secret before its @, but a configuration is shown, "
            "kept and sent to every site; leave that out: credentials come from the environment "
            "or from the file system's own files (AWS_ACCESS_KEY_ID, ~/.aws/credentials)"
        ],
    ),
    ({"codec": {"kind": "fp32"}}, []),
    ({"codec": {"kind": "int4", "feedback": False}}, []),
    (
        {"diloco.replicas": 3, **ranks(4)},
        [
            "diloco.replicas=3: must divide parallel.ranks=4, so that replicas are equal blocks of "
            "ranks; one of 1, 2, 4"
        ],
    ),
    (
        {"diloco.replicas": 2, "central.url": "http://127.0.0.1:29510", **ranks(4)},
        [
            "diloco.replicas=2: replicas of one allocation take the outer step among themselves "
            "and hand nothing to a central; leave central.url out, or start replica=a and "
            "replica=b against it"
        ],
    ),
    (
        {"diloco.replicas": 2, "central.keep_deltas": True, **ranks(4)},
        [
            "central.keep_deltas=true: with diloco.replicas=2 deltas never leave their ranks; "
            "leave it out"
        ],
    ),
    ({"diloco.replicas": 2, "diloco.outer.device": "cpu", **ranks(4)}, []),
    (
        {"diloco.outer.device": "cpu"},
        [
            "diloco.outer.device=cpu: with diloco.replicas=1 theta and momentum are on the disk, "
            "not on a device; leave it out"
        ],
    ),
    # the windows of a step are the replica's: 2 of its ranks can share 2 of them, 4 cannot
    ({"diloco.replicas": 4, **ranks(8), "optim.batch_windows": 2, "diloco.inner_steps": 8}, []),
    (
        {"diloco.replicas": 2, **ranks(8), "optim.batch_windows": 2, "diloco.inner_steps": 8},
        [
            "optim.batch_windows=2: must be a multiple of parallel.ranks=8 / diloco.replicas=2; "
            "for example 4"
        ],
    ),
    (
        {"diloco.replicas": 2, "parallel.kind": "single", **ranks(2), "parallel.shard_ranks": 1},
        [],
    ),
    (
        {
            "diloco.replicas": 4,
            "parallel.kind": "hsdp",
            **ranks(8),
            "parallel.shard_ranks": 4,
        },
        [
            "parallel.shard_ranks=4: must divide parallel.ranks=8 / diloco.replicas=4, so that "
            "every copy is sharded alike; one of 1, 2"
        ],
    ),
    (
        {"diloco.inner_steps": 1},
        [
            "diloco.inner_steps=1: times optim.batch_windows=8 that is 8 windows a phase, less "
            "than one block of darl.block_windows=16; use diloco.inner_steps=2, or a "
            "darl.block_windows that divides 8"
        ],
    ),
    (
        {"diloco.inner_steps": 5},
        [
            "diloco.inner_steps=5: times optim.batch_windows=8 that is 40 windows a phase, not a "
            "whole number of blocks of darl.block_windows=16; use diloco.inner_steps=4 or 6, or a "
            "darl.block_windows that divides 40"
        ],
    ),
    ({"diloco.inner_steps": 2}, []),
    (
        {"central.roles": []},
        ["central.roles=[]: names no service; give one or both of coordinator, aggregator"],
    ),
    (
        {"central.roles": ["aggregator", "aggregator"]},
        ["central.roles=[aggregator,aggregator]: names aggregator more than once"],
    ),
    (
        {"central.roles": ["coordinator"], "central.aggregator_port": 29510},
        [
            "central.aggregator_port=29510: is central.port too, and two processes cannot share a "
            "port; with central.roles=[coordinator] give another one to both"
        ],
    ),
    ({"central.roles": ["aggregator"]}, []),
    ({"central.roles": ["aggregator", "coordinator"], "central.aggregator_port": 29510}, []),
    (
        {**ranks(2), "optim.batch_windows": 9, "darl.block_windows": 9},
        ["optim.batch_windows=9: must be a multiple of parallel.ranks=2; for example 10"],
    ),
    (
        {**ranks(2), "parallel.kind": "single"},
        ["parallel.ranks=2: parallel.kind=single has one rank; use parallel=fsdp"],
    ),
    (
        {**ranks(2), "optim.accumulate": 3},
        [
            "optim.accumulate=3: must divide the 8 windows that a rank has a step "
            "(optim.batch_windows=16 over parallel.ranks=2); one of 1, 2, 4, 8"
        ],
    ),
    ({**ranks(2), "optim.accumulate": 8}, []),
    (
        {**ranks(4), "parallel.kind": "ddp", "parallel.shard_ranks": 2},
        [
            "parallel.shard_ranks=2: with parallel.kind=ddp every rank holds a whole copy; use "
            "parallel=hsdp for copies that are sharded over some ranks"
        ],
    ),
    ({**ranks(4), "parallel.kind": "ddp", "parallel.shard_ranks": 1}, []),
    (
        {**ranks(4), "parallel.shard_ranks": 2},
        [
            "parallel.shard_ranks=2: parallel.kind=fsdp shards one copy over all of "
            "parallel.ranks=4; use parallel=hsdp for copies that are sharded over some ranks"
        ],
    ),
    (
        {**ranks(4), "parallel.kind": "hsdp", "parallel.shard_ranks": 3},
        [
            "parallel.shard_ranks=3: must divide parallel.ranks=4, so that every copy is sharded "
            "alike; one of 1, 2, 4"
        ],
    ),
    ({**ranks(4), "parallel.kind": "hsdp", "parallel.shard_ranks": 2}, []),
    (
        {"model.family": "llama3", "model.head_dim": 32},
        [
            "model.head_dim=32: times model.num_heads=4 must be model.dim=64 with "
            "model.family=llama3, whose heads share the width"
        ],
    ),
    ({"model.head_dim": 32}, []),
    (
        {"model": {**SHIPPED, "flavor": "70B", "seq_len": 40961}},
        [
            "model.flavor=70B: model.family=qwen3 has 0.6B, 1.7B, 4B, 8B, 14B, 32B",
            "model.seq_len=40961: at most 40960, what the rotary embedding of qwen3 was made for",
        ],
    ),
    ({"model": {**SHIPPED, "family": "llama3", "flavor": "70B", "seq_len": 40961}}, []),
    (
        {
            "model": {
                **HF,
                "changes": {"vocab_size": 5, "tie_word_embeddings": True, "pad_token_id": 0},
            }
        },
        [
            "model.changes.pad_token_id: comes from the corpus's tokenizer; leave it out",
            "model.changes.tie_word_embeddings: comes from model.tie_embeddings; leave it out",
            "model.changes.vocab_size: comes from the corpus's tokenizer; leave it out",
        ],
    ),
    (
        {"model": HF, "parallel.activation_checkpoint": "selective"},
        [
            "parallel.activation_checkpoint=selective: knows the layers of torchtitan's models "
            "only, and model=gpt2 is one of transformers; use none or full"
        ],
    ),
    ({"model": HF, "parallel.activation_checkpoint": "full"}, []),
    (
        {"optim.decay": "wsd", "optim.warmup": 0.5, "optim.decay_share": 0.6},
        [
            "optim.decay_share=0.6: with optim.warmup=0.5 that is more than the whole corpus; "
            "together at most 1"
        ],
    ),
    ({"optim.warmup": 0.5, "optim.decay_share": 0.6}, []),
    ({"model.num_kv_heads": 3}, ["model.num_kv_heads=3: must divide model.num_heads=4"]),
    (
        {"model.head_dim": 15},
        ["model.head_dim=15: must be even, since rotary embeddings turn pairs"],
    ),
    (
        {"diloco.outer.optimizer": "sgd"},
        [
            "diloco.outer.momentum=0.9: diloco.outer.optimizer=sgd has none; use "
            "diloco.outer.momentum=0, or nesterov"
        ],
    ),
    ({"diloco.outer.optimizer": "sgd", "diloco.outer.momentum": 0}, []),
    (
        {"diloco.outer.momentum": 0, "diloco.outer.lr": 1.0},
        [
            "diloco.outer.momentum=0: diloco.outer.optimizer=nesterov without a momentum is sgd; "
            "give one too (diloco.outer.lr=0.7 diloco.outer.momentum=0.9 are usual, lr is 1 here), "
            "or use sgd"
        ],
    ),
    (
        {"diloco.norm_clip": 0.5},
        [
            "diloco.norm_clip=0.5: below 1 it would shrink deltas of ordinary length; use 1 or "
            "more, or 0 for no clipping"
        ],
    ),
    ({"diloco.norm_clip": 1}, []),
    (
        {"darl.heartbeat_s": 10.0},
        [
            "darl.heartbeat_s=10: must be less than darl.detect_s=10, else every replica counts as "
            "gone"
        ],
    ),
    (
        {"darl.ttl_floor_s": 9.5},
        [
            "darl.ttl_floor_s=9.5: must be at least darl.detect_s=10, else a lease expires before "
            "its replica counts as gone"
        ],
    ),
    ({"darl.ttl_floor_s": 10.0}, []),
    (
        {"transport.retry_max_s": 0.25},
        ["transport.retry_max_s=0.25: must be at least transport.retry_first_s=0.5"],
    ),
    ({"central.port": 29511}, []),  # one port for both
    (
        {"central.host": "0.0.0.0"},
        [
            "central.host=0.0.0.0: without credentials the central serves this machine only; make "
            "them with python -m pww.central init host=NAME replicas=SITE/REPLICA and give "
            "central.security.keys=FOLDER, or use 127.0.0.1, ::1 or localhost"
        ],
    ),
    ({"central.host": "0.0.0.0", "central.security.keys": "k"}, []),
    ({"central.security.keys": "k"}, []),
    (
        {"central.url": "http://example.org:29510"},
        [
            "central.url=http://example.org:29510: without credentials a site talks to a central "
            "on this machine only; use https:// and central.bundle=FOLDER (python -m pww.central "
            "init makes it), or http://127.0.0.1:29510"
        ],
    ),
    *(
        (
            {"central.url": url},
            [
                f"central.url={url}: needs the keys of this site; give central.bundle=FOLDER, a "
                "copy of bundles/SITE that python -m pww.central init made at the central"
            ],
        )
        for url in ("https://example.org:29510", "https://127.0.0.1:29510")
    ),
    *(
        (
            {"central.url": url, "central.bundle": "b"},
            [
                f"central.url={url}: central.bundle=b is for a central with TLS; use https://, or "
                "leave central.bundle out"
            ],
        )
        for url in ("http://example.org:29510", "http://127.0.0.1:29510")
    ),
    (
        {"central.bundle": "b"},
        [
            "central.bundle=b: has no effect without a central; give "
            "central.url=https://HOST:PORT, or leave it out"
        ],
    ),
    *(
        (
            {"central.url": url},
            [f"central.url={url}: must be none, https://HOST:PORT, or http://127.0.0.1:29510"],
        )
        for url in (
            "",
            "127.0.0.1:29510",
            "ftp://127.0.0.1:29510",
            "http://127.0.0.1",
            "https://example.org",
            "http://127.0.0.1:x",
            "http://127.0.0.1:99999",
            "http://127.0.0.1:1/path",
            "http://u@127.0.0.1:1",
            "http://127.0.0.1:1?a=b",
        )
    ),
    *(
        ({"central.url": url}, [])
        for url in ("none", "http://localhost:1", "http://127.9.9.9:65535/", "http://[::1]:29510")
    ),
    *(
        ({"central.url": url, "central.bundle": "b"}, [])
        for url in ("https://example.org:29510", "https://[::1]:1/", "https://localhost:443")
    ),
    (
        {"data.column": "body"},
        ["data.column=body: data.kind=pydocs has no columns or keys; use text"],
    ),
    ({"data.kind": "jsonl", "data.files": ["x"], "data.column": "body"}, []),
    ({"data.files": ["x"]}, ["data.files: data.kind=pydocs reads no files; use []"]),
    (
        {"data.kind": "text"},
        ["data.files=[]: data.kind=text needs at least one file or pattern"],
    ),
    (
        {"data.kind": "jsonl", "data.files": ["x"], "data.roots": []},
        ["data.roots=[]: name at least one folder to look for data.files in"],
    ),
    (
        {"parallel.ranks": 2, "parallel.shard_ranks": 2},
        [
            "parallel.ranks=2: site.num_nodes=1 x site.ranks_per_node=1 are 1 ranks; leave "
            "parallel.ranks out, or change the nodes"
        ],
    ),
    (
        {"site.num_nodes": 2, "parallel.ranks": 2, "parallel.shard_ranks": 2},
        ["site.num_nodes=2: site local has no queue and runs on one node"],
    ),
]


@pytest.mark.parametrize(("keys", "sentences"), CASES)
def test_a_rule(keys: dict[str, object], sentences: list[str]) -> None:
    assert broken(keys) == sentences


def at(site: str, **keys: object) -> dict[str, object]:
    """Keys of the site, with `parallel.ranks` and the batch kept in step."""
    values = tree(site)["site"]
    nodes = int(str(keys.get("num_nodes", values["num_nodes"])))
    per_node = int(str(keys.get("ranks_per_node", values["ranks_per_node"])))
    found: dict[str, object] = {
        "parallel.ranks": nodes * per_node,
        "parallel.shard_ranks": nodes * per_node,
        "optim.batch_windows": nodes * per_node,
        "darl.block_windows": nodes * per_node,
        "site.queue.gpus_per_node": per_node,
    }
    for key, value in keys.items():
        found[f"site.{key.replace('queue_', 'queue.')}"] = value
    return found


# GCD 0..7 at cores 49, 57, 17, 25, 1, 9, 33, 41
LUMI_MASKS = [
    "0xfe000000000000", "0xfe00000000000000", "0xfe0000", "0xfe000000", "0xfe", "0xfe00",
    "0xfe00000000", "0xfe0000000000",
]  # fmt: skip
SITE_CASES: list[tuple[str, dict[str, object], list[str]]] = [
    ("snellius", {"num_nodes": 2}, []),
    ("snellius", {"ranks_per_node": 1}, []),
    (
        "snellius",
        {"num_nodes": 2, "ranks_per_node": 2},
        [
            "site.ranks_per_node=2: a job of 2 nodes must take all 4 GPUs of each; use "
            "site.ranks_per_node=4"
        ],
    ),
    (
        "snellius",
        {"ranks_per_node": 8, "cores_per_rank": 16},
        [
            "site.ranks_per_node=8: a node of snellius has 4 GPUs, one a rank; 1 to 4",
            "site.cores_per_rank=16: 8 ranks want 128 cores of a node, site.node_cores=64",
        ],
    ),
    (
        "snellius",
        {"queue_partition": "gpu"},
        ["site.queue.partition=gpu: snellius has gpu_h100, gpu_a100, gpu_vis"],
    ),
    (
        "snellius",
        {"queue_partition": "gpu_a100"},
        [
            "site.cores_per_rank=16: gpu_a100 gives 18 cores with a GPU; leave "
            "site.cores_per_rank out"
        ],
    ),
    (
        "snellius",
        {"queue_memory": "0"},
        [
            "site.queue.memory=0: gpu_h100 gives memory with the GPUs and bills all of the node's; "
            'use site.queue.memory=""'
        ],
    ),
    (
        "snellius",
        {"queue_time": "5-00:00:01"},
        ["site.queue.time=5-00:00:01: gpu_h100 ends a job after 120 h; give at most that"],
    ),
    (
        "snellius",
        {"queue_time": "01:00:01"},
        [
            "site.queue.time=01:00:01: model=qwen3_debug is for trying things, and gpu_h100 starts "
            "jobs of at most 1 h much sooner; give at most that"
        ],
    ),
    (
        "snellius",
        {"queue_memory": "0G"},
        ['site.queue.memory=0G: gpu_h100 gives memory with the GPUs; use site.queue.memory=""'],
    ),
    (
        "snellius",
        {"queue_setup": ["module purge", "export MASTER_PORT=29500"]},
        [
            "site.queue.setup[1]=export MASTER_PORT=29500: two jobs of one user can land on one "
            "node, so the port of the ranks is derived from the job's id; leave MASTER_PORT out"
        ],
    ),
    (
        "snellius",
        {"queue_setup": ["pip install pww"], "queue_python": "singularity  exec x.sif python"},
        [
            "site.queue.setup[0]=pip install pww: pip install in a job: downloads happen on login "
            "nodes only; do it there, once, before submitting"
        ],
    ),
    ("lumi", {"queue_time": "03:00:00"}, []),
    (
        "lumi",
        {"cores_per_rank": 8},
        [
            "site.cores_per_rank=8: dev-g gives 7 cores with a GPU; leave site.cores_per_rank out",
            "site.cores_per_rank=8: 8 ranks want 64 cores of a node, site.node_cores=56",
            *(
                f"site.cpu_masks[{gcd}]={mask}: 7 cores, but site.cores_per_rank=8"
                for gcd, mask in enumerate(LUMI_MASKS)
            ),
        ],
    ),
    ("slurm", {"num_nodes": 3, "queue_time": "999:00:00"}, []),
    (
        "slurm",
        {"queue_node_gpus": 8, "queue_exclusive": True},
        [
            "site.queue.exclusive=true: would take and bill the whole node for 4 of 8 GPUs; use "
            "site.queue.exclusive=false"
        ],
    ),
    (
        "snellius",
        {"queue_time": "00:02:00"},
        [
            "site.queue.time=00:02:00: must be longer than the 120 s before its end at which the "
            "job stops (site.queue.signal_s)"
        ],
    ),
    (
        "snellius",
        {"queue_exclusive": True, "ranks_per_node": 3},
        [
            "site.queue.exclusive=true: would take and bill the whole node for 3 of 4 GPUs; use "
            "site.queue.exclusive=false"
        ],
    ),
    ("lumi", {"num_nodes": 4}, []),
    (
        "lumi",
        {"queue_partition": "standard-g", "ranks_per_node": 4},
        [
            "site.queue.partition=standard-g: has whole nodes only, and this job takes 4 of 8 "
            "GPUs; use one of dev-g, small-g, or site.ranks_per_node=8"
        ],
    ),
    ("lumi", {"queue_partition": "small-g", "ranks_per_node": 4, "queue_exclusive": False}, []),
    (
        "lumi",
        {"queue_time": "03:00:01"},
        ["site.queue.time=03:00:01: dev-g ends a job after 3 h; give at most that"],
    ),
    (
        "lumi",
        {"cpu_masks": ["0xfe", "0xfe00"]},
        ["site.cpu_masks: 2 masks, but a full node has 8 ranks"],
    ),
]


@pytest.mark.parametrize(("site", "keys", "sentences"), SITE_CASES)
def test_a_machines_rule(site: str, keys: dict[str, object], sentences: list[str]) -> None:
    assert broken(at(site, **keys), site=site) == sentences


def test_a_long_job_of_a_real_model_may_be_long() -> None:
    keys = {"site.queue.time": "120:00:00", "model.name": "qwen3_0.6b"}
    assert broken(keys, site="snellius") == []


@pytest.mark.parametrize(
    "line",
    [
        "wget https://example.org/x", "curl -O https://example.org/x", "uv pip install pww",
        "conda env create", "git clone x", "apptainer build a b", "hf download gpt2",
    ],
)  # fmt: skip
def test_no_line_of_a_job_downloads(line: str) -> None:
    (sentence,) = broken({"site.queue.setup": [line]}, site="slurm")
    assert "downloads happen on login nodes only" in sentence


@pytest.mark.parametrize("line", ["module load git/2.45", "source curled.sh", "pip check"])
def test_other_lines_pass(line: str) -> None:
    assert broken({"site.queue.setup": [line]}, site="slurm") == []


def test_gpus_are_one_a_rank() -> None:
    assert broken({"site.queue.gpus_per_node": 2}, site="snellius") == [
        "site.queue.gpus_per_node=2: one GPU a rank, and site.ranks_per_node=4; leave it out"
    ]


@pytest.mark.parametrize(
    ("rank", "mask", "sentence"),
    [
        (0, "0xff", "site.cpu_masks[0]=0xff: 8 cores, but site.cores_per_rank=7"),
        (
            0,
            "0x7f",
            "site.cpu_masks[0]=0x7f: core 0 is the operating system's (site.reserved_cores)",
        ),
        (0, "fe", "site.cpu_masks[0]=fe: a hexadecimal mask of cores, such as 0xfe"),
    ],
)
def test_a_mask(rank: int, mask: str, sentence: str) -> None:
    masks = list(tree("lumi")["site"]["cpu_masks"])
    masks[rank] = mask
    assert sentence in broken({"site.cpu_masks": masks}, site="lumi")


def test_two_ranks_never_share_a_core() -> None:
    masks = list(tree("lumi")["site"]["cpu_masks"])
    masks[5] = masks[4]
    assert broken({"site.cpu_masks": masks}, site="lumi") == [
        f"site.cpu_masks[5]=0xfe: core {core} is rank 4's already" for core in range(1, 8)
    ]


def test_rules_that_read_a_key_at_fault_are_silent() -> None:
    config = changed("local", {"diloco.inner_steps": 5, "central.host": "0.0.0.0"})
    found = check(config, at_fault=lambda key: key == "darl.block_windows")
    assert [f.partition(":")[0] for f in found] == ["central.host=0.0.0.0"]


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("::1", True), ("127.1.2.3", True), ("10.0.0.1", False), ("x", False)],
)
def test_loopback(host: str, here: bool) -> None:
    assert is_loopback(host) is here


def test_cores_of_a_mask() -> None:
    assert cores_of("0xfe00") == [9, 10, 11, 12, 13, 14, 15]


def test_validate_raises_with_every_sentence() -> None:
    values = tree("local")
    values["central"]["host"] = "0.0.0.0"
    values["darl"] |= {"heartbeat_s": 40.0, "ttl_floor_s": 5.0}
    with pytest.raises(ConfigError) as caught:
        validate(values)
    assert len(caught.value.faults) == 3
    del values["darl"]["seed"]
    with pytest.raises(ConfigError, match=r"darl\.seed: missing; give darl\.seed=…: a whole"):
        validate(values)
