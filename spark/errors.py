"""Exceptions of this package. Their texts address the author of the query.

`spark.pipelines.commands` recognises these classes by the path of this module, so they have to stay here.
"""


class SparkRocketmqError(Exception):
    """Base class of all errors that this package reports. The text never contains a secret."""


class OptionError(SparkRocketmqError, ValueError):
    """An option is unknown, missing, malformed, or contradicts another option."""


class EndpointError(SparkRocketmqError):
    """A name server or broker is unreachable, refuses a request, or does not know a topic, after all retries."""


class DataLossError(SparkRocketmqError):
    """Requested messages no longer exist. Raised unless `failOnDataLoss` is false."""


class DamageError(SparkRocketmqError):
    """A capture file, or a part of one, cannot be read. Raised unless `failOnDamage` is false."""


class CorruptMessageError(SparkRocketmqError):
    """A broker sent bytes that are not a message, or a body that does not match its checksum."""


class TableError(SparkRocketmqError):
    """A table is in another format, damaged, empty, or locked by another process."""


class ColumnError(SparkRocketmqError, ValueError):
    """A sink cannot build messages from these columns. Raised before anything is sent."""


class RowError(SparkRocketmqError, ValueError):
    """A row cannot become a message. The text is that of the official client or broker."""
