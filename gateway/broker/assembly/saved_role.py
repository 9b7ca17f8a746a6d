"""The role that a broker got by request, kept across restarts in `config/brokerRole.json`.

A broker that was promoted must come back as master although its configuration file says SLAVE, and one that was demoted
as slave. The file remembers the configuration beside which the role was given: once that is changed, it decides again.
"""

import json
import logging
from dataclasses import replace
from typing import Any, Final

from gateway.config.process import BrokerConfig
from gateway.config.replication import ASYNC_MASTER, SLAVE, SYNC_MASTER
from gateway.runtime.config_file import SmallFiles

log = logging.getLogger(__name__)

FILE_NAME: Final = "brokerRole.json"
ROLES: Final = frozenset({ASYNC_MASTER, SYNC_MASTER, SLAVE})


def with_role(
    config: BrokerConfig, broker_role: str, broker_id: int, *, ha_master_address: str | None = None
) -> BrokerConfig:
    """Return the configuration of a broker in another role; None keeps ``haMasterAddress``."""
    replication = replace(config.replication, broker_role=broker_role)
    if ha_master_address is not None:
        replication = replace(replication, ha_master_address=ha_master_address)
    return replace(config, broker_id=broker_id, replication=replication)


class SavedRole:
    """The role of one broker in its file. ``configured`` is the configuration of the process."""

    def __init__(self, files: SmallFiles, config_path: str, configured: BrokerConfig) -> None:
        self._files = files
        self._path = f"{config_path}/{FILE_NAME}"
        self._configured = _settings_of(configured)

    def apply(self, config: BrokerConfig) -> BrokerConfig:
        """Return the configuration with the saved role, if there is one for this configuration.

        Raises ValueError for a file that cannot be read.
        """
        data = self._files.read_small(self._path)
        if not data or not data.strip():
            return config
        try:
            saved = json.loads(data)
            configured, role = saved["configured"], saved["role"]
            broker_role, broker_id = role["brokerRole"], role["brokerId"]
            ha_master_address = str(role["haMasterAddress"])
            is_id = type(broker_id) is int and broker_id >= 0
            if not is_id or broker_role not in ROLES or (broker_role == SLAVE) != (broker_id > 0):
                raise ValueError(f"{broker_role} with brokerId={broker_id} is not a role")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{self._path} cannot be read: {error}. Delete it to start with the role of the configuration"
            ) from error
        if configured != self._configured:
            extra = {"path": self._path, "broker_role": self._configured["brokerRole"]}
            log.warning(
                "role of the configuration, which has changed since a role was given by request", extra=extra
            )
            return config
        extra = {"path": self._path, "broker_role": broker_role, "broker_id": broker_id}
        log.info("role given by request before", extra=extra)
        return with_role(config, broker_role, broker_id, ha_master_address=ha_master_address)

    def save(self, config: BrokerConfig) -> None:
        """Keep the role of a configuration. Blocks until it is on the disk; raises StoreFull, OSError."""
        content = {"configured": self._configured, "role": _settings_of(config)}
        self._files.write_small(self._path, json.dumps(content, indent=2).encode())


def _settings_of(config: BrokerConfig) -> dict[str, Any]:
    settings = config.replication
    return {
        "brokerRole": settings.broker_role,
        "brokerId": config.broker_id,
        "haMasterAddress": settings.ha_master_address,
    }
