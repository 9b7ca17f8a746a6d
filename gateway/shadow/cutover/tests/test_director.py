import pytest

from codec.command import Command, encode_command
from gateway.shadow.cutover.director import MoveDirector
from gateway.shadow.cutover.move_traffic import MoveTraffic
from gateway.shadow.cutover.moves import Move, MoveState
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.traffic.exchange import Hub, Side
from toolkit.settings import SettingsError

PRIMARY, TARGET, WAIT = Side.PRIMARY, Side.TARGET, Side.WAIT
P, D, S = MoveState.PRODUCERS_SWITCHED, MoveState.DRAINED, MoveState.CONSUMERS_SWITCHED


def make_director(*moves):
    hub, traffic = Hub(), MoveTraffic()
    director = MoveDirector(hub, traffic)
    hub.set_director(director)
    hub.add_observer(traffic)
    director.follow_moves(moves)
    return hub, director, traffic


def frame(code, ext=None, body=b""):
    return encode_command(Command(code, 1, 0, ext or {}, body))


def direct_request(hub, code, ext=None, body=b""):
    assert hub.is_directed(code)
    return hub.choose_side(code, frame(code, ext, body))


def test_no_request_is_inspected_without_a_move():
    hub, director, _ = make_director(Move("t"))
    assert not any(hub.is_directed(code) for code in (10, 310, 320, 11, 37, 41))
    assert not hub.is_observed(310)
    director.follow_moves([Move("t", MoveState.CAUGHT_UP)])
    assert hub.is_directed(310)
    assert hub.is_observed(310)
    director.follow_moves([])
    assert not hub.is_directed(310)


@pytest.mark.parametrize(("code", "name"), [(10, "topic"), (310, "b"), (320, "b")])
def test_sends_follow_their_topic(code, name):
    hub, director, _ = make_director(Move("t", P), Move("u", MoveState.CAUGHT_UP))
    assert direct_request(hub, code, {name: "t"}) is TARGET
    assert direct_request(hub, code, {name: "u"}) is PRIMARY
    assert direct_request(hub, code, {name: "other"}) is PRIMARY
    assert direct_request(hub, code) is PRIMARY
    director.hold_sends("t")
    assert direct_request(hub, code, {name: "t"}) is WAIT
    assert direct_request(hub, code, {name: "u"}) is PRIMARY


def test_held_sends_are_directed_again_on_release():
    hub, director, _ = make_director(Move("t", MoveState.CAUGHT_UP))
    director.hold_sends("t")
    seen = []
    hub.call_after_decision(lambda: seen.append(direct_request(hub, 310, {"b": "t"})))
    director.follow_moves([Move("t", P)])
    assert seen == [WAIT]
    hub.call_after_decision(lambda: seen.append(direct_request(hub, 310, {"b": "t"})))
    director.release_sends("t")
    assert seen == [WAIT, TARGET]


@pytest.mark.parametrize("code", [11, 361, 200050, 200051, 200052, 200053, 200054, 200055, 14, 15, 208])
def test_reads_follow_their_group(code):
    hub, *_ = make_director(Move("t", P, {"a": S, "b": D}))
    assert direct_request(hub, code, {"topic": "t", "consumerGroup": "a"}) is TARGET
    assert direct_request(hub, code, {"topic": "t", "consumerGroup": "b"}) is PRIMARY
    assert direct_request(hub, code, {"topic": "t", "consumerGroup": "stranger"}) is PRIMARY
    assert direct_request(hub, code, {"topic": "other", "consumerGroup": "a"}) is PRIMARY


def test_first_pops_are_known_before_their_answer():
    hub, _, traffic = make_director(Move("t", P, {"g": P}))
    direct_request(hub, 11, {"topic": "t", "consumerGroup": "puller"})
    direct_request(hub, 200050, {"topic": "%RETRY%g_t", "consumerGroup": "g"})
    assert traffic.is_first_pop_waiting("g", "t")
    assert not traffic.is_first_pop_waiting("puller", "t")


@pytest.mark.parametrize(("topic", "side"), [("%RETRY%a", TARGET), ("%RETRY%b", PRIMARY), ("%RETRY%a_t", TARGET),
                                             ("%RETRY%a+t", TARGET), ("%RETRY%a+u", PRIMARY)])  # fmt: skip
def test_retry_topics_follow_their_group(topic, side):
    hub, *_ = make_director(Move("t", P, {"a": S, "b": P}))
    assert direct_request(hub, 11, {"topic": topic, "consumerGroup": topic[7]}) is side
    if "t" not in topic and "u" not in topic:
        assert direct_request(hub, 310, {"b": topic}) is side
        assert direct_request(hub, 30, {"topic": topic}) is side


def test_group_on_both_sides_keeps_retries_and_locks_at_the_primary():
    hub, *_ = make_director(Move("t", P, {"a": S}), Move("u", P, {"a": D}))
    assert direct_request(hub, 11, {"topic": "t", "consumerGroup": "a"}) is TARGET
    assert direct_request(hub, 11, {"topic": "u", "consumerGroup": "a"}) is PRIMARY
    assert direct_request(hub, 11, {"topic": "%RETRY%a", "consumerGroup": "a"}) is PRIMARY
    assert direct_request(hub, 41, body=b'{"consumerGroup":"a","clientId":"c","mqSet":[]}') is PRIMARY
    assert direct_request(hub, 36, {"originTopic": "t", "group": "a"}) is TARGET
    assert direct_request(hub, 36, {"originTopic": "u", "group": "a"}) is PRIMARY


def test_locks_send_backs_resets_and_batch_acks_follow_their_group():
    hub, *_ = make_director(Move("t", P, {"a": S, "b": P}))
    for group, side in (("a", TARGET), ("b", PRIMARY), ("c", PRIMARY)):
        body = b'{"consumerGroup":"%s","clientId":"c","mqSet":[]}' % group.encode()
        assert direct_request(hub, 41, body=body) is direct_request(hub, 42, body=body) is side
        assert direct_request(hub, 36, {"originTopic": "t", "group": group}) is side
        assert direct_request(hub, 222, {"topic": "t", "group": group}) is side
        acks = b'{"acks":[{"c":"%s","t":"t"}]}' % group.encode()
        assert direct_request(hub, 200151, body=acks) is side
    assert direct_request(hub, 41, body=b"{") is PRIMARY
    assert direct_request(hub, 200151, body=b"[]") is PRIMARY


@pytest.mark.parametrize("code", [29, 30, 31, 32, 202])
def test_requests_without_a_group_follow_the_last_group(code):
    hub, director, _ = make_director(Move("t", P, {"a": S, "b": D}))
    assert direct_request(hub, code, {"topic": "t"}) is PRIMARY
    director.follow_moves([Move("t", P, {"a": S, "b": S})])
    assert direct_request(hub, code, {"topic": "t"}) is TARGET
    assert direct_request(hub, code, {"topic": "other"}) is PRIMARY


def half_message(side):
    request = Command(310, 1, 0, {"a": "p", "b": "t", "e": "0", "i": "TRAN_MSG\x01true\x02UNIQ_KEY\x01K\x02"})
    answer = Command(0, ext={"queueId": "0", "queueOffset": "3"})
    return make_exchange(310, encode_command(request), encode_command(answer), side=side)


def test_transaction_ends_on_the_side_of_its_half_message():
    hub, director, _ = make_director(Move("t", MoveState.CAUGHT_UP))
    hub.publish_exchange(half_message(PRIMARY))
    director.follow_moves([Move("t", P)])
    assert direct_request(hub, 37, {"msgId": "K", "topic": "t"}) is PRIMARY
    assert direct_request(hub, 37, {"msgId": "L", "topic": "t"}) is TARGET
    assert direct_request(hub, 37, {"msgId": "L"}) is PRIMARY
    hub.publish_exchange(half_message(TARGET))
    assert direct_request(hub, 37, {"transactionId": "K", "msgId": ""}) is TARGET
    check = make_exchange(39, frame(39, {"msgId": "M"}), None, reverse=True, side=TARGET)
    hub.publish_exchange(check)
    assert direct_request(hub, 37, {"msgId": "M"}) is TARGET
    assert direct_request(hub, 370, {"topic": "t", "recallHandle": "x"}) is TARGET


def test_unreadable_requests_go_to_the_primary():
    hub, director, _ = make_director(Move("t", P))
    assert hub.choose_side(310, b"\0\0\0\4\0\0\0\7") is PRIMARY
    assert direct_request(hub, 310, {"b": "t"}) is TARGET
    assert [(metric.labels["side"], metric.value) for metric in director.collect_metrics()] == [("target", 1)]


def test_only_sends_go_to_a_leading_target():
    rules = MirrorRules([MirrorRule()])
    hub, traffic = Hub(), MoveTraffic()
    director = MoveDirector(hub, traffic, rules)
    hub.set_director(director)
    hub.add_observer(traffic)
    assert not hub.is_directed(310)
    rules.set_mode("t", "target-primary")
    hub.refresh_interests()
    assert direct_request(hub, 310, {"b": "t"}) is TARGET
    assert direct_request(hub, 310, {"b": "u"}) is PRIMARY
    assert direct_request(hub, 37, {"topic": "t"}) is TARGET
    assert not hub.is_directed(11)
    assert traffic.count_unanswered_sends("t") == 1
    oneway = encode_command(Command(310, 1, 2, {"b": "t"}))
    assert hub.choose_side(310, oneway) is PRIMARY
    director.hold_sends("t")
    assert direct_request(hub, 310, {"b": "t"}) is WAIT
    rules.reset_mode("t")
    director.watch_sends("t", watched=False)
    director.release_sends("t")
    assert not hub.is_directed(310)


def test_target_cannot_lead_a_topic_that_a_rule_splits():
    part = MirrorRule(topics=["a*"], clients=["10.*"])
    with pytest.raises(SettingsError, match="by topics alone"):
        MirrorRules([part, MirrorRule(mode="target-primary")])
    rules = MirrorRules([part, MirrorRule()])
    assert [rules.mirrors_only_part(topic) for topic in ("abc", "b")] == [True, False]
    assert MirrorRules([MirrorRule(topics=["a"], mode="target-primary"), part]).target_leads("a")


@pytest.mark.parametrize(
    "body",
    [
        b'{"acks":1}', b'{"acks":[1]}', b'{"acks":{}}', b'{"acks":[{"c":{},"t":[]}]}', b'{"consumerGroup":[1]}',
        b"[" * 200_000, b'{"acks":[{"c":"a","t":"t"}],"x":"%b"}' % (b"x" * 300_000), b"\xff", b'{"$ref":"$"}',
    ],
)  # fmt: skip
def test_hostile_bodies_go_to_the_primary(body):
    hub, *_ = make_director(Move("t", P, {"a": S}))
    for code in (41, 42, 200151):
        assert direct_request(hub, code, body=body) is PRIMARY
