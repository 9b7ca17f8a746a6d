from gateway.broker.filters.message_filter import is_tag_type, split_tags


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
