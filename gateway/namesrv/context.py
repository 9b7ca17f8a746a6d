"""The parts of a namesrv, as its handlers receive them: a record, and how it is put together.

Not responsible for listening or for the time between scans; gateway.namesrv.service is.
"""

from dataclasses import dataclass

from gateway.config.process import NamesrvConfig
from gateway.namesrv.kv_config import KvConfig, TextFile
from gateway.namesrv.route_table import RouteTable
from gateway.namesrv.text_file import AtomicTextFile
from storage.clock import Clock


@dataclass(slots=True)
class Namesrv:
    """`config` is replaced when a request changes it; `settings_file` None keeps such changes in memory."""

    config: NamesrvConfig
    clock: Clock
    routes: RouteTable
    kv_config: KvConfig
    settings_file: TextFile | None
    started_at: float


def build_namesrv(config: NamesrvConfig, clock: Clock, *, memory: bool = False) -> Namesrv:
    """A namesrv without brokers; with `memory` nothing is read from or written to files.

    Raises ValueError when kvConfig.json cannot be read.
    """
    routes = RouteTable(clock.monotonic)
    kv = KvConfig(None if memory else AtomicTextFile(config.kv_config_path))
    settings = None if memory else AtomicTextFile(config.config_store_path)
    namesrv = Namesrv(config, clock, routes, kv, settings, clock.monotonic())
    apply_config(namesrv, config)
    return namesrv


def apply_config(namesrv: Namesrv, config: NamesrvConfig) -> None:
    """Makes a configuration the present one."""
    namesrv.config = config
    namesrv.routes.acting_master = config.support_acting_master
    namesrv.routes.delete_missing_topics = config.delete_topic_with_broker_registration


def close_silent_brokers(namesrv: Namesrv) -> None:
    """One scan, to be run every `scanNotActiveBrokerInterval`: drops silent brokers and their connections."""
    for owner in namesrv.routes.expire_silent_brokers():
        close = getattr(owner, "close", None)
        if close is not None:
            close("broker expired")
