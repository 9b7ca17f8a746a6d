"""The optional extension that native/ builds. `codec.native.native_module` finds it."""

from collections.abc import Callable, Mapping
from typing import Any

class PlainSends:
    """Takes the plain sends of the connections of one broker."""

    def __init__(
        self,
        topics: Any,
        store: Any,
        queues: dict[tuple[str, int], Any],
        log: Any,
        stored_counts: Mapping[str, Any],
        mark_grown: Callable[[str, int], None],
        host_view: Any,
        now_ms: Callable[[], int] | None,
        room: Callable[[Any], int] | None,
        suffix: bytes,
        answer_parts: tuple[bytes, ...],
        max_frame_bytes: int,
        max_header_bytes: int,
        max_body_bytes: int,
        holds_answers: bool,
    ) -> None: ...
    @property
    def frames(self) -> int:
        """The number of frames taken."""

    def take(self, connection: Any, buffer: bytes | bytearray, position: int) -> Any:
        """Take the plain sends that begin at a position.

        Return None if there is none there, otherwise the position after the last one and the answers; with
        ``holds_answers`` a list of them, and a list of the physical offsets at which their messages end.
        """
