"""Huge and odd problems, opened and placed by the command: time, memory, step time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import title
from benchmarks.synthetic import antichain, chain, random_graph, transformer
from enplace.placers import DEFAULT_METHOD
from enplace.values.profile import Profile
from enplace.writers import write_profile

LIMIT_S = "10"
"""Time limit of the default method."""

MANY = 64


def main() -> None:
    """Print a row for each problem and method."""
    title(f"Read, place and write: {DEFAULT_METHOD} with {LIMIT_S} s, other methods to the end")
    print(f"{'problem':<22}{'devices':<16}{'method':<12}{'solved':>10}{'in all':>9}{'memory':>11}")
    with tempfile.TemporaryDirectory() as folder:
        many = Path(folder, "many.json")
        many.write_text(json.dumps(_cluster(MANY)))
        for profile, cluster, methods in (
            (chain(1), "a100-4-nvlink", (DEFAULT_METHOD,)),
            (chain(100_000), "a100-4-nvlink", (DEFAULT_METHOD, "m-etf", "heft")),
            (antichain(100_000), "a100-4-nvlink", (DEFAULT_METHOD, "m-etf", "heft")),
            (random_graph(300_000), "a100-4-nvlink", (DEFAULT_METHOD, "m-etf", "heft")),
            (transformer(571, 64), "pcie-4", (DEFAULT_METHOD, "m-etf", "heft")),
            (transformer(38, 64), str(many), (DEFAULT_METHOD, "m-etf")),
            (random_graph(1_000_000), "a100-4-nvlink", ("m-etf", "dpos")),
        ):
            path = Path(folder, "profile.enplace")
            write_profile(path, profile)
            for method in methods:
                _place(profile, path, cluster, method)


def _cluster(n_gpus: int) -> dict[str, object]:
    """Return a cluster of like GPUs, each joined to each, as its file has it."""
    devices = [
        {"name": f"GPU:{i}", "kind": "gpu", "capacity_bytes": 32 << 30} for i in range(n_gpus)
    ]
    return {
        "format": "enplace-cluster/1",
        "name": f"{n_gpus} GPUs",
        "devices": [*devices, {"name": "CPU:0", "kind": "cpu", "capacity_bytes": 256 << 30}],
        "default_links": {
            ends: {"b0_us": 10.0, "b1_us_per_byte": 4e-5}
            for ends in ("gpu-gpu", "gpu-cpu", "cpu-gpu")
        },
    }


def _place(profile: Profile, path: Path, cluster: str, method: str) -> None:
    command = [sys.executable, "-m", "enplace", "place", str(path), "--cluster", cluster, "--json"]
    command += ["--method", method, "-o", str(path.with_name("plan.json"))]
    command += ["--time-limit", LIMIT_S] if method == DEFAULT_METHOD else []
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    total_s = time.perf_counter() - started
    if not output:  # the reason is on standard error
        return
    found = json.loads(output)
    where = Path(cluster).stem
    print(
        f"{f'{profile.name} {profile.n_ops:,}':<22}{where:<16}{method:<12}"
        f"{found['solve_seconds']:>8.1f} s{total_s:>7.1f} s{used.ru_maxrss >> 10:>7,} MiB"
        f"   step {found['step_time_us'] / 1e3:,.1f} ms, bound {found['lower_bound'] / 1e3:,.1f} ms"
        f"   {found['note']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
