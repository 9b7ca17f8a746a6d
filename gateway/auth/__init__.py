"""Access control: identifies the user who sends a request, and decides if that user may send it.

The path of a request: `access_control.py` checks the signature with the account from `account_table.py`, asks
`request_needs.py` which actions on which resources the request needs, and lets `policies.py` decide about each. ACL 1.0
(`plain_acl.py`) is translated into the same accounts and policies. While access control is off it costs nothing,
because handlers are wrapped only when it is on.
"""
