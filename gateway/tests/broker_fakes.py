"""Stand-ins for the clock, files and connections of broker parts."""

from gateway.runtime.config_file import ConfigFile
from storage.files import MemoryFiles


class FakeClock:
    """A clock that only moves in tests' hands."""

    def __init__(self, ms=1_700_000_000_000):
        self.ms = ms

    def now_ms(self):
        return self.ms

    def monotonic(self):
        return self.ms / 1000

    def pass_ms(self, ms):
        self.ms += ms


class FakeConnection:
    """A connection that records the requests it was given and whether it was closed."""

    def __init__(self, remote=("10.0.0.1", 50000), local=("10.0.0.9", 10911)):
        self.remote = remote
        self.local = local
        self.told = []
        self.closed = None
        self.state = {}
        self.written = []
        self.asked = []
        self.answer = None
        self.nursery = None

    def send_oneway(self, request):
        self.told.append(request)

    def write(self, data):
        self.written.append(data)

    def spawn(self, function, *args):
        self.nursery.start_soon(function, *args)

    async def ask_command(self, command, timeout_s):
        self.asked.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def ask(self, request, timeout_s=3.0):
        return request.read_reply(await self.ask_command(request.to_command(), timeout_s))

    def close(self, reason=""):
        self.closed = reason

    def on_close(self, callback):
        pass


def memory_config_file(name="table.json", files=None):
    """Return a configuration file in memory."""

    return ConfigFile(files or MemoryFiles(), f"/config/{name}")
