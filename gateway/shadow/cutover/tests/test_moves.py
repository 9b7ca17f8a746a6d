import json

import pytest

from gateway.http_server.errors import OperationRefused
from gateway.shadow.cutover.moves import Move, MoveState, MoveStep, QueueEnds
from gateway.shadow.traffic.exchange import Side

NOW = 5
M, C, P, D, S, DONE, BACK = (
    MoveState.MIRRORING, MoveState.CAUGHT_UP, MoveState.PRODUCERS_SWITCHED, MoveState.DRAINED,
    MoveState.CONSUMERS_SWITCHED, MoveState.DONE, MoveState.ROLLING_BACK,
)  # fmt: skip


def advance_all(move, group=None):
    for step in move.forward_steps(group):
        move = move.after_step(step, NOW)
    return move


def roll_back_all(move, group=None):
    for step in move.backward_steps(group):
        move = move.after_step(step, NOW)
    return move


def test_topic_moves_to_done():
    move, seen = Move("t"), []
    while move.state is not DONE:
        move = advance_all(move)
        if move.state is P:
            move = move.with_groups(["g"])
        seen.append(
            (
                move.overall_state,
                move.producer_side,
                move.consumer_side("g"),
                move.default_side,
                move.is_mirrored,
            )
        )
    primary, target = Side.PRIMARY, Side.TARGET
    assert seen == [
        (C, primary, primary, primary, True),
        (P, target, primary, primary, False),
        (D, target, primary, primary, False),
        (S, target, target, target, False),
        (DONE, target, target, target, False),
    ]


def test_topic_without_groups_is_done_after_its_producers():
    move = Move("t", P)
    assert move.default_side is Side.PRIMARY
    assert move.forward_steps() == [MoveStep("t", None, P, DONE)]


def test_topic_is_done_after_its_last_group():
    move = Move("t", P, {"a": P, "b": P})
    move = advance_all(advance_all(move, "a"), "a")
    assert move.groups == {"a": S, "b": P}
    assert (move.consumer_side("a"), move.consumer_side("b")) == (Side.TARGET, Side.PRIMARY)
    assert (move.overall_state, move.default_side) == (P, Side.PRIMARY)
    assert move.forward_steps() == [MoveStep("t", "b", P, D)]
    with pytest.raises(OperationRefused, match="group a of t is CONSUMERS_SWITCHED already"):
        move.forward_steps("a")
    move = advance_all(advance_all(move))
    assert (move.overall_state, move.consumer_side("stranger")) == (S, Side.TARGET)
    assert advance_all(move).groups == {"a": DONE, "b": DONE}


@pytest.mark.parametrize(
    ("move", "way", "group", "reason"),
    [
        (Move("t"), "forward_steps", "g", "producers have to be switched first"),
        (Move("t", DONE), "forward_steps", None, "nothing left to do"),
        (Move("t", BACK, {"g": S}), "forward_steps", None, "finish the roll-back first"),
        (Move("t", P, {"g": P}), "forward_steps", "x", "group x is not known to consume t"),
        (Move("t"), "backward_steps", None, "nothing to undo"),
        (Move("t", DONE), "backward_steps", None, "which is final"),
        (Move("t", P, {"g": P}), "backward_steps", "g", "there is nothing to undo"),
        (Move("t", P, {"g": S}), "backward_steps", "g", "roll the topic back first"),
    ],
)
def test_impossible_steps_are_refused(move, way, group, reason):
    with pytest.raises(OperationRefused, match=reason):
        getattr(move, way)(group)


def test_roll_back_from_caught_up():
    assert roll_back_all(Move("t", C)).state is M


def test_roll_back_from_switched_producers():
    move = roll_back_all(Move("t", P, {"g": P, "h": D}))
    assert (move.state, move.groups) == (M, {})


def test_roll_back_from_drained_only_changes_the_state():
    assert roll_back_all(Move("t", P, {"g": D}), "g").groups == {"g": P}


def test_roll_back_from_switched_consumers_starts_with_producers():
    move = roll_back_all(Move("t", P, {"a": S, "b": S, "c": D}))
    assert (move.state, move.producer_side) == (BACK, Side.PRIMARY)
    assert move.groups == {"a": S, "b": S, "c": P}
    assert not move.is_mirrored
    move = roll_back_all(move, "a")
    assert (move.state, move.consumer_side("a"), move.consumer_side("b")) == (BACK, Side.PRIMARY, Side.TARGET)
    move = roll_back_all(move)
    assert (move.state, move.groups, move.is_mirrored) == (M, {}, True)


def test_steps_know_their_direction():
    assert all(step.is_backward for step in Move("t", P, {"g": S}).backward_steps())
    assert not any(step.is_backward for step in Move("t", P, {"g": P}).forward_steps())


def test_move_round_trips_through_its_dict():
    move = Move("t", P, {"a": S}, {"b/0": QueueEnds(7, 8)}, 99)
    assert Move.from_dict(json.loads(json.dumps(move.to_dict()))) == move
    assert move.with_ends({"b/1": QueueEnds(1, 1)}).ends == {"b/1": QueueEnds(1, 1)}
