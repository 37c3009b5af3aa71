"""Every fault of the tree survives the way from rank to rank, which is a pickle's."""

from copy import copy

import pytest

from pww import errors
from pww.central.blob_upload import BlobFault
from pww.central.merge import Overflow
from pww.errors import ConfigError, PwwError, Refused


def tree(kind: type[PwwError]) -> list[type[PwwError]]:
    return [kind, *(leaf for sub in kind.__subclasses__() for leaf in tree(sub))]


def example(kind: type[PwwError]) -> PwwError:
    if kind is ConfigError:
        return ConfigError(["a=1: too small", "b=2: too large"])
    if kind is Refused:
        return Refused("the central said no", code="closed")
    if kind is BlobFault:
        return BlobFault("no room", status=507)
    if kind is Overflow:
        return Overflow("weight", "0" * 32)
    return kind("what happened")


@pytest.mark.parametrize("kind", tree(PwwError))
def test_a_fault_arrives_as_it_was(kind: type[PwwError]) -> None:
    sent = example(kind)
    got = copy(sent)  # the same protocol as a pickle's
    assert type(got) is kind
    assert str(got) == str(sent)
    assert getattr(got, "code", None) == getattr(sent, "code", None)
    assert vars(got) == vars(sent)


def test_every_public_fault_is_in_the_tree() -> None:
    public = {
        n
        for n, v in vars(errors).items()
        if isinstance(v, type) and v.__module__ == errors.__name__
    }
    assert public == {
        kind.__name__ for kind in tree(PwwError) if kind.__module__ == errors.__name__
    }
