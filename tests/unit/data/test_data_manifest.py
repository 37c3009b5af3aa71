import hashlib
import json

import pytest
from pydantic import ValidationError

from pww.data.manifest import FILE, Manifest, Shard, canonical_json, read_manifest
from pww.errors import DataError


def manifest(**changes):
    fields = {
        "tool": "pww.data/2",
        "corpus": "c" * 64,
        "tokenizer": "d" * 64,
        "window_tokens": 65,
        "dtype": "uint16",
        "vocab_size": 300,
        "padded_vocab": 512,
        "end_of_document": 0,
        "num_documents": 3,
        "num_empty": 1,
        "num_tokens": 11 * 65 + 7,
        "num_windows": 10,
        "num_held_out": 1,
        "num_left_out": 0,
        "tail_tokens": 7,
        "shards": (Shard(name="train-00000.npy", windows=10, size_bytes=1428, sha256="a" * 64),),
        "held_out": (Shard(name="held_out-00000.npy", windows=1, size_bytes=258, sha256="b" * 64),),
    }
    return Manifest(**fields | changes)


def test_the_file_has_sorted_keys_and_a_digest_of_all_the_rest(tmp_path):
    made = manifest()
    fields = json.loads(made.to_json())
    assert list(fields) == sorted(fields)
    digest = fields.pop("digest")
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert digest == hashlib.sha256(text.encode()).hexdigest() == made.digest


def test_what_is_written_is_read(tmp_path):
    (tmp_path / FILE).write_bytes(manifest().to_json())
    assert read_manifest(tmp_path / FILE) == manifest()
    assert read_manifest(tmp_path / FILE).seq_len == 64


@pytest.mark.parametrize("change", [{"num_windows": 9}, {"corpus": "e" * 64}, {"held_out": ()}])
def test_every_field_is_in_the_digest(change):
    assert manifest(**change).digest != manifest().digest


def test_a_manifest_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        manifest().num_windows = 3


def test_a_changed_manifest_is_refused_with_both_digests(tmp_path):
    path = tmp_path / FILE
    path.write_bytes(manifest().to_json().replace(b'"num_windows": 10', b'"num_windows": 11'))
    with pytest.raises(DataError) as fault:
        read_manifest(path)
    assert str(fault.value) == (
        f"{path} says digest {manifest().digest}, but its content has"
        f" {manifest(num_windows=11).digest}; delete {tmp_path} and start again"
    )


def test_a_missing_manifest_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"cannot read .*manifest.json: No such file.*; delete .* and start"
    ):
        read_manifest(tmp_path / FILE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not json", "Expecting value"),
        (b"[1]", "not a JSON object"),
        (b"{}", "no key 'digest'"),
        (b'{"digest": "x"}', "tool: Field required"),
        (b"\xff", "decode"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path, content, reason):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(
        DataError, match=r"is not a manifest of pww.data/2 \(.*\); delete "
    ) as fault:
        read_manifest(tmp_path / FILE)
    assert reason in str(fault.value)


def test_unknown_keys_are_refused(tmp_path):
    fields = json.loads(manifest().to_json()) | {"extra": 1}
    (tmp_path / FILE).write_text(json.dumps(fields))
    with pytest.raises(DataError, match=r"extra: Extra inputs are not permitted"):
        read_manifest(tmp_path / FILE)


def test_canonical_json_has_one_spelling():
    assert canonical_json({"b": "é", "a": [1, 2]}) == '{"a":[1,2],"b":"é"}'.encode()
