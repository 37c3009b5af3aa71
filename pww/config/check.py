"""Rules across groups: what must fit together before anything starts; each is a small function.

A rule names the keys that it reads, so that it stays silent where one of them is already at fault.
The network, its ranks and its optimiser are in `check_model`, what a codec does in `check_codec`,
what a machine wants of a submission in `check_site`.
"""

import ipaddress
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from pww.config import check_codec, check_images, check_model, check_site
from pww.config.schema import Config, Data, Images, Outer


@dataclass(frozen=True, slots=True)
class Rule:
    """A check and the keys that it reads (a key stands for everything below it)."""

    keys: tuple[str, ...]
    check: Callable[[Config], Iterator[str]]


def check(config: Config, *, at_fault: Callable[[str], bool] = lambda key: False) -> list[str]:
    """One sentence for each broken rule; rules that read a key `at_fault` are left out."""
    found: list[str] = []
    for rule in RULES:
        if not any(at_fault(key) for key in rule.keys):
            found += rule.check(config)
    return found


def replicas_fit(config: Config) -> Iterator[str]:
    """Replicas are equal blocks of ranks, and take their outer step among themselves."""
    k, ranks = config.diloco.replicas, config.parallel.ranks
    if ranks % k:
        divisors = ", ".join(str(d) for d in range(1, ranks + 1) if ranks % d == 0)
        yield (
            f"diloco.replicas={k}: must divide parallel.ranks={ranks}, so that replicas are equal "
            f"blocks of ranks; one of {divisors}"
        )
    elif k > 1 and config.central.url != "none":
        yield (
            f"diloco.replicas={k}: replicas of one allocation take the outer step among themselves "
            "and hand nothing to a central; leave central.url out, or start replica=a and "
            "replica=b against it"
        )
    elif k > 1 and config.central.keep_deltas:
        yield (
            f"central.keep_deltas=true: with diloco.replicas={k} deltas never leave their ranks; "
            "leave it out"
        )
    if k == 1 and config.diloco.outer.device == "cpu":
        yield (
            "diloco.outer.device=cpu: with diloco.replicas=1 theta and momentum are on the disk, "
            "not on a device; leave it out"
        )


def phases_are_blocks(config: Config) -> Iterator[str]:
    """A phase trains on a whole number of blocks, since blocks are what is leased."""
    steps, batch = config.diloco.inner_steps, config.optim.batch_windows
    block = config.darl.block_windows
    windows = steps * batch
    if windows % block == 0:
        return
    unit = block // math.gcd(batch, block)
    lower, upper = steps // unit * unit, (steps // unit + 1) * unit
    near = f"{lower} or {upper}" if lower else f"{upper}"
    fit = "less than one block" if windows < block else "not a whole number of blocks"
    yield (
        f"diloco.inner_steps={steps}: times optim.batch_windows={batch} that is {windows} windows "
        f"a phase, {fit} of darl.block_windows={block}; use diloco.inner_steps={near}, or a "
        f"darl.block_windows that divides {windows}"
    )


def outer_fits(config: Config) -> Iterator[str]:
    """See `momentum_fits`."""
    yield from momentum_fits(config.diloco.outer)


def momentum_fits(outer: Outer) -> Iterator[str]:
    """sgd has no momentum, so one that is set would be ignored; nesterov without is sgd."""
    if outer.optimizer == "sgd" and outer.momentum != 0:
        yield (
            f"diloco.outer.momentum={outer.momentum:g}: diloco.outer.optimizer=sgd has none; "
            "use diloco.outer.momentum=0, or nesterov"
        )
    if outer.optimizer == "nesterov" and outer.momentum == 0:
        yield (
            "diloco.outer.momentum=0: diloco.outer.optimizer=nesterov without a momentum is sgd; "
            "give one too (diloco.outer.lr=0.7 diloco.outer.momentum=0.9 are usual, lr is "
            f"{outer.lr:g} here), or use sgd"
        )


def some_is_held_out(config: Config) -> Iterator[str]:
    """Only of other corpora may nothing be held out: nobody trains on them."""
    if isinstance(config.data, Data) and config.data.held_out == 0:
        yield (
            "data.held_out=0: nothing would be left to evaluate on; use more than 0, less than 0.5"
        )


def sets_have_names(config: Config) -> Iterator[str]:
    """A set is a column of its own."""
    names = [one.name for one in config.evaluation.sets]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"evaluation.sets: two are called {name}; give each a name of its own"


def norm_clip_fits(config: Config) -> Iterator[str]:
    """A limit below the median would shrink every delta of a round of equals."""
    clip = config.diloco.norm_clip
    if 0 < clip < 1:
        yield (
            f"diloco.norm_clip={clip:g}: below 1 it would shrink deltas of ordinary length; use 1 "
            "or more, or 0 for no clipping"
        )


def heartbeats_fit(config: Config) -> Iterator[str]:
    """A replica must be able to say that it lives before it is declared gone."""
    darl = config.darl
    if darl.heartbeat_s >= darl.detect_s:
        yield (
            f"darl.heartbeat_s={darl.heartbeat_s:g}: must be less than "
            f"darl.detect_s={darl.detect_s:g}, else every replica counts as gone"
        )
    if darl.ttl_floor_s < darl.detect_s:
        yield (
            f"darl.ttl_floor_s={darl.ttl_floor_s:g}: must be at least "
            f"darl.detect_s={darl.detect_s:g}, else a lease expires before its replica counts as "
            "gone"
        )


def retries_fit(config: Config) -> Iterator[str]:
    """The pause between tries grows up to its limit."""
    transport = config.transport
    if transport.retry_max_s < transport.retry_first_s:
        yield (
            f"transport.retry_max_s={transport.retry_max_s:g}: must be at least "
            f"transport.retry_first_s={transport.retry_first_s:g}"
        )


def url_fits_the_way(config: Config) -> Iterator[str]:
    """An object store is named where payloads go by one, and nowhere else."""
    transport = config.transport
    scheme, _, rest = transport.url.partition("://")
    lost = scheme in ("memory", "http", "https") or (scheme == "file" and rest[:1] != "/")
    if transport.kind == "file" and (not rest or lost):
        yield (
            f"transport.url={transport.url}: transport=file needs a place that every site and the "
            "central can write to and read from: s3://BUCKET/PATH, or file:///PATH of a folder "
            "that they share"
        )
    if "@" in transport.url.partition("://")[2].partition("/")[0]:
        yield (
            "transport.url: names a user or a secret before its @, but a configuration is shown, "
            "kept and sent to every site; leave that out: credentials come from the environment "
            "or from the file system's own files (AWS_ACCESS_KEY_ID, ~/.aws/credentials)"
        )
        return
    if transport.kind != "file" and transport.url != "none":
        yield f"transport.url={transport.url}: only transport=file uses it; leave it at none"


def central_is_guarded(config: Config) -> Iterator[str]:
    """Without credentials a central serves the loopback interface only."""
    central = config.central
    if central.security.keys == "none" and not is_loopback(central.host):
        yield (
            f"central.host={central.host}: without credentials the central serves this machine "
            "only; make them with python -m pww.central init host=NAME replicas=SITE/REPLICA and "
            "give central.security.keys=FOLDER, or use 127.0.0.1, ::1 or localhost"
        )


def roles_fit(config: Config) -> Iterator[str]:
    """A central's process serves something, each thing once, and shares no port with another."""
    central = config.central
    given = f"central.roles=[{','.join(central.roles)}]"
    if not central.roles:
        yield f"{given}: names no service; give one or both of coordinator, aggregator"
    for role in sorted({role for role in central.roles if central.roles.count(role) > 1}):
        yield f"{given}: names {role} more than once"
    if len(set(central.roles)) == 1:
        ports = {"aggregator_port": central.aggregator_port}
        if config.transport.kind in ("auto", "blob"):
            ports["blob_port"] = central.blob_port
        for name, port in ports.items():
            if port == central.port:
                yield (
                    f"central.{name}={port}: is central.port too, and two processes cannot share a "
                    f"port; with {given} give another one to both"
                )


def url_is_guarded(config: Config) -> Iterator[str]:
    """A site proves who it is, and asks for the central's proof, unless both are one machine."""
    url, bundle = config.central.url, config.central.bundle
    if url == "none":
        if bundle != "none":
            yield (
                f"central.bundle={bundle}: has no effect without a central; give "
                "central.url=https://HOST:PORT, or leave it out"
            )
        return
    local = f"http://127.0.0.1:{config.central.port}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment and not parts.username
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or not bare:
        yield f"central.url={url}: must be none, https://HOST:PORT, or {local}"
    elif parts.scheme == "https" and bundle == "none":
        yield (
            f"central.url={url}: needs the keys of this site; give central.bundle=FOLDER, a copy "
            "of bundles/SITE that python -m pww.central init made at the central"
        )
    elif parts.scheme == "http" and bundle != "none":
        yield (
            f"central.url={url}: central.bundle={bundle} is for a central with TLS; use "
            "https://, or leave central.bundle out"
        )
    elif parts.scheme == "http" and not is_loopback(parts.hostname):
        yield (
            f"central.url={url}: without credentials a site talks to a central on this machine "
            f"only; use https:// and central.bundle=FOLDER (python -m pww.central init makes it), "
            f"or {local}"
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine, by 127.0.0.0/8, ::1 or its usual name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tokenizer_fits(config: Config) -> Iterator[str]:
    """Where the text comes from decides whether there are files."""
    data = config.data
    if isinstance(data, Images):
        return
    if data.kind == "pydocs" and data.files:
        yield "data.files: data.kind=pydocs reads no files; use []"
    if data.kind != "pydocs" and not data.files:
        yield f"data.files=[]: data.kind={data.kind} needs at least one file or pattern"
    if data.kind != "pydocs" and not data.roots:
        yield "data.roots=[]: name at least one folder to look for data.files in"
    if data.kind in ("pydocs", "text") and data.column != "text":
        yield f"data.column={data.column}: data.kind={data.kind} has no columns or keys; use text"


RULES = (
    Rule(
        (
            "diloco.replicas",
            "parallel.ranks",
            "central.url",
            "central.keep_deltas",
            "diloco.outer.device",
        ),
        replicas_fit,
    ),
    Rule(("diloco.inner_steps", "optim.batch_windows", "darl.block_windows"), phases_are_blocks),
    Rule(("diloco.outer",), outer_fits),
    Rule(("diloco.norm_clip",), norm_clip_fits),
    Rule(("data.held_out",), some_is_held_out),
    Rule(("evaluation.sets",), sets_have_names),
    Rule(("darl.heartbeat_s", "darl.detect_s", "darl.ttl_floor_s"), heartbeats_fit),
    Rule(("transport.retry_first_s", "transport.retry_max_s"), retries_fit),
    Rule(("transport.kind", "transport.url"), url_fits_the_way),
    Rule(("central.host", "central.security"), central_is_guarded),
    Rule(
        (
            "central.roles",
            "central.port",
            "central.aggregator_port",
            "central.blob_port",
            "transport.kind",
        ),
        roles_fit,
    ),
    Rule(("central.url", "central.bundle"), url_is_guarded),
    Rule(("data.kind", "data.files", "data.roots", "data.column"), tokenizer_fits),
    *(
        Rule(keys, rule)
        for keys, rule in (
            *check_codec.RULES,
            *check_images.RULES,
            *check_model.RULES,
            *check_site.RULES,
        )
    ),
)
