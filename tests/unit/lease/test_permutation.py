"""The permutation against an independent derivation from its docstring, and published vectors."""

import hashlib

import pytest

from pww.lease.permutation import Permutation


def reference(n: int, label: str, x: int) -> int:
    """The docstring once more, in another style: lists of bits of state, no shared code."""
    w = 1
    while 4**w < n:
        w += 1
    stream = b""
    for half in "01":
        stream += hashlib.sha256(("pww feistel-1 " + label + " " + half).encode()).digest()
    keys = [int(stream[i : i + 8].hex(), 16) for i in range(0, 64, 8)]

    def mix(k: int, v: int) -> int:
        z = (v + k) % 2**64
        z = ((z ^ (z // 2**30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z // 2**27)) * 0x94D049BB133111EB) % 2**64
        return (z ^ (z // 2**31)) % 2**w

    while True:
        high, low = divmod(x, 2**w)
        for k in keys:
            high, low = low, high ^ mix(k, low)
        x = high * 2**w + low
        if x < n:
            return x


VECTORS = [
    (1, "blocks 0 0", [0]),
    (5, "blocks 0 0", [3, 0, 2, 1, 4]),
    (16, "windows 0 0 3", [5, 7, 14, 8, 1, 9, 4, 3]),
    (100, "blocks 1234 1", [58, 94, 97, 33, 13, 82, 39, 74]),
    (
        1000000000,
        "blocks 1234 0",
        [796959743, 623138687, 454111955, 191121384, 847801021, 383286352, 942994782, 559177311],
    ),
    (
        2305843009213693952,
        "blocks 0 0",
        [
            2219169678476377108,
            1406234418657951254,
            501174446792429127,
            1232173537028837624,
            1190360997871745538,
            385886684684354047,
            1901664567038403985,
            390400813594958430,
        ],
    ),
]


@pytest.mark.parametrize(("n", "label", "images"), VECTORS)
def test_published_vectors(n: int, label: str, images: list[int]) -> None:
    permutation = Permutation(n, label=label)
    assert [permutation(i) for i in range(len(images))] == images
    assert [reference(n, label, i) for i in range(len(images))] == images


@pytest.mark.parametrize("n", [*range(1, 70), 255, 256, 257, 1000, 4096, 4097])
def test_it_is_a_bijection_with_its_inverse(n: int) -> None:
    permutation = Permutation(n, label="blocks 7 0")
    images = [permutation(i) for i in range(n)]
    assert sorted(images) == list(range(n))
    assert [permutation.inverse(image) for image in images] == list(range(n))


def test_a_billion_items_cost_what_ten_cost() -> None:
    small, large = Permutation(10, label="x"), Permutation(10**9, label="x")
    assert [small._keys, type(large._keys)] == [large._keys, tuple]
    for i in (0, 1, 123_456_789, 10**9 - 1):
        image = large(i)
        assert 0 <= image < 10**9
        assert large.inverse(image) == i


def test_labels_give_unrelated_orders() -> None:
    n = 1000
    a, b = Permutation(n, label="blocks 1 0"), Permutation(n, label="blocks 1 1")
    fixed = sum(a(i) == b(i) for i in range(n))
    # the number of agreements of two random permutations is Poisson(1): 10 or more has p < 1e-7
    assert fixed < 10


def test_neighbours_are_spread_evenly() -> None:
    """Images of the first tenth: each tenth of the range gets a tenth of them (chi-square)."""
    n, counts = 10_000, [0] * 10
    permutation = Permutation(n, label="blocks 3 0")
    for i in range(1000):
        counts[permutation(i) * 10 // n] += 1
    chi2 = sum((c - 100) ** 2 / 100 for c in counts)
    assert chi2 < 33.7  # 9 degrees of freedom, p = 1e-4


@pytest.mark.parametrize("value", [-1, 10])
def test_outside_is_an_error(value: int) -> None:
    permutation = Permutation(10, label="x")
    with pytest.raises(IndexError, match=rf"{value} is outside \[0, 10\)"):
        permutation(value)
    with pytest.raises(IndexError, match="outside"):
        permutation.inverse(value)
