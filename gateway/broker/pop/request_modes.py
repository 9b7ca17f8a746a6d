"""Which groups pop which topics and which pull, kept in messageRequestMode.json. Who may set it is not here."""

from gateway.runtime.config_file import ConfigFile
from remoting.bodies.pop import MessageRequestModeSerializeWrapper, SetMessageRequestModeRequestBody


class RequestModes:
    """Modes by topic and group. Source: MessageRequestModeManager, 5.4.0."""

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        saved = file.load(MessageRequestModeSerializeWrapper.from_json)
        self.table = {} if saved is None else saved.message_request_mode_map

    def set_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Sets a mode and writes the file; when the disk refuses, the next change tries again."""
        self.table.setdefault(mode.topic or "", {})[mode.consumer_group or ""] = mode
        self._file.try_save(self.snapshot().to_json())

    def find_mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """What was set for a group and topic."""
        return self.table.get(topic, {}).get(group)

    def snapshot(self) -> MessageRequestModeSerializeWrapper:
        """The table as it goes to the file and other brokers; not a copy."""
        return MessageRequestModeSerializeWrapper(message_request_mode_map=self.table)
