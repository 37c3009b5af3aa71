import pytest

from pww.data.split import Part, is_held_out, section_length, split


def test_sections_are_spread_evenly_from_the_middle_of_the_first_gap():
    assert [g for g in range(40) if is_held_out(g, 0.1)] == [4, 14, 24, 34]
    assert [g for g in range(8) if is_held_out(g, 0.25)] == [1, 5]


@pytest.mark.parametrize("share", [0.001, 0.05, 0.1, 0.3, 1 / 3, 0.49])
@pytest.mark.parametrize("num", [1, 7, 1000])
def test_the_number_of_held_out_sections_is_the_share_rounded(share, num):
    held = sum(is_held_out(g, share) for g in range(num))
    assert held == int(num * share + 0.5)


def test_a_large_corpus_has_about_32_held_out_sections():
    length = section_length(10_000_000, held_out=0.05, window_tokens=65)
    assert length == 10_000_000 * 0.05 // 32
    held = sum(is_held_out(g, 0.05) for g in range(10_000_000 // length))
    assert held == 32


def test_sections_of_a_small_corpus_hold_a_few_windows():
    assert section_length(100_000, held_out=0.05, window_tokens=65) == 4 * 4 * 65


def test_a_tiny_corpus_still_has_one_held_out_section():
    length = section_length(1000, held_out=0.05, window_tokens=65)
    assert length == 50
    assert sum(is_held_out(g, 0.05) for g in range(1000 // length)) == 1
    assert section_length(1, held_out=0.01, window_tokens=65) == 1


def test_parts_are_cut_at_line_starts():
    # Sections of 10 characters, every second one (1, 3, ...) held out; lines of 4.
    text = "aaa\nbbb\nccc\nddd\neee\n"
    parts = list(split([text], section_chars=10, held_out=0.4999))
    assert parts == [Part("aaa\nbbb\nccc\n", False), Part("ddd\neee\n", True)]


def test_the_last_line_needs_no_line_end():
    # A new section starts inside "dd ee", which no line end follows.
    parts = list(split(["aaa\nbbb\ndd ee"], section_chars=10, held_out=0.4999))
    assert parts == [Part("aaa\nbbb\ndd ee", False)]


def test_documents_are_never_joined():
    parts = list(split(["a\n", "b\n"], section_chars=100, held_out=0.1))
    assert parts == [Part("a\n", False), Part("b\n", False)]


def test_a_document_without_lines_is_cut_between_words():
    parts = list(split(["abcd efgh ijkl mnop qrst"], section_chars=8, held_out=0.4999))
    assert parts == [
        Part("abcd efgh ", False),
        Part("ijkl mnop ", True),
        Part("qrst", False),
    ]


def test_a_document_without_words_is_cut_anywhere_but_near_its_end():
    parts = list(split(["x" * 36], section_chars=10, held_out=0.4999))
    assert [len(p.text) for p in parts] == [10, 10, 10, 6]
    assert [p.held_out for p in parts] == [False, True, False, True]
    assert [len(p.text) for p in split(["x" * 35], section_chars=10, held_out=0.4999)] == [
        10,
        10,
        15,
    ]


def test_where_nothing_is_held_out_every_document_stays_whole():
    texts = ["aaa\nbbb\n" * 50, "c"]
    length = section_length(401, held_out=0.0, window_tokens=65)
    parts = list(split(texts, section_chars=length, held_out=0.0))
    assert parts == [Part(text, held_out=False) for text in texts]
    assert section_length(0, held_out=0.0, window_tokens=65) == 1
