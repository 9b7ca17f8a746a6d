"""Makes message classes of an encoded descriptor, in a descriptor pool of our own.

In protobuf's default pool they would collide with those of a RocketMQ client library in the same process, as in tests
that run a client against an embedded server.
"""

import base64
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


def load_classes(encoded: str) -> dict[str, Any]:
    """Return the messages, enumerations and their values of a file descriptor (base 64) by their names."""
    pool = descriptor_pool.DescriptorPool()
    for imported in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
    described = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(encoded))
    pool.Add(described)
    file = pool.FindFileByName(described.name)
    classes: dict[str, Any] = {
        name: message_factory.GetMessageClass(message) for name, message in file.message_types_by_name.items()
    }
    for name, enumeration in file.enum_types_by_name.items():
        classes[name] = EnumTypeWrapper(enumeration)
        classes.update({value.name: value.number for value in enumeration.values})
    return classes
