"""Bodies about users and access rules, as the admin tools exchange them."""

from remoting.fields import field
from remoting.json_body import JsonBody


class UserInfo(JsonBody):
    """A user."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(JsonBody):
    """One rule."""

    resource: str | None = None
    actions: list[str] = field(factory=list)
    source_ips: list[str] = field(factory=list)
    decision: str | None = None


class PolicyInfo(JsonBody):
    """Rules of one type."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = field(factory=list)


class AclInfo(JsonBody):
    """The rules of a subject."""

    subject: str | None = None
    policies: list[PolicyInfo] = field(factory=list)
