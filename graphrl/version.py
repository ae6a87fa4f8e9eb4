"""The version of graphrl that is installed."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str | None:
    """As `pip` knows it, such as "0.1.0"; None where graphrl is run without being installed."""
    try:
        return version("graphrl")
    except PackageNotFoundError:
        return None
