"""The refusal of a request at a limit of `gateway/config/limits.py`."""

from codec.constants import ResponseCode
from remoting.errors import RequestError


def limit_error(key: str, limit: int, holds: str, remedy: str = "") -> RequestError:
    """Return the refusal of a new entry when ``limit`` of them exist; ``holds`` names them in the plural.

    The remark names the setting ``key`` and what an operator can do.
    """
    remark = f"the limit of {limit} {holds} is reached: {remedy or 'remove some'} or raise {key}"
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
