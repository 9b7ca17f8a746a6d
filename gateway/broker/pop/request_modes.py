"""Request modes of consumer groups, pull or pop by topic, stored in messageRequestMode.json."""

from gateway.runtime.config_file import ConfigFile
from remoting.bodies.pop import MessageRequestModeSerializeWrapper, SetMessageRequestModeRequestBody


class RequestModes:
    """Modes by topic and group. Source: MessageRequestModeManager, 5.4.0."""

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        saved = file.load(MessageRequestModeSerializeWrapper.from_json)
        self.table = {} if saved is None else saved.message_request_mode_map

    def set_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Set a mode and write the file. If writing fails, the next change writes this one too."""
        self.table.setdefault(mode.topic or "", {})[mode.consumer_group or ""] = mode
        self._file.try_save(self.snapshot().to_json())

    def find_mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """Return the mode that was set for a group and topic."""
        return self.table.get(topic, {}).get(group)

    def snapshot(self) -> MessageRequestModeSerializeWrapper:
        """Return the table as it goes to the file and other brokers, not copied."""
        return MessageRequestModeSerializeWrapper(message_request_mode_map=self.table)
