"""Requests about the access rules of 4.x (plain_acl.yml): removed in 5.4.0, but still sent by older admin tools."""

from remoting.declare import Header, Request


class UpdateAndCreateAclConfig(Request[None], code=50):
    """Create or change an account. Source: AdminBrokerProcessor.updateAndCreateAccessConfig, 4.9.8."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAclConfig(Request[None], code=51):
    """Delete an account. Source: AdminBrokerProcessor.deleteAccessConfig, 4.9.8."""

    access_key: str


class GetBrokerClusterAclInfoReply(Header):
    """The versions of a broker's rule files; ``all_acl_file_version`` is a JSON object by file."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


class GetBrokerClusterAclInfo(Request[GetBrokerClusterAclInfoReply], code=52):
    """Return the version of a broker's rules. Source: AdminBrokerProcessor.getBrokerAclConfigVersion, 4.9.8."""


class UpdateGlobalWhiteAddrsConfig(Request[None], code=53):
    """Set the addresses that need no account. Source: AdminBrokerProcessor.updateGlobalWhiteAddrsConfig, 4.9.8."""

    global_white_addrs: str
    acl_file_full_path: str | None = None
