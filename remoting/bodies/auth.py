"""Users and access rules as the admin tools exchange them; nothing is checked here."""

from remoting.body import Body
from remoting.fields import field


class UserInfo(Body):
    """A user."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(Body):
    """One rule."""

    resource: str | None = None
    actions: list[str] = field(factory=list)
    source_ips: list[str] = field(factory=list)
    decision: str | None = None


class PolicyInfo(Body):
    """Rules of one type."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = field(factory=list)


class AclInfo(Body):
    """The rules of a subject."""

    subject: str | None = None
    policies: list[PolicyInfo] = field(factory=list)
