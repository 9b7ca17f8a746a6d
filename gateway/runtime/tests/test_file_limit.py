import resource

import pytest

from gateway.broker.messages.store_settings import build_store_config
from gateway.config.process import BrokerConfig
from gateway.runtime.file_limit import within_file_limit


@pytest.mark.parametrize(("soft", "left"), [(1024, 512), (100_000, 20_000), (resource.RLIM_INFINITY, 20_000)])
def test_connections_leave_files_to_the_store(monkeypatch, soft, left):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, soft))
    assert within_file_limit(20_000, share=2) == left


def test_queue_files_kept_open_are_few_where_few_may_be(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 1024))
    assert build_store_config(BrokerConfig(), memory=False).max_open_queue_files == 256
