"""A certificate authority of tests, and the certificates it has signed, as PEM files."""

from pathlib import Path

from remoting.certificates import CertificateAuthority


class Authority:
    """Signs certificates for 127.0.0.1 and localhost. ``file`` is its own certificate."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._authority = CertificateAuthority.create(directory, name)
        self.file = self._authority.files.certificate

    def issue(self, name: str, *hosts: str, password: str | None = None, days: int = 30) -> tuple[Path, Path]:
        """Return certificate file and key file for a name; ``hosts`` are this machine by default."""
        hosts = hosts or ("localhost", "127.0.0.1")
        files = self._authority.issue(name, hosts, password=password, days=days)
        return files.certificate, files.key
