"""Request modes of consumer groups, pull or pop by topic, stored in messageRequestMode.json."""

from codec.java_numbers import quoted
from gateway.broker.topics.limit_errors import limit_error
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ConfigFile, SettingsTable
from gateway.runtime.saved_tables import load_table, parse_entries
from remoting.bodies.pop import MessageRequestModeSerializeWrapper, SetMessageRequestModeRequestBody


class RequestModes(SettingsTable):
    """Modes by topic and group. Source: MessageRequestModeManager, 5.4.0.

    ``limits`` are set again when the configuration changes.
    """

    def __init__(self, file: ConfigFile, limits: BrokerLimits) -> None:
        super().__init__(file)
        self.limits = limits
        self.table: dict[str, dict[str, SetMessageRequestModeRequestBody]] = file.load(_parse_file) or {}
        self._count = sum(map(len, self.table.values()))

    def set_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Set a mode, which `save_changes` writes. Raises RequestError at the limit of modes."""
        topic, group = mode.topic or "", mode.consumer_group or ""
        if self.find_mode(topic, group) is None:
            if self._count >= self.limits.max_request_modes:
                raise limit_error("maxRequestModes", self.limits.max_request_modes, "request modes of groups")
            self._count += 1
        self.table.setdefault(topic, {})[group] = mode
        self.note_change()

    def find_mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """Return the mode that was set for a group and topic."""
        return self.table.get(topic, {}).get(group)

    def snapshot(self) -> MessageRequestModeSerializeWrapper:
        """Return the table as it goes to the file and other brokers, not copied."""
        return MessageRequestModeSerializeWrapper(message_request_mode_map=self.table)

    def to_json(self) -> bytes:
        """Return the content of messageRequestMode.json."""
        return self.snapshot().to_json()


def _parse_file(content: bytes) -> dict[str, dict[str, SetMessageRequestModeRequestBody]]:
    """Parse messageRequestMode.json. A mode that cannot be read is left out. Raises ValueError."""
    return parse_entries(
        "messageRequestMode.json", load_table(content).get("messageRequestModeMap"), _parse_groups
    )


def _parse_groups(topic: object, value: object) -> tuple[str, dict[str, SetMessageRequestModeRequestBody]]:
    return str(topic), parse_entries(f"request modes of {quoted(str(topic))}", value, _parse_mode)


def _parse_mode(group: object, value: object) -> tuple[str, SetMessageRequestModeRequestBody]:
    return str(group), SetMessageRequestModeRequestBody.from_value(value)
