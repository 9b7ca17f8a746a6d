"""Requests about users and access rules: those of 5.x, and those about plain_acl.yml of 4.x.

The latter were removed in 5.4.0, but older admin tools still send them.
"""

from remoting.bodies.auth import AclInfo, UserInfo
from remoting.declare import Header, Request


class AuthCreateUser(Request[None], code=3001):
    """Create a user. Source: AdminBrokerProcessor.createUser."""

    username: str | None = None
    data: UserInfo


class AuthUpdateUser(Request[None], code=3002):
    """Change a user. Source: AdminBrokerProcessor.updateUser."""

    username: str | None = None
    data: UserInfo


class AuthDeleteUser(Request[None], code=3003):
    """Delete a user. Source: AdminBrokerProcessor.deleteUser."""

    username: str | None = None


class AuthGetUserReply(Header):
    """The answer to AUTH_GET_USER."""

    data: UserInfo | None = None


class AuthGetUser(Request[AuthGetUserReply], code=3004):
    """Return one user. Source: AdminBrokerProcessor.getUser."""

    username: str | None = None


class AuthListUser(Request[Header], code=3005):
    """List users; the body is a JSON array of UserInfo. Source: AdminBrokerProcessor.listUser."""

    filter: str | None = None


class AuthCreateAcl(Request[None], code=3006):
    """Create access rules. Source: AdminBrokerProcessor.createAcl."""

    subject: str | None = None
    data: AclInfo


class AuthUpdateAcl(Request[None], code=3007):
    """Change access rules. Source: AdminBrokerProcessor.updateAcl."""

    subject: str | None = None
    data: AclInfo


class AuthDeleteAcl(Request[None], code=3008):
    """Delete access rules. Source: AdminBrokerProcessor.deleteAcl."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class AuthGetAclReply(Header):
    """The answer to AUTH_GET_ACL."""

    data: AclInfo | None = None


class AuthGetAcl(Request[AuthGetAclReply], code=3009):
    """Return the access rules of a subject. Source: AdminBrokerProcessor.getAcl."""

    subject: str | None = None


class AuthListAcl(Request[Header], code=3010):
    """List access rules; the body is a JSON array of AclInfo. Source: AdminBrokerProcessor.listAcl."""

    subject_filter: str | None = None
    resource_filter: str | None = None


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
