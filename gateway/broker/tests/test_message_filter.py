import pytest

from codec.hashing import tags_code
from gateway.broker.message_filter import compile_tag_test, is_tag_type, split_tags


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_passes(expression):
    assert compile_tag_test(expression) is None


def test_hashes_of_the_tags_pass():
    matches = compile_tag_test("TagA || TagB||  ||TagC ")
    assert matches is not None
    assert all(matches(tags_code(tag)) for tag in ("TagA", "TagB", "TagC"))
    assert not any(matches(code) for code in (tags_code("TagD"), tags_code("taga"), 0))


def test_tags_with_negative_hashes_pass():
    tag = next(tag for tag in map(str, range(10_000_000_000, 10_000_000_999)) if tags_code(tag) < 0)
    matches = compile_tag_test(tag)
    assert matches is not None
    assert matches(tags_code(tag))


@pytest.mark.parametrize("expression", ["||", " ", " || || "])
def test_an_expression_without_a_tag_is_an_error(expression):
    with pytest.raises(ValueError, match="without a tag"):
        compile_tag_test(expression)


def test_one_bar_does_not_split():
    assert split_tags("a|b || c") == ["a|b", "c"]


def test_types():
    assert [is_tag_type(kind) for kind in (None, "", "TAG", "SQL92", "tag")] == [
        True,
        True,
        True,
        False,
        False,
    ]
