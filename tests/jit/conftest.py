"""What a call asks for, without running it."""

import pytest
from xeflash import _core
from xeflash.jit.provide import provide


class Asked(Exception):
    pass


@pytest.fixture
def asked():
    """The first description that the extension asks a kernel for in a call; the call ends there."""

    def by(call):
        with pytest.raises(Asked) as found:
            call()
        return found.value.args[0]

    def refuse(values, queue, again=False):
        raise Asked(values)

    _core.set_kernel_provider(refuse)
    yield by
    _core.set_kernel_provider(provide)
