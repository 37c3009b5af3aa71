"""When the next span is asked for and started."""

from pww.replica.turns import NONE, Turns


def test_one_request_a_phase_until_it_is_answered() -> None:
    turns = Turns()
    assert turns.wanted() is None, "no phase runs"
    turns.begin(1, num_blocks=5, now_s=0.0)
    ask = turns.wanted()
    assert (ask.num_blocks, ask.key) == (5, "")
    ask.key = "k"
    assert turns.wanted().key == "k", "the same one until there is an answer"
    turns.answered(ask, lease=NONE)
    assert turns.wanted() is None
    turns.begin(2, num_blocks=5, now_s=9.0)
    turns.answered(ask, lease=NONE)  # the old phase's, late
    assert turns.wanted() is not None


def test_the_span_ahead_becomes_the_running_one() -> None:
    turns = Turns()
    turns.begin(1, num_blocks=5, now_s=0.0)
    turns.answered(turns.wanted(), lease=2)
    assert (turns.ahead, turns.wanted()) == (2, None)
    turns.end(2)
    assert turns.running == 1, "it was another's end"
    turns.end(1)
    turns.begin(2, num_blocks=5, now_s=9.0)
    assert (turns.running, turns.ahead) == (2, NONE)


def test_it_is_started_towards_the_end_of_the_phase() -> None:
    turns = Turns()
    turns.begin(1, num_blocks=5, now_s=100.0)
    turns.answered(turns.wanted(), lease=2)
    assert turns.due(193.9, phase_s=100.0, soon_s=6.0) == NONE
    assert turns.due(194.0, phase_s=100.0, soon_s=6.0) == 2
    assert turns.due(100.0, phase_s=5.0, soon_s=6.0) == 2, "a phase shorter than that"
    assert turns.due(999.0, phase_s=0.0, soon_s=6.0) == NONE, "never measured"
    turns.end(1)
    assert turns.due(999.0, phase_s=100.0, soon_s=6.0) == NONE, "others may have it meanwhile"
