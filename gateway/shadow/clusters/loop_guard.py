"""Keeps a gateway from mirroring its own mirrored requests: recognises them, and stops everything sent to the target.

A target whose namesrv leads back to the gateway, directly or through other gateways, would multiply each message until
a disk is full. So every request to the target carries a header field with the ids of the gateways it passed. Servers
ignore unknown header fields, and the stored message stays as the client sent it, which a marker among its properties
would not allow. A request that comes back with this gateway's own id is not observed again, and from then on nothing
is sent to the target.

The guard is closed until `target_check.py` has compared the clusters, and for good when the target is the primary.
"""

import logging
import secrets
from typing import Final

from codec.command import Command
from gateway.shadow.clusters.cluster import Sign
from gateway.shadow.traffic.exchange import Exchange

log = logging.getLogger(__name__)

MARK_FIELD: Final = "rmqShadowGateways"
"""Header field of mirrored requests: ids of gateways, separated by commas."""
MAX_MARK_CHARS: Final = 1_024
SMALL_REQUEST_BYTES: Final = 1_024
"""A smaller request is searched as a whole, which is quicker than finding the end of its header first."""
NOT_CHECKED: Final = "the target has not been checked yet"
_HEADER_START: Final = 8
"""A frame begins with its length and the length of its header, 4 bytes each."""
_HEADER_LENGTH_MASK: Final = 0xFFFFFF
"""The highest byte says how the header is encoded. Source: RemotingCommand.getHeaderLength, 5.4.0."""


class TargetLeadsBack(OSError):
    """Nothing is sent to this target."""


class LoopGuard:
    """Lets requests to the target pass once the clusters have been compared, unless there is a `problem`."""

    def __init__(self, *, checked: bool = False) -> None:
        self._id = secrets.token_hex(8)
        self._id_bytes = self._id.encode()
        self._refused = ""
        self._checked = checked

    @property
    def problem(self) -> str:
        """The reason for which nothing is ever sent to this target again; "" while there is none."""
        return self._refused

    @property
    def is_checked(self) -> bool:
        """Tell whether the target has been compared with the primary."""
        return self._checked

    def mark_request(self, command: Command) -> None:
        """Add this gateway's id to a request to the target. Raises TargetLeadsBack when it must not be sent."""
        if self._refused or not self._checked:
            raise TargetLeadsBack(self._refused or NOT_CHECKED)
        passed = command.ext.get(MARK_FIELD)
        # Ids of other gateways, but not this one: a circle that does not lead through here, or leads around it.
        if passed is not None and len(passed) > MAX_MARK_CHARS:
            self.refuse(
                "requests to the target have passed more than 60 shadow gateways: they run in a circle"
            )
            raise TargetLeadsBack(self._refused)
        command.ext[MARK_FIELD] = self._id if passed is None else f"{passed},{self._id}"

    def sign_with(self, sign: Sign | None) -> Sign:
        """Return a function that marks a request and then signs it."""
        if sign is None:
            return self.mark_request
        signer = sign

        def mark_and_sign(command: Command) -> None:
            self.mark_request(command)
            signer(command)

        return mark_and_sign

    def is_own_request(self, exchange: Exchange) -> bool:
        """Tell whether this gateway sent the request to its target; if so, send nothing more there."""
        request = exchange.request
        # Nobody else can have the id, so that it does not matter if the body is searched, too.
        if (
            self._id_bytes not in request
            if len(request) < SMALL_REQUEST_BYTES
            else not self._is_in_header(request)
        ):
            return False
        self.refuse(
            f"mirrored requests came back to this gateway, from {exchange.client}: the target leads to the gateway "
            "itself. Nothing is mirrored any more. Set target.namesrv to the namesrv of another cluster and restart "
            "the gateway"
        )
        return True

    def _is_in_header(self, request: bytes) -> bool:
        header_end = _HEADER_START + (int.from_bytes(request[4:8], "big") & _HEADER_LENGTH_MASK)
        return request.find(self._id_bytes, _HEADER_START, header_end) >= 0

    def allow(self) -> None:
        """Let requests pass: the target is not the primary."""
        self._checked = True

    def refuse(self, reason: str) -> None:
        """Send nothing to the target until the gateway is restarted."""
        if not self._refused:
            # The first reason stays: what follows from it would only hide it.
            self._refused = reason
            log.error("mirroring is stopped", extra={"reason": reason})
