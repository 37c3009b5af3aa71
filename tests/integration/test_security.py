"""A central with TLS and keys as a process, real sites, and everybody who should not get in."""

import json
import socket
from pathlib import Path

import httpx
import pytest
from conftest import CLOSED_FORM, Child, NursedProject
from cryptography.hazmat.primitives.asymmetric import ec

from pww.central.audit import audit
from pww.central.authority import make_certificate
from pww.central.credentials import SERVER, SERVER_KEY
from pww.clock import ManualClock, SystemClock
from pww.federation.gate import FLEET
from pww.log import read_json_lines
from pww.transport.bundle import Bundle
from pww.transport.site_key import SiteKey, private_pem, read_key
from pww.transport.tls import client_context
from pww.wire import Acquire, Heartbeat, Leave, Refusal, Release

QUICK = (
    "data.max_windows=480", "diloco.inner_steps=20", "darl.heartbeat_s=0.3", "darl.detect_s=1.5",
    "darl.ttl_floor_s=3", "darl.restore_grace_s=3", "transport.poll_s=0.1",
    "transport.retry_max_s=1", "metrics.wandb.mode=disabled", "optim.batch_windows=4",
)  # fmt: skip
CALLS = ("register", "acquire", "heartbeat", "release", "leave")
LIFE = "1" * 32


class Secured:
    """One central with keys for local/a, local/b and other/a, and what its sites have."""

    def __init__(self, project: NursedProject, ports: tuple[int, int]) -> None:
        self.project, self.ports = project, ports
        self.keys = project.outputs / "keys"
        self.command("init", "host=central.example", "replicas=local/a,local/b,other/a")
        self.bundle = self.keys / "bundles" / "local"
        self.tls = client_context((self.keys / "ca.pem").read_text())
        self.url = f"https://127.0.0.1:{ports[0]}"

    def command(self, *words: str) -> str:
        done = self.project.run("-m", "pww.central", *words, "folder=outputs/keys")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def central(self, *overrides: str) -> Child:
        coordinator, aggregator = self.ports
        child = self.project.start(
            "-m", "pww.central", *QUICK, "run.name=central", f"central.port={coordinator}",
            f"central.aggregator_port={aggregator}",
            f"central.blob_port={aggregator}", "central.security.keys=outputs/keys",
            *overrides, name="central",
        )  # fmt: skip
        child.until(lambda: "serves https://" in child.text())
        return child

    def site(
        self, replica: str, *overrides: str, bundle: Path | None = None, run: str = "", **env: str
    ) -> Child:
        return self.project.start(
            str(CLOSED_FORM), *QUICK, f"replica={replica}", f"run.name={run or replica}",
            f"central.url={self.url}", f"central.bundle={bundle or self.bundle}", *overrides,
            name=replica, **env,
        )  # fmt: skip

    def client(self) -> httpx.Client:
        return httpx.Client(verify=self.tls, trust_env=False, timeout=30.0)

    def session(self, client: httpx.Client, name: str, life: str = LIFE) -> dict[str, str]:
        """The header of a session of local/`name`, opened by hand."""
        clock = SystemClock()
        key = Bundle.read(self.bundle, replica=f"local/{name}", clock=clock).key
        opening = key.open(f"local/{name}", life).model_dump_json()
        answer = client.post(f"{self.url}/v1/open", content=opening)
        assert answer.status_code == 200, answer.text
        return {"authorization": f"Bearer {answer.json()['token']}"}

    def status(self) -> dict:
        operator = (self.keys / "operator.token").read_text()
        with self.client() as client:
            answer = client.get(
                f"{self.url}/status", headers={"authorization": f"Bearer {operator}"}
            )
        assert answer.status_code == 200
        return answer.json()

    def check_exactly_once(self) -> None:
        books = audit(self.project.outputs / "central")
        assert books.ok
        assert books.exactly_once == books.blocks > 0

    def merged_by(self, run: str) -> list[dict]:
        rows = read_json_lines(self.project.outputs / run / "metrics.jsonl")
        return [row for row in rows if row["split"] == "outer"]


@pytest.fixture
def secured(nursed: NursedProject, free_ports: tuple[int, int]) -> Secured:
    return Secured(nursed, free_ports)


def test_two_sites_train_to_the_end_and_no_secret_is_written_anywhere(secured: Secured) -> None:
    everything = "metrics.wandb.mode=offline"  # what can write, writes
    central = secured.central(everything)
    sites = [secured.site(name, everything, STEP_S="0.02") for name in ("a", "b")]
    with secured.client() as client:
        token = secured.session(client, "a", "9" * 32)["authorization"].split()[1]
    assert [site.wait() for site in sites] == [0, 0]
    assert central.wait() == 0
    secured.check_exactly_once()
    secret_file = secured.project.outputs / "central/central/session.secret"
    assert secret_file.stat().st_mode & 0o777 == 0o600
    secrets = {secret_file.read_text(), (secured.keys / "operator.token").read_text()}
    secrets |= {path.read_text().splitlines()[1] for path in secured.keys.rglob("*.key.pem")}
    secrets |= {token.rsplit("~")[-1], "Bearer"}
    looked = 0
    for path in secured.project.folder.rglob("*"):
        ours = path.is_file() and secured.keys not in path.parents and path != secret_file
        if ours and path.suffix not in (".py", ".pyc", ".md"):
            looked += 1
            content = path.read_bytes()
            assert not [word for word in secrets if word.encode() in content], path
    assert looked > 50
    for run in ("central", "a", "b"):
        assert list((secured.project.outputs / run / "wandb").glob("offline-run-*/*.wandb"))
    frozen = (secured.project.outputs / "a" / "config.yaml").read_text()
    assert f"bundle: {secured.bundle}" in frozen


def test_a_killed_site_goes_on_with_the_same_key(secured: Secured) -> None:
    """A requeue within seconds: the node of the dead process is its own again."""
    central = secured.central()
    a, b = (secured.site(name, STEP_S="0.05") for name in ("a", "b"))
    a.until(lambda: len(secured.merged_by("a")) >= 1)
    a.kill()
    again = secured.site("a", STEP_S="0.02")
    assert again.wait() == 0
    assert b.wait() == 0
    assert central.wait() == 0
    secured.check_exactly_once()


def test_the_central_is_killed_and_sessions_go_on(secured: Secured) -> None:
    central = secured.central()
    sites = [secured.site(name, STEP_S="0.05") for name in ("a", "b")]
    central.until(lambda: len(secured.merged_by("central")) >= 1)
    central.kill()
    (secured.project.outputs / "central/central/session.secret").unlink()  # not even that matters
    central = secured.central()
    assert [site.wait() for site in sites] == [0, 0]
    assert central.wait() == 0
    secured.check_exactly_once()


def test_a_site_that_is_revoked_in_the_middle_of_a_run(secured: Secured) -> None:
    central = secured.central()
    a, b = (secured.site(name, STEP_S="0.1") for name in ("a", "b"))
    b.until(lambda: len(secured.merged_by("b")) >= 1)
    bundle = {path: path.read_bytes() for path in secured.bundle.iterdir()}
    assert "revoked local/b" in secured.command("revoke", "replica=local/b")
    assert b.wait(30) == 1
    assert "the key of replica local/b was revoked" in b.text() or "is not the key of" in b.text()
    assert "Traceback" not in b.text()
    for path, content in bundle.items():  # the site has a copy of its own
        path.write_bytes(content)
        path.chmod(0o600)
    again = secured.site("b")
    assert again.wait(60) == 1
    assert "is not the key of replica local/b at this central" in again.text()
    assert a.wait() == 0
    assert central.wait() == 0
    secured.check_exactly_once()
    assert "local/b takes part no more" in central.text()
    assert central.text().count("the key of replica local/b was revoked") <= 1


def stranger_with(secured: Secured, folder: Path, **changes: object) -> Path:
    """A copy of the bundle in which files are others; "" removes one."""
    folder.mkdir()
    for path in secured.bundle.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, content in changes.items():
        path = folder / name.replace("__", ".")
        path.unlink()
        path.write_bytes(content)  # type: ignore[arg-type]
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


def test_sites_that_cannot_prove_themselves_end_with_a_sentence(
    secured: Secured, tmp_path: Path
) -> None:
    central = secured.central()
    blocks = secured.status()
    made = private_pem(ec.generate_private_key(ec.SECP384R1()))
    other_keys = secured.project.outputs / "other-keys"
    done = secured.project.run(
        "-m", "pww.central", "init", "replicas=local/a", "folder=outputs/other-keys"
    )
    assert done.returncode == 0
    cases = [
        (stranger_with(secured, tmp_path / "key", a__key__pem=made), "is not the key of replica"),
        (other_keys / "bundles/local", "not of the central that this bundle belongs to"),
        (secured.keys / "bundles/other", "is the bundle of site other"),
        (tmp_path / "none", "set central.bundle to the folder of this site's bundle"),
    ]
    for number, (bundle, told) in enumerate(cases):
        site = secured.site("a", bundle=bundle, run=f"try-{number}")
        assert site.wait(60) == 1
        assert told in site.text()
        assert "Traceback" not in site.text()
    plain = secured.site("a", f"central.url=http://127.0.0.1:{secured.ports[0]}")
    assert plain.wait(60) != 0
    assert "central.bundle=" in plain.text()
    assert secured.status() == blocks | {k: v for k, v in secured.status().items() if "_s" in k}
    assert central.text().count("is not the key of replica local/a") == 1
    central.signal(15)
    assert central.wait(30) == 130


def test_an_expired_certificate_ends_the_site_with_the_remedy(secured: Secured) -> None:
    ca_key = read_key((secured.keys / "ca.key.pem").read_bytes(), name="ca", remedy="")
    key = ec.generate_private_key(ec.SECP384R1())
    pem = make_certificate(
        key, ca_pem=(secured.keys / "ca.pem").read_text(), ca_key=ca_key, hosts=[],
        clock=ManualClock(0.0), years=1,
    )  # fmt: skip
    (secured.keys / SERVER).write_text(pem)
    (secured.keys / SERVER_KEY).write_bytes(private_pem(key))
    central = secured.central()
    site = secured.site("a")
    assert site.wait(60) == 1
    assert "has expired: make a new one there with python -m pww.central add host=" in site.text()
    assert "Traceback" not in site.text()
    central.kill()
    secured.command("add", "host=central.example")
    central, site = secured.central(), secured.site("a")
    assert site.wait() == 0
    assert central.wait() == 0


def test_every_route_of_every_port_wants_a_credential(secured: Secured) -> None:
    central = secured.central()
    before = secured.status()
    flower = f"https://127.0.0.1:{secured.ports[1]}"
    acquire = Acquire(
        replica="local/a", incarnation=LIFE, key="2" * 32, num_blocks=1, ttl_s=60.0
    ).model_dump_json()
    with secured.client() as client:
        own = secured.session(client, "a")
        other = secured.session(client, "b")
        operator = {"authorization": f"Bearer {(secured.keys / 'operator.token').read_text()}"}
        damaged = {"authorization": own["authorization"][:-1] + "x"}
        basic = {"authorization": own["authorization"].replace("Bearer", "Basic")}
        for _ in range(2):
            for wrong in ({}, damaged, basic, {"authorization": "Bearer x"}):
                for name in CALLS:
                    answer = client.post(f"{secured.url}/v1/{name}", headers=wrong, content=acquire)
                    assert answer.status_code == 401, name
                    assert Refusal.model_validate_json(answer.content).code == "unauthorised"
                for path in ("/status", "/metrics", "/", "/docs", "/v1/open", "/v1/x"):
                    assert client.get(f"{secured.url}{path}", headers=wrong).status_code == 401
            for path in sorted(FLEET):
                for header in ({}, damaged, own, operator):
                    assert client.post(f"{flower}{path}", headers=header).status_code == 401
            assert client.post(f"{secured.url}/v1/acquire", headers=operator).status_code == 401
            # another replica's token, and one's own of another life
            answer = client.post(f"{secured.url}/v1/acquire", headers=other, content=acquire)
            assert answer.status_code == 401
            assert "in the name of local/a" in answer.json()["message"]
        for path in ("/v1/control", "/v1/fleet/register-node", "/status"):
            assert client.post(f"{flower}{path}", headers=own).status_code == 404
        for url in (secured.url, flower):
            assert client.get(f"{url}/health").status_code == 200
        for header in (own, operator):
            for path in ("/status", "/metrics"):
                assert client.get(f"{secured.url}{path}", headers=header).status_code == 200
        # with its own token a life that never registered still gets nothing
        answer = client.post(f"{secured.url}/v1/acquire", headers=own, content=acquire)
        assert answer.json()["code"] == "unknown_incarnation"
    after = secured.status()
    assert after["coverage"] == before["coverage"]
    assert after["round"] == before["round"]
    lines = [line for line in central.text().splitlines() if "refused 127.0.0.1" in line]
    assert 3 <= len(lines) == len(set(lines)) <= 6
    central.signal(15)
    assert central.wait(30) == 130


def test_the_doctor_goes_the_way_of_a_site_and_leaves_nothing(secured: Secured) -> None:
    central = secured.central()
    before = secured.status()
    blobs = f"central.blob_port={secured.ports[1]}"
    ports = (f"central.port={secured.ports[0]}", f"central.aggregator_port={secured.ports[1]}")
    words = ("json=true", f"central.url={secured.url}", *ports, blobs)

    def told(*more: str) -> dict[str, dict]:
        done = secured.project.run("-m", "pww.doctor", *words, *more)
        assert done.stdout, done.stderr
        said = json.loads(done.stdout)
        assert done.returncode == (0 if said["usable"] else 1), done.stderr
        return {one["what"]: one for one in said["findings"]}

    found = told("replica=a", f"central.bundle={secured.bundle}")
    for what in ("leases", "clock", "deltas", "blobs", "key", "up", "down"):
        assert found[what]["state"] in ("good", "warning"), found[what]
    assert found["key"]["told"] == "the central takes the key of local/a"
    for way in ("up", "down"):
        assert found[way]["figures"]["bytes_per_s"] > 0
        assert found[way]["figures"]["streams"] == 16
    other = stranger_with(
        secured, secured.project.folder / "stranger",
        a__key__pem=private_pem(ec.generate_private_key(ec.SECP384R1())),
    )  # fmt: skip
    found = told("replica=a", f"central.bundle={other}")
    assert (found["leases"]["state"], found["key"]["state"]) == ("good", "bad")
    assert "is not the key of replica local/a at this central" in found["key"]["told"]
    assert not {"up", "down"} & set(found)
    after = secured.status()
    assert (after["members"], after["coverage"]) == (before["members"], before["coverage"])
    stored = secured.project.outputs / "central/central/blobs"
    assert [path for path in stored.rglob("*") if path.is_file()] == []
    assert central.code is None
    central.signal(15)
    assert central.wait(30) == 130


def test_plain_text_and_strangers_certificates_get_nowhere(secured: Secured) -> None:
    central = secured.central()
    for port in secured.ports:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"https://127.0.0.1:{port}/health", trust_env=False)
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            secured.tls.wrap_socket(raw, server_hostname="central.example") as tls,
        ):
            assert tls.version() in ("TLSv1.2", "TLSv1.3")
    assert secured.status()["round"] == 0
    assert "Traceback" not in central.text()
    central.signal(15)
    assert central.wait(30) == 130


def test_hostile_bodies_are_refused_without_effect(secured: Secured) -> None:
    central = secured.central()
    before = secured.status()["coverage"]
    good = {"replica": "local/a", "incarnation": LIFE}
    bodies: list[bytes] = [
        json.dumps(good | {"replica": name, "leases": []}).encode()
        for name in ("../x", "local/../x", "/etc/passwd", "local/a\n", "local\\a", "")
    ]
    bodies += [b"", b"{", b"[" * 100_000, b'{"replica":' * 1000, b"\xff\xfe", b"null"]
    large = b'{"x": "' + b"a" * 10_000_000 + b'"}'
    with secured.client() as client:
        own = secured.session(client, "a")
        for body in bodies:
            for name in (*CALLS, "open"):
                answer = client.post(f"{secured.url}/v1/{name}", headers=own, content=body)
                assert answer.status_code == 400, (name, body[:40])
        assert client.post(f"{secured.url}/v1/open", content=large).status_code == 413
        assert (
            client.post(f"{secured.url}/v1/acquire", headers=own, content=large).status_code == 413
        )
        try:  # without a token the answer comes before the body is read
            status = client.post(f"{secured.url}/v1/acquire", content=large).status_code
        except httpx.TransportError:
            status = 401  # the connection was closed under the sender
        assert status == 401
        for message in (
            Leave(replica="local/b", incarnation=LIFE),
            Heartbeat(replica="local/a", incarnation="7" * 32, leases=()),
            Release(replica="other/a", incarnation=LIFE, leases=(0,)),
        ):
            name = type(message).__name__.lower()
            text = message.model_dump_json()
            assert (
                client.post(f"{secured.url}/v1/{name}", headers=own, content=text).status_code
                == 401
            )
    assert secured.status()["coverage"] == before
    told = [line.partition("refused 127.0.0.1: ")[2] for line in central.text().splitlines()]
    told = [reason for reason in told if reason]
    assert told, "an operator reads of it"
    assert len(told) == len(set(told)) <= 8, "a line a kind, of a hundred requests"
    assert sum("not a valid " in reason for reason in told) == 1
    assert sum("has more than" in reason for reason in told) == 1
    made = {path.name for path in secured.project.outputs.iterdir()}
    assert not made & {"x", "passwd"}
    assert central.process.poll() is None
    assert "Traceback" not in central.text()
    central.signal(15)
    assert central.wait(30) == 130


def test_a_node_key_that_is_not_the_tokens_cannot_be_registered(secured: Secured) -> None:
    central = secured.central()
    with secured.client() as client:
        own = secured.session(client, "a")
        register = {
            "protocol": 1, "replica": "local/a", "incarnation": LIFE, "run": "", "last_round": 0,
            "node_key": SiteKey.new(clock=SystemClock()).public_pem, "model": "0" * 64,
            "space": {
                "num_windows": 1, "block_windows": 1, "window_tokens": 1, "seed": 0, "epochs": 1,
                "permutation": "x", "corpus": "0" * 64, "digest": "0" * 64,
            },
        }  # fmt: skip
        answer = client.post(
            f"{secured.url}/v1/register", headers=own, content=json.dumps(register)
        )
        assert answer.status_code == 401
        assert "a node key that is not its key" in answer.json()["message"]
    central.signal(15)
    assert central.wait(30) == 130


@pytest.mark.parametrize(
    ("program", "words", "told"),
    [
        ("pww.central", ["central.host=0.0.0.0"], "central.security.keys=FOLDER"),
        ("pww.central", ["central.bundle=x"], "is a site's; the central has central.security.keys"),
        ("pww.train", ["central.url=https://c.example:1"], "give central.bundle=FOLDER"),
        ("pww.train", ["central.url=http://c.example:1"], "use https:// and central.bundle=FOLDER"),
    ],
)
def test_off_loopback_nothing_starts_without_credentials(
    nursed: NursedProject, program: str, words: list[str], told: str
) -> None:
    done = nursed.run("-m", program, *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_folder_without_keys_is_refused_before_a_port_is_taken(nursed: NursedProject) -> None:
    done = nursed.run("-m", "pww.central", "central.security.keys=outputs/nothing", *QUICK)
    assert done.returncode == 1
    assert "give central.security.keys the folder that python -m pww.central init made" in (
        done.stdout + done.stderr
    )
    assert "Traceback" not in done.stdout + done.stderr
