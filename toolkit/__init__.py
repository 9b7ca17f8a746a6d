"""Building blocks that the servers, the operator commands and the Spark pipelines share.

| module | holds |
|---|---|
| `values`, `settings` | declared settings: types, parsing, checking, error texts |
| `settings_docs` | example files and reference tables made from declarations |
| `toml_tables` | TOML tables to dataclasses of settings |
| `suggestions` | "did you mean …?" |
| `conditions` | fail-if conditions on metrics: `late/primary>0.001` |
| `rate_limiter` | messages and bytes per second, with trio and in threads |
| `subsequences` | which elements of two orders agree, and which have moved |
| `pages`, `html_tables`, `plots` | HTML pages that need nothing from elsewhere |

The package imports only the standard library and `codec`; trio and matplotlib are imported inside the functions
that need them. It never imports `gateway`, `remoting`, `storage` or `spark`.
"""
