"""The door: who gets a token, what a token is good for, and that a refusal has no effect."""

import base64
import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "programs"))

from gatehouse import Gatehouse

from pww.central import credentials
from pww.central.door import MAX_OPENINGS, TOKEN_S, WINDOW_S, Door, Identity
from pww.central.strangers import MAX_FAILED, MAX_PEERS, MINUTE_S
from pww.central.tokens import Tokens, secret_in
from pww.clock import ManualClock, SystemClock
from pww.errors import Refused, StateError
from pww.transport.site_key import Open, SiteKey, fingerprint, is_signed
from pww.wire import Leave, Register, SpaceInfo

LIFE, OTHER_LIFE = "1" * 32, "2" * 32


@pytest.fixture
def house(tmp_path: Path) -> Gatehouse:
    return Gatehouse.build(tmp_path, ManualClock(1000.0))


def opened(door: Door, house: Gatehouse, replica: str = "lumi/a", life: str = LIFE) -> str:
    return "Bearer " + door.open(house.key(replica).open(replica, life), peer="p").token


def refused(call, *args, text: str, code: str = "unauthorised", **words) -> Refused:
    with pytest.raises(Refused, match=text) as caught:
        call(*args, **words)
    assert caught.value.code == code
    return caught.value


def registration(replica: str, life: str, node_key: str) -> Register:
    space = SpaceInfo(
        num_windows=1, block_windows=1, window_tokens=1, seed=0, epochs=1, permutation="x",
        corpus="0" * 64, digest="0" * 64,
    )  # fmt: skip
    return Register(
        replica=replica, incarnation=life, node_key=node_key, run="", space=space,
        model="0" * 64, last_round=0,
    )  # fmt: skip


# -------------------------------------------------------------------------------------- opening


def test_an_allowed_key_opens_a_session_for_its_replica(house: Gatehouse) -> None:
    door, key = house.door(), house.key("lumi/a")
    answer = door.open(key.open("lumi/a", LIFE))
    assert answer.ttl_s == TOKEN_S
    who = door.check(f"Bearer {answer.token}", "/v1/acquire")
    assert who == Identity("lumi/a", LIFE, fingerprint(key.public_pem))
    assert door.check(f"bearer {answer.token}", "/status") == who
    door.match(who, Leave(replica="lumi/a", incarnation=LIFE))


def test_a_key_opens_nothing_for_another_replica_and_an_unknown_one_nothing_at_all(
    house: Gatehouse,
) -> None:
    door = house.door()
    stranger = SiteKey.new(clock=house.clock)
    for key, replica in (
        (house.key("lumi/b"), "lumi/a"), (stranger, "lumi/a"), (stranger, "nobody/x"),
    ):  # fmt: skip
        refused(door.open, key.open(replica, LIFE), text=f"is not the key of replica {replica} at")


@pytest.mark.parametrize(
    "change",
    [
        {"replica": "lumi/b"}, {"incarnation": OTHER_LIFE}, {"nonce": "3" * 32},
        {"signed_s": 1000001000.5}, {"signature": base64.b64encode(b"x" * 100).decode()},
        {"signature": "="}, {"signature": "A"},
    ],
)  # fmt: skip
def test_the_signature_covers_every_field(house: Gatehouse, change: dict) -> None:
    door = house.door()
    message = house.key("lumi/a").open("lumi/a", LIFE)
    assert is_signed(message)
    forged = message.model_copy(update=change)
    assert not is_signed(forged)
    refused(door.open, forged, text="is not signed by its key|is not the key of replica")


def test_the_key_of_an_opening_is_signed_too(house: Gatehouse) -> None:
    message = house.key("lumi/a").open("lumi/a", LIFE)
    other = house.key("lumi/b").public_pem
    assert not is_signed(message.model_copy(update={"key": other}))
    assert not is_signed(message.model_copy(update={"key": "no key"}))
    # a signature by the same key for something else is none
    key = house.key("lumi/a")
    text = base64.b64encode(key.sign(b"2026-01-01T00:00:00")).decode()
    assert not is_signed(message.model_copy(update={"signature": text}))


def test_only_ec_keys_sign(house: Gatehouse) -> None:
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    message = house.key("lumi/a").open("lumi/a", LIFE)
    assert not is_signed(message.model_copy(update={"key": pem}))


@pytest.mark.parametrize("late_s", [-WINDOW_S - 1, -3600.0, WINDOW_S + 1, 1e9])
def test_an_opening_is_signed_now(house: Gatehouse, late_s: float) -> None:
    door, key = house.door(), house.key("lumi/a")
    house.clock.advance(3600.0)
    key.theirs.offset_s = -late_s
    word = "behind" if late_s > 0 else "ahead of"
    refused(door.open, key.open("lumi/a", LIFE), text=rf"signed \d+ s {word} the central's clock")
    key.theirs.offset_s = -late_s * (WINDOW_S - 1) / abs(late_s)
    door.open(key.open("lumi/a", LIFE))


def test_a_wall_clock_that_is_stepped_locks_nobody_out(house: Gatehouse) -> None:
    """Neither by an hour on nor back: the sites follow the Date header."""
    door = house.door()
    for step_s in (3600.0, -7200.0):
        house.clock.jump_wall(step_s)
        opened(door, house)


def test_an_opening_counts_once(house: Gatehouse) -> None:
    door = house.door()
    message = house.key("lumi/a").open("lumi/a", LIFE)
    door.open(message)
    refused(door.open, message, text="was used before")
    house.clock.advance(WINDOW_S - 1)
    refused(door.open, message, text="was used before")
    house.clock.advance(2)
    refused(door.open, message, text="behind the central's clock")


def test_a_signature_that_is_bent_is_still_the_same_opening(house: Gatehouse) -> None:
    """(r, n - s) verifies like (r, s): what counts once is the message."""
    from cryptography.hazmat.primitives.asymmetric import utils

    order = int(
        "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf"
        "581a0db248b0a77aecec196accc52973", 16,
    )  # fmt: skip
    door = house.door()
    message = house.key("lumi/a").open("lumi/a", LIFE)
    r, s = utils.decode_dss_signature(base64.b64decode(message.signature))
    bent = base64.b64encode(utils.encode_dss_signature(r, order - s)).decode()
    again = message.model_copy(update={"signature": bent})
    assert bent != message.signature
    assert is_signed(again)
    door.open(message)
    refused(door.open, again, text="was used before")


def test_an_opening_from_before_a_restart_is_void(house: Gatehouse) -> None:
    message = house.key("lumi/a").open("lumi/a", LIFE)
    house.door().open(message)
    house.clock.advance(30.0)
    door = house.door()
    refused(door.open, message, text="older than this central's process")
    opened(door, house)


def test_openings_are_remembered_within_bounds(house: Gatehouse) -> None:
    door = house.door()
    for number in range(MAX_OPENINGS):
        assert door._is_new(str(number))
    assert not door._is_new("0")
    refused(door._is_new, "x", text="sessions were opened in the last 600 s: wait", code="too_many")
    house.clock.advance(2 * WINDOW_S + 1)
    assert door._is_new("x")
    assert len(door._openings) == 1


# --------------------------------------------------------------------------------------- tokens


def test_without_a_token_nothing_opens(house: Gatehouse) -> None:
    door = house.door()
    good = opened(door, house)
    for header in ("", "Bearer", "Bearer ", "Basic " + good[7:], good[7:]):
        refused(door.check, header, "/v1/acquire", text="without a credential")
    for header in (
        "Bearer x", "Bearer 1~2~3~4~5~6", good + "0", good[:-1], "Bearer \u00fc\udc80", "Bearer ~",
        good.replace("lumi/a", "lumi/b"), good.replace(LIFE, OTHER_LIFE),
    ):  # fmt: skip
        refused(door.check, header, "/v1/acquire", text="a token that is not of this central")


def test_a_later_expiry_or_another_version_cannot_be_written_in(house: Gatehouse) -> None:
    door = house.door()
    good = opened(door, house)
    *head, expiry, mac = good.split("~")
    later = "~".join((*head, str(int(expiry) + 1), mac))
    refused(door.check, later, "/v1/acquire", text="not of this central")
    tokens = Tokens(secret_in(house.state))
    text = f"2~lumi/a~{LIFE}~{'0' * 64}~9"
    assert tokens.read(f"{text}~{tokens._mac(text.encode())}") is None


def test_a_token_expires_and_that_is_no_news(house: Gatehouse, caplog) -> None:
    door = house.door()
    token = opened(door, house)
    house.clock.advance(TOKEN_S - 1)
    door.check(token, "/v1/acquire")
    house.clock.advance(2)
    with caplog.at_level(logging.INFO):
        refused(door.check, token, "/v1/acquire", text="the token expired 1 s ago: open a session")
    assert caplog.text == ""


def test_tokens_outlive_a_restart_but_not_the_state_folder(house: Gatehouse) -> None:
    token = opened(house.door(), house)
    assert house.door().check(token, "/v1/acquire").replica == "lumi/a"
    secret = house.state / "session.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.unlink()
    refused(house.door().check, token, "/v1/acquire", text="not of this central")
    for damage in ("xyz", "00"):
        secret.write_text(damage)
        with pytest.raises(StateError, match=r"session\.secret .*delete it and start again"):
            house.door()


def test_a_revoked_key_dies_at_once_and_the_others_live(house: Gatehouse) -> None:
    door = house.door()
    dead, alive, same = (opened(door, house, name) for name in ("lumi/a", "sara/a", "lumi/b"))
    before, key = door.keys(), house.key("lumi/a")
    assert door.keys() is before
    credentials.revoke(house.folder, replica="lumi/a")
    refused(door.check, dead, "/v1/acquire", text="key of replica lumi/a was revoked")
    refused(door.check, dead, "/status", text="key of replica lumi/a was revoked")
    refused(door.open, key.open("lumi/a", LIFE), text="was revoked")
    for token in (alive, same):
        door.check(token, "/v1/acquire")
    assert door.keys() is not before
    assert "lumi/a" not in door.keys().values()
    # a new key of the same replica does not wake the old token
    credentials.add(house.folder, hosts=[], replicas=["lumi/a"], port=1, clock=SystemClock())
    door.check(opened(door, house), "/v1/acquire")
    refused(door.check, dead, "/v1/acquire", text="was revoked")
    credentials.revoke(house.folder, site="sara")
    refused(door.check, alive, "/v1/acquire", text="was revoked")


def test_the_operator_reads_and_does_nothing_else(house: Gatehouse) -> None:
    door = house.door()
    operator = "Bearer " + (house.folder / "operator.token").read_text()
    for path in ("/status", "/metrics", "/"):
        assert door.check(operator, path).replica == ""
    for path in ("/v1/acquire", "/v1/register", "/v1/fleet/pull-messages"):
        refused(door.check, operator, path, text="not of this central")
    refused(door.check, operator[:-1], "/status", text="not of this central")
    (house.folder / "operator.token").unlink()
    with pytest.raises(StateError, match=r"operator\.token cannot be read"):
        house.door()


def test_a_message_is_its_senders_own(house: Gatehouse) -> None:
    door = house.door()
    who = door.check(opened(door, house), "/v1/leave")
    for replica, life in (("lumi/b", LIFE), ("lumi/a", OTHER_LIFE)):
        message = Leave(replica=replica, incarnation=life)
        refused(door.match, who, message, text=f"in the name of {replica}.*token of lumi/a")
    pem, other = house.key("lumi/a").public_pem, house.key("lumi/b").public_pem
    door.match(who, registration("lumi/a", LIFE, pem))
    door.match(who, registration("lumi/a", LIFE, ""))
    for wrong in (other, "no key", pem.replace("\n", "\r\n")):
        refused(
            door.match, who, registration("lumi/a", LIFE, wrong), text="node key that is not its"
        )


def test_a_node_has_the_key_of_its_token(house: Gatehouse) -> None:
    door, path = house.door(), "/v1/fleet/pull-messages"
    token, pem = opened(door, house), house.key("lumi/a").public_pem
    assert door.check_node(token, path, pem, peer="").replica == "lumi/a"
    other = house.key("lumi/b").public_pem
    refused(door.check_node, token, path, other, peer="", text="another one's node key")
    refused(door.check_node, "", path, pem, peer="", text="without a credential")


# -------------------------------------------------------------------------------------- refusals


def test_each_refusal_is_logged_once_and_no_secret_ever(house: Gatehouse, caplog) -> None:
    door = house.door()
    token, operator = opened(door, house)[7:], (house.folder / "operator.token").read_text()
    message = house.key("lumi/a").open("lumi/a", LIFE)
    door.open(message)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            for peer in ("10.0.0.1", "10.0.0.2"):
                for header in ("", f"Bearer {token}x", f"Bearer {operator}"):
                    with pytest.raises(Refused):
                        door.check(header, "/v1/a\nb" + "c" * 300, peer=peer)
                with pytest.raises(Refused):
                    door.open(message, peer=peer)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == 6
    assert sum("10.0.0.1" in line for line in lines) == 3
    for secret in (
        token,
        operator,
        message.signature,
        (house.state / "session.secret").read_text(),
    ):
        assert secret not in caplog.text
    assert "\nb" not in caplog.text
    assert max(map(len, lines)) < 300


def test_the_log_of_refusals_is_bounded(house: Gatehouse, caplog) -> None:
    door = house.door()

    def knock(number: int) -> None:
        with pytest.raises(Refused):
            door.check("", "/status", peer=f"peer-{number}")

    with caplog.at_level(logging.WARNING):
        for number in range(MAX_PEERS + 50):
            knock(number)
    assert len(caplog.records) == MAX_PEERS + 1
    assert "more of this hour are counted only" in caplog.text
    assert door._strangers.num_refused == MAX_PEERS + 50
    house.clock.advance(3600.0)
    caplog.clear()
    knock(0)
    assert len(caplog.records) == 1


def test_an_address_whose_openings_fail_has_to_wait(house: Gatehouse) -> None:
    door, key = house.door(), house.key("lumi/a")
    stranger = SiteKey.new(clock=house.clock)
    for _ in range(MAX_FAILED):
        refused(door.open, stranger.open("lumi/a", LIFE), peer="bad", text="is not the key")
    house.clock.advance(10.0)
    why = refused(
        door.open, key.open("lumi/a", LIFE), peer="bad", code="too_many",
        text=r"10 openings from this address failed within 60 s: wait 50 s",
    )  # fmt: skip
    assert why.retry_after_s == MINUTE_S - 10.0
    door.open(key.open("lumi/a", LIFE), peer="good")
    house.clock.advance(MINUTE_S - 10.0)
    door.open(key.open("lumi/a", LIFE), peer="bad")
    refused(door.open, stranger.open("lumi/a", LIFE), peer="bad", text="is not the key")
    door.open(key.open("lumi/a", LIFE), peer="bad")  # counted from one again
    for number in range(2 * MAX_PEERS):
        door._strangers.failed(str(number))
    assert len(door._strangers._failed) == MAX_PEERS


def test_a_list_that_cannot_be_read_lets_nobody_in_and_says_so(house: Gatehouse) -> None:
    door = house.door()
    token, message = opened(door, house), house.key("lumi/a").open("lumi/a", LIFE)
    (house.folder / "allowed.json").write_text("{")
    for call in (lambda: door.check(token, "/status"), lambda: door.open(message), door.keys):
        with pytest.raises(StateError, match="nobody is let in until it is there again"):
            call()


def test_a_door_holds_nothing_per_request(house: Gatehouse) -> None:
    door = house.door()
    token = opened(door, house)
    sizes = [len(door._openings), len(door._strangers._said), len(door._strangers._failed)]
    for _ in range(100):
        door.check(token, "/v1/acquire")
    assert sizes == [len(door._openings), len(door._strangers._said), len(door._strangers._failed)]


def test_the_messages_hold_no_newline(house: Gatehouse, tmp_path: Path) -> None:
    """What is signed is joined by newlines, so no field may have one."""
    message = SiteKey.new(clock=ManualClock(0.0)).open("lumi/a", LIFE)
    for field in ("replica", "incarnation", "nonce", "signature"):
        values = message.model_dump() | {field: getattr(message, field) + "\n"}
        with pytest.raises(ValueError, match=field):
            Open.model_validate(values)
