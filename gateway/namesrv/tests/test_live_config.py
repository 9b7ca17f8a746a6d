"""Settings that may change while the namesrv runs reach every part that uses them."""

import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from gateway.config.keys import Key, keys_of
from gateway.config.live import apply_update
from gateway.config.process import NamesrvConfig
from gateway.namesrv.context import Namesrv, apply_config, build_namesrv
from gateway.tests.broker_fakes import FakeClock

LIVE = {name: each for name, each in keys_of(NamesrvConfig).items() if each.is_live}
NAMESRV = Path(__file__).parents[1]
HOLDERS = {"processors.py": "config", "kv_config.py": "kv_config.limits", "route_table.py": "routes._limits"}
"""The place where a running namesrv holds the configuration that a module reads."""
GIVEN_PER_REQUEST = {"registration.py"}
"""Modules that get the limits with each call: the namesrv's own, see `processors.py`."""
COPIES = {
    "supportActingMaster": "routes._acting_master",
    "deleteTopicWithBrokerRegistration": "routes._delete_missing_topics",
}


def places_of(key: Key) -> list[str]:
    """Return where a running namesrv holds the value of a key, for every module that reads it."""
    field = key.attribute.removeprefix("limits.")
    places = [COPIES[key.name]] if key.name in COPIES else []
    for path in NAMESRV.glob("*.py"):
        if path.name != "context.py" and re.search(rf"(config|limits)\.{field}\b", path.read_text()):
            holder = "config" if path.name in GIVEN_PER_REQUEST else HOLDERS[path.name]
            places.append(f"{holder}.{field if holder.endswith('limits') else key.attribute}")
    return places


def other_value(key: Key) -> Any:
    default = key.setting.default
    return not default if isinstance(default, bool) else default - 1


def changed(namesrv: Namesrv, text: str) -> Namesrv:
    apply_config(namesrv, apply_update(namesrv.config, text, set()).config)
    return namesrv


@pytest.mark.parametrize("name", LIVE)
def test_a_change_reaches_every_part_that_uses_the_key(name: str) -> None:
    namesrv, value = build_namesrv(NamesrvConfig(), FakeClock(), memory=True), other_value(LIVE[name])
    places = places_of(LIVE[name])
    assert places, "no part uses the key, so it must not be live"
    for place in places:
        assert attrgetter(place)(namesrv) != value
    changed(namesrv, f"{name}={str(value).lower()}")
    for place in places:
        assert attrgetter(place)(namesrv) == value, place
