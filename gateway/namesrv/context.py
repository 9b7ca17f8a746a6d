"""The parts of a namesrv, as its handlers receive them.

`gateway.namesrv.service` listens and runs the periodic scan.
"""

from dataclasses import dataclass

from gateway.config.process import NamesrvConfig
from gateway.namesrv.kv_config import KvConfig, TextFile
from gateway.namesrv.route_table import RouteTable
from gateway.namesrv.text_file import AtomicTextFile
from storage.clock import Clock


@dataclass(slots=True)
class Namesrv:
    """The parts of a namesrv. ``config`` is replaced when a request changes it; without ``settings_file`` changes
    stay in memory.
    """

    config: NamesrvConfig
    clock: Clock
    routes: RouteTable
    kv_config: KvConfig
    settings_file: TextFile | None
    started_at: float


def build_namesrv(config: NamesrvConfig, clock: Clock, *, memory: bool = False) -> Namesrv:
    """Build a namesrv without brokers; with ``memory`` no files are read or written.

    Raises ValueError when kvConfig.json cannot be read.
    """
    routes = RouteTable(clock.monotonic)
    kv = KvConfig(None if memory else AtomicTextFile(config.kv_config_path))
    settings = None if memory else AtomicTextFile(config.config_store_path)
    namesrv = Namesrv(config, clock, routes, kv, settings, clock.monotonic())
    apply_config(namesrv, config)
    return namesrv


def apply_config(namesrv: Namesrv, config: NamesrvConfig) -> None:
    """Put a configuration into effect."""
    namesrv.config = config
    namesrv.routes.acting_master = config.support_acting_master
    namesrv.routes.delete_missing_topics = config.delete_topic_with_broker_registration


def close_silent_brokers(namesrv: Namesrv) -> None:
    """Remove silent brokers and close their connections; run it every ``scanNotActiveBrokerInterval``."""
    for owner in namesrv.routes.expire_silent_brokers():
        close = getattr(owner, "close", None)
        if close is not None:
            close("broker expired")
