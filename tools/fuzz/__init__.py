"""Structure-aware fuzzing of namesrv, broker, shadow gateway and gRPC port: `python -m tools.fuzz`.

A campaign starts servers as a user does, sets up a small world of topics, groups and messages, and sends walks:

- `values`: numbers and texts at every border; `json_mutations`: the same for JSON bodies.
- `valid_requests`: a valid request of every declared code, about things that exist in the `world`.
- `mutations`: changes to its fields, body and flags; `frame_encoding`: its bytes, and damage to them.
- `walks`: single requests, stories and unusual peers, each a pure function of the seed and a number.
- `grpc_messages`, `grpc_walks`, `grpc_probe`: the same against the gRPC port, and the call of an honest client.
- `driver`: sends walks over many connections and matches the answers.
- `servers_under_test`, `healthy_client`: the processes, and an honest client beside the fuzzer.
- `campaign`: runs all of it and judges by its oracles; `findings`, `minimise`: the files that repeat a finding.
- `corpus`: requests that once did harm, sent again in every campaign.

How to use it is described in docs/how-to/fuzz.md.
"""
