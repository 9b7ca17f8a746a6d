"""Keys of access control. Source: AuthConfig, 5.4.0, and BrokerConfig.aclEnable, 4.9.8."""

from dataclasses import dataclass

from gateway.config.keys import key


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Access control of the process: its namesrv and its brokers."""

    authentication_enabled: bool = key(
        "authenticationEnabled", False, "whether requests must be signed by a user (ACL 2.0)"
    )
    authorization_enabled: bool = key(
        "authorizationEnabled", False, "whether the policies of the user must allow each request (ACL 2.0)"
    )
    init_user: str = key(
        "initAuthenticationUser",
        "",
        'super user that exists from the start: {"username":"…","password":"…"}',
        secret=True,
    )
    inner_credentials: str = key(
        "innerClientAuthenticationCredentials",
        "",
        'super user that signs the broker\'s own requests: {"accessKey":"…","secretKey":"…"}',
        secret=True,
    )
    authentication_whitelist: str = key(
        "authenticationWhitelist", "", "request codes that need no signature, separated by ,"
    )
    authorization_whitelist: str = key(
        "authorizationWhitelist", "", "request codes that every user may send, separated by ,"
    )
    config_path: str = key(
        "authConfigPath",
        "",
        "directory of users.json and acls.json; empty: the broker's config directory",
        path=True,
    )
    acl_enable: bool = key("aclEnable", False, "whether plainAclFile decides who may do what (ACL 1.0)")
    plain_acl_file: str = key(
        "plainAclFile",
        "",
        "plain_acl.yml with the accounts of ACL 1.0; read again when it changes",
        path=True,
        unofficial=True,
    )
    migrate_from_v1: bool = key(
        "migrateAuthFromV1Enabled",
        False,
        "whether accounts of plainAclFile that are not users yet become users with policies at start",
    )

    @property
    def is_enabled(self) -> bool:
        """Return True if requests are checked at all."""
        return self.authentication_enabled or self.acl_enable
