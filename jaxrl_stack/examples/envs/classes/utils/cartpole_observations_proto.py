"""Protocol buffer message for CartPole's observation; needs the package protobuf."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELDS = ("x_pos", "x_veloc", "angle_pos", "angle_veloc")


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="jaxrl_stack/cartpole_observations.proto", package="jaxrl_stack")
    message = file.message_type.add(name="CartPoleObservation")
    for number, name in enumerate(FIELDS, start=1):
        message.field.add(
            name=name,
            number=number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    # proto2, the default: a field that is set to 0.0 is written, too, so that all messages have one length.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("jaxrl_stack.CartPoleObservation"))


CartPoleObservation: Any = _message_class()
"""Message with the four numbers of CartPole's observation."""

__all__ = ["FIELDS", "CartPoleObservation"]
