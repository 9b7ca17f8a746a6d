"""Signatures of RPCs: the ``authorization`` header names the user who sends one.

    authorization: MQv2-HMAC-SHA1 Credential=USER, SignedHeaders=x-mq-date-time, Signature=HEX

The signature is the HMAC-SHA1 of the ``x-mq-date-time`` header. It is checked here. The request that an RPC becomes
carries its user, so that the broker's own access control decides about it with the same policies.
Source: DefaultAuthenticationContextBuilder, 5.4.0.
"""

import hashlib
import hmac
import logging
from collections.abc import Mapping
from typing import Final

from codec.java_numbers import quoted
from gateway.auth.access_control import AccessDenied, Accounts
from remoting.acl import Credentials

log = logging.getLogger(__name__)

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"


class RpcSender:
    """The sender of one RPC, from its headers."""

    __slots__ = ("_date_time", "_header", "_path", "_remote", "_verified", "claimed_user")

    def __init__(self, metadata: Mapping[str, str], remote: str) -> None:
        self._path = metadata.get(":path", "")
        self._remote = remote
        self._header = metadata.get(AUTHORIZATION, "")
        self._date_time = metadata.get(DATE_TIME, "")
        self._verified: dict[int, Credentials] = {}
        self.claimed_user = _parse_fields(self._header).get("Credential", "").split("/")[0]
        """The user whom the header names, "" without one. Its signature is verified when a request is signed."""

    def credentials(self, accounts: Accounts) -> Credentials | None:
        """Return the credentials of the user who signed this RPC. Raises AccessDenied for a wrong signature.

        An RPC without a signature has none: the broker decides whether that is allowed.
        """
        if not self._header:
            return None
        credentials = self._verified.get(id(accounts))
        if credentials is None:
            credentials = self._verified[id(accounts)] = self._verify(accounts)
        return credentials

    def check_unsigned(self, accounts: Accounts) -> None:
        """Refuse an RPC without a signature unless its own address is trusted. Raises AccessDenied.

        For a front whose brokers are elsewhere: they would ask whether the front's address is trusted. Accounts that
        trust no address leave the decision to the brokers.
        """
        if self.claimed_user or not accounts.trusts_addresses:
            return
        if not accounts.is_trusted_address(self._remote, None):
            raise self._denied("", "username cannot be null.")

    def _verify(self, accounts: Accounts) -> Credentials:
        fields = self._fields()
        name = self.claimed_user
        user = accounts.user(name)
        if user is None:
            raise self._denied(name, f"User:{quoted(name)} is not found.")
        expected = hmac.digest(
            user.password.encode(), self._date_time.encode("utf-8", "replace"), hashlib.sha1
        )
        signature = fields.get("Signature", "").lower().encode("utf-8", "replace")
        if not hmac.compare_digest(signature, expected.hex().encode()):
            raise self._denied(name, "check signature failed.")
        return Credentials(user.name, user.password)

    def _denied(self, name: str, remark: str) -> AccessDenied:
        """Return a denial, which is logged as the broker logs its own."""
        extra = {"user": quoted(name), "request": self._path, "remote": self._remote, "reason": remark}
        log.warning("request denied", extra=extra)
        return AccessDenied(remark)

    def _fields(self) -> dict[str, str]:
        if not self._date_time:
            raise AccessDenied(f"datetime is null: the header {DATE_TIME} is missing.")
        if " " not in self._header:
            raise AccessDenied("authentication header is incorrect.")
        return _parse_fields(self._header)


def _parse_fields(header: str) -> dict[str, str]:
    """Return the fields after the name of the algorithm."""
    _, _, fields = header.partition(" ")
    return {
        name.strip(): value.strip()
        for name, _, value in (field.partition("=") for field in fields.split(","))
    }
