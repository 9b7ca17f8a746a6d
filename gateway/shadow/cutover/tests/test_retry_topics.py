import pytest

from gateway.shadow.cutover.retry_topics import is_retry_topic_of, original_topic, retry_topics


def test_retry_topics_of_a_group():
    assert retry_topics("g", "t") == ("%RETRY%g", "%RETRY%g_t", "%RETRY%g+t")
    assert all(is_retry_topic_of(topic, "g") for topic in retry_topics("g", "t"))
    assert not is_retry_topic_of("t", "g")


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [("t", "t"), ("%RETRY%g_t", "t"), ("%RETRY%g+t", "t"), ("%RETRY%g", "%RETRY%g"), ("%RETRY%gg_t", "%RETRY%gg_t")],
)  # fmt: skip
def test_original_topic(topic, wanted):
    assert original_topic(topic, "g") == wanted
