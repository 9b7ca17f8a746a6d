"""The program of a broker process: `python -m gateway.process.broker_main CONTROL_FILENO`.

`gateway.process.supervision` starts it. Standard input holds the pickled job.
"""

import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.process.supervision.broker_process import BrokerJob

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends, on Linux; exit if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the supervisor has ended")


def main() -> None:
    """Run one broker until the supervisor stops it or is gone."""
    gc.disable()  # until `tune_garbage_collector`, as in `gateway.commands.cli`
    job: BrokerJob = pickle.load(sys.stdin.buffer)
    die_with_parent(job.supervisor_pid)
    from gateway.runtime.logs import set_up_logging

    config = job.config
    set_up_logging(
        config.process.log_level,
        broker_name=config.brokers[0].replica_name,
        log_format=config.process.log_format,
    )
    from gateway.process.server import Server
    from gateway.process.supervision.supervisor_link import SupervisorLink
    from gateway.runtime.process import run_process

    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    link = SupervisorLink(control, config.limits.of_connection(), has_namesrv=job.registers_with_supervisor)
    sys.exit(run_process(lambda: Server(config, link=link)))


if __name__ == "__main__":
    main()
