"""Requests about users and access rules (5.x)."""

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
