"""Reading the suite's reports."""

from tools.foreign_suite.suite import CaseOutcome, CaseResult, read_report

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="JUnit Jupiter" tests="4">
<testcase name="testSend()" classname="org.apache.rocketmq.broker.server.NormalTest" time="1.5"/>
<testcase name="testSize()" classname="org.apache.rocketmq.broker.server.NormalTest">
<failure message="expected: 1&#10;but was: 2" type="org.opentest4j.AssertionFailedError">stack</failure>
</testcase>
<testcase name="testAck()" classname="org.apache.rocketmq.broker.simple.AckTest"><error>no message
at Foo</error></testcase>
<testcase name="testOld()" classname="org.apache.rocketmq.broker.simple.AckTest"><skipped/></testcase>
</testsuite>
"""


def test_a_report_has_an_outcome_for_each_test(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert read_report(path) == {
        "NormalTest.testSend": CaseOutcome(CaseResult.PASSED),
        "NormalTest.testSize": CaseOutcome(CaseResult.FAILED, "expected: 1"),
        "AckTest.testAck": CaseOutcome(CaseResult.FAILED, "no message"),
        "AckTest.testOld": CaseOutcome(CaseResult.SKIPPED),
    }
