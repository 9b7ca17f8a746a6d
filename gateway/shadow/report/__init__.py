"""The HTML report of a shadow gateway and its live view in a terminal.

service.py         the report of a running gateway: collects state and events, writes the files at the end
traffic_series.py  rates and latencies over time, by topic
request_kinds.py   classifies a request and its answer without decoding them
snapshot.py        everything the report shows, as one JSON object
html.py            the page
charts.py          which plots the page has
plots.py           draws a plot as SVG
tables.py          formats values and tables as HTML
style.py           the style sheet
live_view.py       `rmq-gateway shadow watch`
"""
