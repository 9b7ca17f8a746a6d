"""Walks: guides whose commands are typed by a test, as their readers type them.

A guide is a Markdown document. HTML comments, which readers do not see, mark how a walk uses the block after them:

    <!-- walk: run -->                    type the block into a shell; every command must succeed
    <!-- walk: start | until "namesrv" -->  start each line as a background process, and wait for its output
    <!-- walk: file shadow.toml -->       write the block to a file
    <!-- walk: python -->                 type the block into the guide's Python session
    <!-- walk: install -->                not typed: it names the extras that the guide's environment has
    <!-- walk: no, REASON -->             not typed, because of REASON

and without a block:

    <!-- walk: type COMMAND -->           type a command that the text describes but does not show
    <!-- walk: start COMMAND -->          the same as a background process
    <!-- walk: python CODE -->            the same in the Python session
    <!-- walk: stop COMMAND -->           press Ctrl-C in the terminal of the process that begins with COMMAND
    <!-- walk: afresh -->                 nothing that was started runs any more, and the folder is empty again
    <!-- walk: checkout -->               the reader is in a checkout of the project, not in an empty folder
    <!-- walk: needs PROGRAM -->          without this program the guide is skipped; with CI=true that is a failure

`run`, `start`, `python`, `type` and `stop` take conditions after `|`: `exit 3` (the last command's exit code is 3, not
0), `shows TEXT` (the output contains TEXT), `lacks TEXT` (it does not), `until TEXT` (only for `start`), `types TEXT`
(the answer to a question), `within SECONDS` (instead of 60). Every block of a walked guide except diagrams needs a
mark.

Guides are README, and every page below docs that has a block with a command or a program; tutorials and how-tos are
guides in any case. Those that are not walked are in `unwalked.toml`, each with its reason.

Besides the installed programs a walk has `walk-send` (a producer), `walk-official` (an official cluster with its Proxy)
and `walk-clients` (stock Java, Go and Python 5.x clients; a guide with them needs `go`).

`guide` reads marks, `session` types, `sandbox` makes the fresh folder, environment and network of a walk.
`official_cluster` and `stock_clients` are programs of walks.
"""
