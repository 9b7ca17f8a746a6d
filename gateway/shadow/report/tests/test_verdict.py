"""The verdict on top of the report, and the names of both clusters."""

from gateway.shadow.report.html import render_report
from gateway.shadow.report.verdict import describe_clusters, judge_run, render_verdict
from gateway.shadow.tests.sample_report import sample_report

CONFIGURATION = {
    "primary": {"namesrv": ["10.0.0.1:9876", "10.0.0.2:9876"]},
    "target": {"namesrv": ["10.1.0.1:9876"], "kind": "ours"},
}


def healthy(**sections):
    parity = {"holds": True, "empty": False, "missing": 0, "queues": []}
    report = sample_report(configuration=CONFIGURATION)
    report["sections"] = {"problems": [], "mirror": {"diverged_queues": 0}, "parity": parity, **sections}
    for totals in report["series"]["totals"].values():
        totals["mirror_refused"] = totals["mirror_dropped"] = totals["differing"] = 0
    return report


def test_a_healthy_run():
    verdict = judge_run(healthy())
    assert verdict.title.startswith("Healthy: nothing failed")
    assert (verdict.reasons, verdict.notes) == ((), ())
    assert 'class="verdict good"' in render_verdict(verdict)


def test_each_reason_is_a_sentence():
    problem = {"part": "target", "problem": "mirrorTarget is <not> set"}
    verdict = judge_run(
        healthy(
            problems=[problem],
            mirror={"diverged_queues": 2},
            compare={"differing": 3},
            parity={"missing": 1, "changed": 4, "queues": []},
        )
    )
    assert verdict.title == "Not healthy: 4 reasons"
    assert verdict.reasons == (
        "target: mirrorTarget is <not> set",
        "2 queues of the target lack messages",
        "3 answers of the two clusters differ",
        "parity: 1 missing, 4 changed",
    )
    page = render_verdict(verdict)
    assert 'class="verdict bad"' in page
    assert "&lt;not&gt;" in page


def test_what_is_not_known_is_said():
    assert judge_run(healthy(parity=None)).notes == ("Parity was not checked.",)
    assert judge_run(healthy(parity={"empty": True})).notes == ("The parity check compared no message.",)
    alone = healthy()
    alone["configuration"] = {"primary": {"namesrv": ["a:1"]}, "target": {"namesrv": []}}
    assert judge_run(alone).notes == ("There is no target: the gateway only forwards.",)


def test_verdict_clusters_and_period_are_on_top():
    page = render_report(healthy())
    top = page[page.index("<h1>") : page.index("<nav")]
    assert "primary 10.0.0.1:9876, 10.0.0.2:9876" in top
    assert "target 10.1.0.1:9876 (brokers of this project)" in top
    assert "2023-11-14 22:13:20 to 2023-11-14 22:14:20, 1 min 0 s" in top
    assert "Healthy" in top
    assert describe_clusters({}) == ["primary not named"]


def test_failing_queues_are_red_and_never_folded_away():
    rows = [
        {"broker": "broker-a", "topic": f"T{number}", "queue": 0, "phase": "live", "problem": ""}
        for number in range(40)
    ]
    rows[30] |= {"topic": "Orders", "phase": "stuck", "problem": "the target is ahead"}
    page = render_report(healthy(replication=rows))
    bad = page[page.index('<tr class="bad">') :]
    assert "the target is ahead" in bad[: bad.index("</tr>")]
    assert page.index("the target is ahead") < page.index("39 more queues")


def test_no_raw_json_in_the_page():
    nested = {"groups": {"G": {"state": "DRAINED", "ends": [{"queue": 1}]}}, "list": [{"a": {"b": None}}, 1]}
    page = render_report(healthy(capture=[{"name": "x", **nested}]))
    assert "{&quot;" not in page
    assert "[{" not in page
    assert "G state DRAINED, ends queue 1" in page
