"""Access control: who sends a request, and whether that user may do what it asks for.

The walk of a request: `access_control.py` checks the signature with the account from `account_table.py`, asks
`request_needs.py` which actions on which resources the request needs, and lets `policies.py` decide about each. ACL 1.0
(`plain_acl.py`) is translated into the same accounts and policies. Nothing of this costs anything while access control
is off: handlers are wrapped only when it is on.
"""
