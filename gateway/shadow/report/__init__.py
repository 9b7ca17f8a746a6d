"""The HTML report of a shadow gateway and its live view in a terminal.

service.py         the report of a running gateway: collects state and events, writes the files at the end
traffic_series.py  rates and latencies over time, by topic
snapshot.py        everything the report shows, as one JSON object
html.py            the page
verdict.py         judges a run, for the head of the page
charts.py          the plots of the page, drawn by `toolkit.plots`
tables.py          formats values and tables as HTML
live_view.py       `rmq-gateway shadow watch`
conditions.py      the option `--fail-if` and its exit code
settings.py        the table `[report]`
"""
