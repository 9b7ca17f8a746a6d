"""Keys of TLS: the official server reads them from system properties and tls.properties.

`gateway/runtime/server_tls.py` uses them. Source: TlsSystemConfig and TlsHelper.buildSslContext, 5.4.0. Deviations:

- A configured certificate is used even if tls.test.mode.enable is true.
- A required client certificate is always verified.
- A namesrv's certificate and name are verified unless tls.client.authServer=false.
"""

from dataclasses import dataclass

from gateway.config.keys import key


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS of all listeners of the process (``tls.server.…``), and of its brokers' connections to namesrvs."""

    mode: str = key(
        "tls.server.mode",
        "permissive",
        "connections that the ports accept: only plain ones, both kinds, or only TLS",
        choices=("disabled", "permissive", "enforcing"),
    )
    test_mode: bool = key(
        "tls.test.mode.enable",
        True,
        "whether TLS works without a certificate, by a self-signed one that clients cannot verify",
    )
    certificate: str = key(
        "tls.server.certPath",
        "",
        "PEM file of the server's certificate and its chain; read again when it changes",
        path=True,
    )
    private_key: str = key(
        "tls.server.keyPath",
        "",
        "PEM file of the private key; empty: it is in tls.server.certPath",
        path=True,
    )
    key_password: str = key("tls.server.keyPassword", "", "password of the private key", secret=True)
    client_certificates: str = key(
        "tls.server.need.client.auth",
        "none",
        "whether clients show a certificate",
        choices=("none", "optional", "require"),
    )
    verify_clients: bool = key(
        "tls.server.authClient",
        False,
        "whether shown client certificates are verified; required ones always are",
    )
    client_authority: str = key(
        "tls.server.trustCertPath",
        "",
        "PEM file of the authority that signs clients' certificates; read again when it changes",
        path=True,
    )
    use_client_tls: bool = key("tls.enable", False, "whether brokers connect to namesrvs with TLS")
    verify_servers: bool = key(
        "tls.client.authServer", True, "whether brokers verify the certificates of namesrvs, and their names"
    )
    server_authority: str = key(
        "tls.client.trustCertPath",
        "",
        "PEM file of the authority that signs namesrvs' certificates; empty: those of the system",
        path=True,
    )
    client_certificate: str = key(
        "tls.client.certPath", "", "PEM file of the certificate that brokers show to namesrvs", path=True
    )
    client_key: str = key(
        "tls.client.keyPath",
        "",
        "PEM file of its private key; empty: it is in tls.client.certPath",
        path=True,
    )
    client_key_password: str = key(
        "tls.client.keyPassword", "", "password of tls.client.keyPath", secret=True
    )
