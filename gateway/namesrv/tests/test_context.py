"""Building a namesrv, with files or without."""

from pathlib import Path

import pytest

from gateway.config.process import NamesrvConfig
from gateway.namesrv.context import build_namesrv, close_silent_brokers
from gateway.namesrv.route_table import Registration
from remoting.bodies.topics import TopicConfig


class Clock:
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_key_values_survive_a_restart(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kv" / "kvConfig.json"))
    build_namesrv(config, Clock()).kv_config.put("n", "k", "v")
    assert build_namesrv(config, Clock()).kv_config.get("n", "k") == "v"
    memory = build_namesrv(config, Clock(), memory=True)
    assert memory.kv_config.get("n", "k") is None
    assert memory.settings_file is None


def test_a_damaged_file_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("{")
    with pytest.raises(ValueError, match=r"."):
        build_namesrv(NamesrvConfig(kv_config_path=str(tmp_path / "kv")), Clock())


def test_switches_reach_the_table() -> None:
    config = NamesrvConfig(support_acting_master=True, delete_topic_with_broker_registration=True)
    table = build_namesrv(config, Clock(), memory=True).routes
    assert (table.acting_master, table.delete_missing_topics) == (True, True)


def test_owners_that_cannot_be_closed_are_left_alone() -> None:
    clock = Clock()
    namesrv = build_namesrv(NamesrvConfig(), clock, memory=True)
    topics = {name: TopicConfig(topic_name=name) for name in "TU"}
    namesrv.routes.register(
        Registration(cluster="C", broker_name="b", broker_id=0, address="b:1", topics=topics), object()
    )
    clock.seconds = 121
    close_silent_brokers(namesrv)
    assert namesrv.routes.topic_list().topic_list == []
