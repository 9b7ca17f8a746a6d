"""JSON values as HTML."""

import pytest

from gateway.shadow.mirror.circuit_breaker import BreakerState
from gateway.shadow.report.tables import is_bad_row, render_value


def test_any_json_of_a_section_is_rendered():
    assert "<dt>a b</dt><dd>1</dd>" in render_value({"a_b": 1})
    assert render_value({}) == render_value([]) == '<p class="none">None.</p>'
    assert render_value("<") == "<p>&lt;</p>"
    nested = render_value({"x": 1, "topics": {"A": {"state": "S"}, "B": {"state": "T", "n": 2}}})
    assert "<h4>topics</h4>" in nested
    assert nested.count("<tr>") == 3
    rows = render_value([{"code": 11, "since_ms": 1_700_000_000_000}, {"more": None}])
    assert "2023-11-14 22:13:20" in rows
    assert ">since</th>" in rows


@pytest.mark.parametrize("state", BreakerState)
def test_streams_whose_breaker_is_not_closed_are_bad(state):
    """A half-open one was not, because the list of bad states spelt it differently."""
    assert is_bad_row({"breaker": state.value}) is (state is not BreakerState.CLOSED)
