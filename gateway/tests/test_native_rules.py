"""The rules that the C code repeats: Python functions that must not change without a look at `native/`."""

import tomllib

import pytest

from gateway.tests.native_sends.rules import RECORD, fingerprint, fingerprint_of_text, named_rules, resolve

RULES = named_rules()


def test_the_sources_name_the_rules_that_they_repeat() -> None:
    assert len(RULES) >= 20
    assert len(set(RULES)) == len(RULES)
    recorded = tomllib.loads(RECORD.read_text("utf-8"))
    assert set(recorded) == {rule.name for rule in RULES}, (
        "python -m gateway.tests.native_sends.rules records them"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.source} {rule.name}")
def test_a_rule_is_as_it_was_when_it_was_compared(rule) -> None:
    """A function that changes is compared with the C code first, and then recorded again."""
    recorded = tomllib.loads(RECORD.read_text("utf-8"))
    assert fingerprint(resolve(rule.name)) == recorded[rule.name], (
        f"{rule.name} has changed: compare it with {rule.source} ({rule.text}), then record it with "
        "python -m gateway.tests.native_sends.rules"
    )


def test_comments_and_layout_do_not_count_and_code_does() -> None:
    text = "def f(x):\n    return x + 1\n"
    same = 'def f(x):\n    """Add one."""\n    # A comment.\n    return (x\n        + 1)\n'
    assert fingerprint_of_text(text) == fingerprint_of_text(same)
    assert fingerprint_of_text(text) != fingerprint_of_text(text.replace("1", "2"))


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError):
        resolve("storage.append:no_such_function")
