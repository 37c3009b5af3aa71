"""The exception tree: what is caught by what, exit codes, and the way from rank to rank."""

import pickle

import pytest

from pww import errors
from pww.errors import (
    CentralError,
    CheckpointError,
    ConfigError,
    PwwError,
    Refused,
    Stopped,
    Unreachable,
)

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and kind.__module__ == errors.__name__
]


def make(kind: type[PwwError]) -> PwwError:
    if kind is ConfigError:
        return ConfigError(["one", "two"])
    if kind is Refused:
        return Refused("no", code="closed", retry_after_s=2.5)
    return kind("a sentence")


def test_the_docstring_lists_the_tree() -> None:
    drawn = errors.__doc__.split("\n\n")[1]
    parents: list[str] = []
    listed = {}
    for line in drawn.splitlines():
        name = next(word for word in line.split() if word[0].isalpha())
        depth = (line.index(name) - 4) // 4
        del parents[depth:]
        listed[name] = parents[-1] if parents else "Exception"
        parents.append(name)
    assert listed == {kind.__name__: kind.__base__.__name__ for kind in ALL}


@pytest.mark.parametrize("kind", ALL)
def test_every_fault_travels_as_it_is(kind: type[PwwError]) -> None:
    fault = make(kind)
    there = pickle.loads(pickle.dumps(fault))
    assert type(there) is kind
    assert str(there) == str(fault)
    assert vars(there) == vars(fault)
    assert there.exit_code == fault.exit_code


def test_exit_codes() -> None:
    special = {ConfigError: 2, Stopped: 130}
    assert {kind: kind.exit_code for kind in ALL} == {kind: special.get(kind, 1) for kind in ALL}


def test_all_faults_of_a_configuration_are_lines() -> None:
    assert str(ConfigError(["one", "two"])) == "one\ntwo"
    assert ConfigError(iter(["one", "two"])).faults == ("one", "two")


def test_trying_again_helps_where_it_says_so() -> None:
    assert Refused("no", code="closed").retry_after_s == 0.0
    assert issubclass(Unreachable, CentralError)
    assert issubclass(Refused, CentralError)
    assert not issubclass(CheckpointError, CentralError)
