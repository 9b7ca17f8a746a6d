"""Requests about parts of the official storage that this broker does not have."""

import json

import pytest

from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.ha import ResetMasterFlushOffset
from remoting.requests.query import CheckRocksdbCqWriteProgress
from remoting.requests.timers import SwitchTimerEngine


def test_switching_to_the_engine_of_files_lets_timers_be_sent_again() -> None:
    world = World(timer_stop_enqueue=True)
    assert world.ask(SwitchTimerEngine(engine_type="F")).remark == "switch timer engine success"
    assert not world.broker.config.store.timer_stop_enqueue
    assert not world.broker.timer_delivery._config.store.timer_stop_enqueue


@pytest.mark.parametrize(
    ("engine", "remark"), [("R", "timerUseRocksDB muse be"), ("X", "param error"), (None, "param error")]
)
def test_other_engines_are_refused(engine: str | None, remark: str) -> None:
    with pytest.raises(RequestError, match=remark) as refused:
        World().ask(SwitchTimerEngine(engine_type=engine))
    assert refused.value.code == 29


def test_without_the_timer_wheel_no_engine_is_switched_to() -> None:
    with pytest.raises(RequestError, match="broker timerWheelEnable is false"):
        World(timer_wheel_enable=False).ask(SwitchTimerEngine(engine_type="F"))


def test_queues_need_no_comparison_with_rocksdb() -> None:
    answer = json.loads(World().ask(CheckRocksdbCqWriteProgress(topic="t")).body)
    assert answer == {"checkResult": "queues are in files only", "checkStatus": 0}


def test_a_master_has_no_flush_offset_of_a_master_to_reset() -> None:
    World().ask(ResetMasterFlushOffset(master_flush_offset=0))
