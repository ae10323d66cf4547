"""What the tests by Triton's own clients share, over HTTP and gRPC alike."""

import pytest
from tritonclient.utils import InferenceServerException


def tensor(kind, name, array, datatype="FP32", **how):
    """An input as a client has it; `kind` is the module of the client."""
    given = kind.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, **how)
    return given


def refuses(call, *told):
    """The error of a call that must fail, saying these things."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    for words in told:
        assert words in str(caught.value), caught.value
    return caught.value
