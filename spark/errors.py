"""What can go wrong between Spark and RocketMQ, in words for whoever wrote the query."""


class SparkRocketmqError(Exception):
    """Anything this package reports; the text never holds a secret."""


class OptionError(SparkRocketmqError, ValueError):
    """An option that is unknown, missing, malformed, or contradicts another."""


class EndpointError(SparkRocketmqError):
    """A namesrv or broker that cannot be reached, refuses, or does not know a topic, after all retries."""


class DataLossError(SparkRocketmqError):
    """Messages that were asked for are no longer there (`failOnDataLoss`)."""


class DamageError(SparkRocketmqError):
    """A capture file, or a part of one, cannot be read (`failOnDamage`)."""


class CorruptMessageError(SparkRocketmqError):
    """Bytes that a broker sent and that are no message, or whose body does not fit its checksum."""


class TableError(SparkRocketmqError):
    """A table that is not what it should be: of another format, damaged, without a row, or busy."""


class ColumnError(SparkRocketmqError, ValueError):
    """Columns that a sink cannot make messages of; said before anything is sent."""


class RowError(SparkRocketmqError, ValueError):
    """A row that cannot become a message, in the official client's or broker's words."""
