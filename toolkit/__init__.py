"""Building blocks that the servers, the operator commands and the Spark pipelines share.

| module | holds |
|---|---|
| `values`, `settings` | declared settings: types, parsing, checking, error texts |
| `settings_docs` | example files and reference tables made from declarations |
| `suggestions` | "did you mean …?" |

The package imports only the standard library and `codec`; trio and matplotlib are imported inside the functions
that need them. It never imports `gateway`, `remoting`, `storage` or `spark`.
"""
