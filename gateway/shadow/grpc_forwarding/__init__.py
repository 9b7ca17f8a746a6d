"""Passes gRPC calls of 5.x clients on to the primary's own Proxy, where that has to stay in the path.

| module | holds |
|---|---|
| `relay_connection` | what both connections of a session share: credit that is given back late, paced output |
| `client_connection` | the connection of a client |
| `proxy_connection` | the connection to the Proxy, HTTP/2 on the client's side |
| `forwarded_call` | one call: its two streams, its end, its counts |
| `endpoints` | the addresses in requests and answers, and their translation |
| `captured_calls` | sends and acknowledgements as exchanges for the capture |
| `service` | the port |

A session is one connection of a client and one connection of its own to the Proxy, as the Proxy would see without the
gateway. Streams have the same number on both, and every frame of data is passed on as it comes, except for the calls
whose messages name addresses.
"""
