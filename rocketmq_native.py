"""The optional C extension, if it can be used; importing this module raises ImportError with the reason otherwise.

`setup.py` builds it from the sources in `native/` as `_rocketmq_native`. All that it does is also written in Python.
"""

import os
import zlib
from pathlib import Path

SWITCH = "ROCKETMQ_NATIVE"
"""Environment variable that switches the extension off for a whole process, as tests of the Python code do."""


def checksum_sources(folder: Path) -> str:
    """Return the checksum of the C sources, as setup.py puts it into the extension."""
    checksum = 0
    for path in sorted(folder.glob("*.[ch]")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"


if os.environ.get(SWITCH) == "off":
    raise ImportError(f"{SWITCH}=off")
try:
    from _rocketmq_native import *  # noqa: F403
    from _rocketmq_native import SOURCES_CHECKSUM
except ModuleNotFoundError:
    raise ImportError("not built: that needs a C compiler and the headers of Python") from None
except ImportError as error:
    raise ImportError(f"not for this system: {error}") from None

# In a checkout, sources that changed must not meet an extension that knows other names.
_SOURCES = Path(__file__).resolve().parent / "native"
try:
    _is_built_from_them = (
        not (_SOURCES / "module.c").is_file() or checksum_sources(_SOURCES) == SOURCES_CHECKSUM
    )
except OSError as error:
    raise ImportError(f"its sources cannot be compared: {error}") from error
if not _is_built_from_them:
    raise ImportError("built from other sources: run `make native`")
