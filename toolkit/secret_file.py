"""Files that hold one secret, such as the password of a user."""

from pathlib import Path

from toolkit.settings import SettingsError


def read_secret_file(file: str | Path, name: str) -> str:
    """Return the text of a file without the white space around it.

    ``name`` is that of the setting, for errors. Raises SettingsError for a file that is empty or cannot be read.
    """
    try:
        secret = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"{name} {file}: {reason}") from None
    if not secret:
        raise SettingsError(f"{name} {file} is empty")
    return secret
