"""Hashes of console passwords: scrypt, as text that names its parameters.

    $scrypt$ln=14,r=8,p=5$SALT$KEY

``ln`` is the binary logarithm of scrypt's N, SALT and KEY are in base64 without padding, as passlib writes them. The
default takes 16 MiB and about a fifth of a second, so that guessing is slow.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from typing import Final, Self

LOG_N: Final = 14
BLOCK_SIZE: Final = 8
PARALLELISM: Final = 5
SALT_BYTES: Final = 16
MIN_SALT_BYTES: Final = 8
KEY_BYTES: Final = 32
MAX_MEMORY_BYTES: Final = 64 * 1024 * 1024
MAX_PARALLELISM: Final = 16
MIN_PASSWORD_CHARS: Final = 8
MAX_PASSWORD_BYTES: Final = 1024
_SHAPE: Final = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{1,128})\$([A-Za-z0-9+/]{1,128})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A password's hash."""

    log_n: int
    block_size: int
    parallelism: int
    salt: bytes
    key: bytes

    @classmethod
    def create(cls, password: str) -> Self:
        """Hash a password with a new salt. Raises ValueError for one that is too short or too long."""
        if len(password) < MIN_PASSWORD_CHARS or len(password.encode()) > MAX_PASSWORD_BYTES:
            raise ValueError(
                f"a password has at least {MIN_PASSWORD_CHARS} characters and at most {MAX_PASSWORD_BYTES} bytes"
            )
        salt = os.urandom(SALT_BYTES)
        empty = cls(LOG_N, BLOCK_SIZE, PARALLELISM, salt, bytes(KEY_BYTES))
        return cls(LOG_N, BLOCK_SIZE, PARALLELISM, salt, empty._derive_key(password))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a hash. Raises ValueError, which does not quote the text."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise ValueError("not a hash that `rmq-gateway shadow console-user` printed")
        log_n, block_size, parallelism = (int(number) for number in match.groups()[:3])
        try:
            salt, key = (base64.b64decode(part + "=" * (-len(part) % 4)) for part in match.groups()[3:])
        except binascii.Error as error:
            raise ValueError("salt or key is not base64") from error
        if not (log_n and block_size and 0 < parallelism <= MAX_PARALLELISM):
            raise ValueError("a parameter of scrypt is out of range")
        if 128 * block_size << log_n > MAX_MEMORY_BYTES:
            raise ValueError(f"scrypt would take more than {MAX_MEMORY_BYTES >> 20} MiB")
        if len(salt) < MIN_SALT_BYTES or len(key) < KEY_BYTES:
            raise ValueError("salt or key is too short")
        return cls(log_n, block_size, parallelism, salt, key)

    def __str__(self) -> str:
        salt, key = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.key))
        return f"$scrypt$ln={self.log_n},r={self.block_size},p={self.parallelism}${salt}${key}"

    def matches(self, password: str) -> bool:
        """Tell whether this is the hash of a password. Takes long on purpose, so call it in a thread."""
        return hmac.compare_digest(self._derive_key(password), self.key)

    def _derive_key(self, password: str) -> bytes:
        return hashlib.scrypt(
            password.encode()[: MAX_PASSWORD_BYTES + 1],
            salt=self.salt,
            n=1 << self.log_n,
            r=self.block_size,
            p=self.parallelism,
            maxmem=2 * MAX_MEMORY_BYTES,
            dklen=len(self.key),
        )
