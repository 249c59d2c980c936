import platform

import numpy as np
import psutil
import pytest

from enplace import system
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


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        ("0::/job/task\n", {"job/task/memory.max": "max", "job/memory.max": "1000"}),
        (
            "3:cpu,cpuacct:/a\n4:memory:/b\n",
            {"memory/b/memory.limit_in_bytes": "1000", "a/memory.max": "5"},
        ),
        ("0::/elsewhere\n", {"memory.max": "1000"}),
    ],
)
def test_the_memory_of_a_container_is_what_it_may_use(own, limits, tmp_path, monkeypatch) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(system, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(system, "_CGROUPS", tmp_path)
    assert system.host_bytes() == 1000
