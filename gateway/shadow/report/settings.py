"""Settings of the report: the table `[report]`."""

from dataclasses import dataclass

from toolkit.settings import setting


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """The history that the gateway keeps for its report, and the files written at the end."""

    file: str = setting("", "File for the HTML report that is written when the gateway ends; empty: none.")
    json_file: str = setting("", "File for the same report as JSON; empty: none.")
    title: str = setting("Shadow gateway", "Heading of the report.")
    series: bool = setting(True, "Record rates and latencies over time (2 us per request).")
    topics: int = setting(
        32,
        "Maximum number of topics recorded by name, about 0.5 MB each; later ones are counted together as (others).",
        low=1,
        high=1000,
    )
