"""The command `rmq-gateway cert`: a development authority, and certificates that it signs."""

from pathlib import Path
from typing import Any

import click

AUTHORITY_NAME = "ca"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="server", show_default=True, help="Name of the certificate and of its files.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address under which clients reach the server; repeatable (default: localhost, 127.0.0.1, ::1).",
)
@click.option("--client", is_flag=True, help="Create a certificate for a client, which has no hosts.")
@click.option(
    "--days", default=825, show_default=True, type=click.IntRange(1, 36_500), help="Days of validity."
)
def cert(directory: Path, name: str, hosts: tuple[str, ...], client: bool, days: int) -> None:
    """Create a certificate in DIRECTORY, signed by the development authority there.

    The authority (ca.pem, ca.key) is created with the first certificate. Keys are readable by their owner only. For
    production take certificates from your own authority.
    """
    from remoting.certificates import CertificateAuthority, CertificateFiles  # slow to import

    if client and hosts:
        raise click.UsageError("--host is for servers; leave it out with --client.")
    authority_files = CertificateFiles(
        directory / f"{AUTHORITY_NAME}.pem", directory / f"{AUTHORITY_NAME}.key"
    )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if authority_files.certificate.exists():
            authority = CertificateAuthority(authority_files)
        else:
            authority = CertificateAuthority.create(directory, AUTHORITY_NAME)
        names = () if client else hosts or ("localhost", "127.0.0.1", "::1")
        files = authority.issue(name, names, days=days)
    except FileExistsError as problem:
        raise click.ClickException(f"{problem}. Choose another --name, or remove it first.") from problem
    except (OSError, ValueError) as problem:
        raise click.ClickException(str(problem)) from problem
    click.echo(_advice(files, authority.files, client), nl=False)


def _advice(files: Any, authority: Any, client: bool) -> str:
    """Return the settings that use the files."""
    if client:
        return (
            "# for the client:\n"
            f"tls.client.certPath={files.certificate}\n"
            f"tls.client.keyPath={files.key}\n"
            f"tls.client.trustCertPath={authority.certificate}\n"
            "tls.client.authServer=true\n"
            "# for the server:\n"
            "tls.server.need.client.auth=require\n"
            f"tls.server.trustCertPath={authority.certificate}\n"
        )
    return (
        "# for the server:\n"
        "tls.server.mode=enforcing\n"
        f"tls.server.certPath={files.certificate}\n"
        f"tls.server.keyPath={files.key}\n"
        "# for clients:\n"
        f"tls.client.trustCertPath={authority.certificate}\n"
        "tls.client.authServer=true\n"
    )
