import pytest

from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.traffic.subject import Subject, stable_share
from toolkit.settings import SettingsError
from toolkit.toml_tables import load_table

CLIENT = "10.1.2.3:4000"


def test_first_matching_rule_applies():
    rules = MirrorRules(
        [
            MirrorRule(topics=["pay-*"], mode="strict-dual"),
            MirrorRule(topics=["pay-small", "log"]),
            MirrorRule(),
        ]
    )
    assert rules.find_rule(310, Subject("pay-small"), CLIENT) == 0
    assert rules.find_rule(310, Subject("log"), CLIENT) == 1
    assert rules.find_rule(310, Subject("other"), CLIENT) == 2
    assert rules.effective_mode(0, "pay-small") == "strict-dual"


def test_rules_match_groups_codes_and_clients():
    rules = MirrorRules(
        [
            MirrorRule(groups=["PID-?"]),
            MirrorRule(codes=["UPDATE_CONSUMER_OFFSET"]),
            MirrorRule(clients=["10.1.*"]),
        ]
    )
    assert rules.find_rule(310, Subject("t", "PID-1"), CLIENT) == 0
    assert rules.find_rule(15, Subject("t", "GID"), CLIENT) == 1
    assert rules.find_rule(310, Subject("t", "GID"), CLIENT) == 2
    assert rules.find_rule(310, Subject("t", "GID"), "10.2.0.1:4000") is None


def test_request_without_topic_matches_only_rules_for_every_topic():
    rules = MirrorRules([MirrorRule(topics=["orders"]), MirrorRule(topics=["*"])])
    assert rules.find_rule(200, Subject(group="GID"), CLIENT) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SEND_MESAGE", "unknown request code 'SEND_MESAGE'"),
        ("PULL_MESSAGE", "PULL_MESSAGE is never mirrored: only reads messages"),
    ],
)
def test_unknown_and_unmirrored_codes_raise_settings_error(name, text):
    with pytest.raises(SettingsError, match=text):
        MirrorRules([MirrorRule(codes=[name])])


def test_contradicting_settings_raise_settings_error():
    with pytest.raises(SettingsError, match="needs spill_dir"):
        load_table(MirrorSettings, {"spill": "disk"}, "mirroring")
    with pytest.raises(SettingsError, match="backoff"):
        load_table(MirrorSettings, {"breaker_backoff_ms": 50_000}, "mirroring")
    with pytest.raises(SettingsError, match='expected "off", "async"'):
        load_table(MirrorRule, {"mode": "sync"}, "mirror[0]")


def test_sample_by_queue_is_all_or_nothing_per_queue_and_near_its_share():
    rules = MirrorRules([MirrorRule(sample=0.3)])
    taken = {queue for queue in range(1000) if rules.is_sampled(0, 310, Subject("orders", queue_id=queue))}
    assert 250 < len(taken) < 350
    for queue in range(1000):
        for key in ("a", "b"):
            subject = Subject("orders", queue_id=queue, key=key)
            assert rules.is_sampled(0, 310, subject) == rules.is_sampled(0, 15, subject) == (queue in taken)
    assert rules.is_sampled(0, 17, Subject("orders"))


def test_sample_by_key_is_all_or_nothing_per_key():
    rules = MirrorRules([MirrorRule(sample=0.5, sample_by="key")])
    for number in range(100):
        assert (
            len({rules.is_sampled(0, 310, Subject("orders", queue_id=q, key=f"K{number}")) for q in range(8)})
            == 1
        )
    assert (
        0.2 < sum(rules.is_sampled(0, 310, Subject("orders", key=f"K{n}")) for n in range(1000)) / 1000 < 0.8
    )


def test_sample_hash_is_stable():
    assert stable_share("orders", "3") == pytest.approx(0.99207723)


def test_mode_override_goes_before_the_rules_mode():
    rules = MirrorRules([MirrorRule()])
    assert not rules.any_mode_in_use(["strict-dual"])
    rules.set_mode("orders", "strict-dual")
    assert (rules.effective_mode(0, "orders"), rules.effective_mode(0, "other")) == ("strict-dual", "async")
    assert rules.any_mode_in_use(["strict-dual"])
    rules.reset_mode("orders")
    assert rules.effective_mode(0, "orders") == "async"
    with pytest.raises(ValueError, match="expected off, async"):
        rules.set_mode("orders", "on")
