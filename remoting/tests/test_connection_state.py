from remoting.connection_state import StateSlot, new_state


def test_each_slot_has_a_value_of_its_own_whatever_its_name():
    first, second = StateSlot[int]("count"), StateSlot[str]("count")
    state = new_state()
    state[first] = 3
    assert (state.get(first), state.get(second)) == (3, None)
    state[second] = "three"
    assert (state.get(first), state.get(second)) == (3, "three")
    assert first in state


def test_a_value_that_is_taken_out_is_gone():
    slot = StateSlot[set[int]]("numbers")
    state = new_state()
    state[slot] = {1}
    assert (state.pop(slot, set()), state.pop(slot, set())) == ({1}, set())
    assert slot not in state
