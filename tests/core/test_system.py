import platform

import numpy as np
import psutil
import pytest

from enplace.system import give_back_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries give it back")
def test_memory_between_what_is_still_used_is_given_back() -> None:
    blocks = [np.ones(12_000) for _ in range(500)]  # too small to be mapped on their own
    kept = blocks[::25]
    used = psutil.Process().memory_info().rss
    del blocks
    give_back_memory()
    assert used - psutil.Process().memory_info().rss > 30e6
    assert all(block.all() for block in kept)
