"""The log lines at start that tell people addresses, store, durability, security and what to do next.

Programs read the ready line on standard output instead.
"""

import logging
from collections.abc import Mapping

from gateway.config.auth import AuthConfig
from gateway.config.process import ServeConfig
from gateway.config.tls import TlsConfig

log = logging.getLogger(__name__)

TLS_TEXTS: Mapping[str, str] = {
    "disabled": "off",
    "permissive": "possible, not required",
    "enforcing": "required",
}


def log_start(
    config: ServeConfig,
    namesrv: str | None,
    brokers: Mapping[str, str],
    http: str | None,
    grpc: str | None = None,
) -> None:
    """Log what runs now. Addresses are ``host:port`` as clients on this machine reach them."""
    addresses: dict[str, str] = {} if namesrv is None else {"namesrv": namesrv}
    addresses |= brokers
    if http is not None:
        addresses["http"] = http
    if grpc is not None:
        addresses["grpc"] = grpc
    log.info("ready", extra=addresses)
    for broker in config.brokers:
        if config.memory:
            where, kept = "memory", "lost at the end of the process"
        else:
            where, kept = broker.store.store_path_root_dir, broker.store.flush_disk_type
        log.info("store", extra={"broker": broker.broker_name, "directory": where, "durability": kept})
    log.info(
        "security", extra={"tls": describe_tls(config.tls), "access_control": describe_access(config.auth)}
    )
    if config.namesrv is not None:
        _warn_of_registrations(config)
    log.info("next step", extra={"do": _next_step(config, namesrv)})


def describe_tls(tls: TlsConfig) -> str:
    """Return in words which connections the ports accept."""
    kind = TLS_TEXTS[tls.mode]
    if tls.mode == "disabled":
        return kind
    return f"{kind}; " + ("own certificate" if tls.certificate else "self-signed certificate")


def describe_access(auth: AuthConfig) -> str:
    """Return in words who may send requests."""
    if auth.acl_enable:
        return "ACL 1.0"
    if not auth.authentication_enabled:
        return "off: whoever reaches the ports may do everything"
    return "ACL 2.0: users and policies" if auth.authorization_enabled else "ACL 2.0: users, no policies"


def _warn_of_registrations(config: ServeConfig) -> None:
    """Say which brokers register elsewhere, too: clients of those namesrvs are sent here."""
    for broker in config.brokers:
        if broker.namesrv_addr:
            log.warning(
                "registers with namesrvs elsewhere, whose clients are sent here",
                extra={"broker": broker.broker_name, "namesrvs": broker.namesrv_addr},
            )


def _next_step(config: ServeConfig, namesrv: str | None) -> str:
    if namesrv is not None:
        return f"give clients the namesrv address {namesrv}"
    registers = ", ".join(sorted({each.namesrv_addr for each in config.brokers if each.namesrv_addr}))
    if registers:
        return f"give clients the namesrv address {registers}"
    return "set namesrvAddr: without it no client finds this broker"
