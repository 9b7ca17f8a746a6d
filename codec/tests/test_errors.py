from codec.errors import FrameError, JsonError, MessageFormatError


def test_all_are_value_errors_and_none_is_another():
    kinds = (FrameError, JsonError, MessageFormatError)
    assert all(issubclass(kind, ValueError) for kind in kinds)
    assert not any(issubclass(a, b) for a in kinds for b in kinds if a is not b)
