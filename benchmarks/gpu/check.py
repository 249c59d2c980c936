"""Measure PyTorch and TensorFlow models on this machine's GPU, and compare with what is predicted.

``python -m benchmarks.gpu.check FOLDER`` profiles each model, simulates it on one device, estimates
those of PyTorch on tensors without content from the GPU's roofline, and writes ``gpu-check.json``,
``gpu-check.md`` and the profiles, packed into ``profiles.zip``. Models of TensorFlow come last, if
it is installed and sees the GPU that PyTorch sees, and while there is time. Without a GPU the check
does the same with small models on the CPU, whose estimate means nothing. A model that fails is told
and left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import traceback
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from enplace.frameworks.jobs import measure_profile
from enplace.frameworks.own_cluster import PCIE, describe, model_of
from enplace.frameworks.registry import frameworks
from enplace.frameworks.roofline import DEFAULT_GPU, GPUS
from enplace.frameworks.source import source_of
from enplace.machine import simulate
from enplace.text import ms, percent, size
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import KINDS, Profile
from enplace.writers import write_profile

SCRIPT = Path(__file__).with_name("train.py")
MODELS = ("lstm", "resnet50", "gpt2", "bert", "vit", "llama-1b", "t5", "convnext")
TENSORFLOW_SCRIPTS = Path(__file__).parents[2] / "resources" / "models"
TENSORFLOW_MODELS = {
    "tf-vgg19": "vgg19.py --batch 64 --size 224 --classes 1000 --width 64",
    "tf-rnnlm": "rnnlm.py --hidden 1024 --length 20 --batch 128 --vocabulary 10000",
    "tf-transformer": "transformer.py --layers 6 --heads 16 --hidden 1024 --length 64 --batch 32 "
    "--vocabulary 32000",
}
"""Scripts with the sizes that a GPU gets; a CPU gets the small ones that the scripts begin with."""
STEPS, WARM_UPS = 30, 10
ENOUGH_S = 360
"""After so long, no model of TensorFlow is begun, so that all ends within eight minutes."""
USUAL_GPU_BYTES = 80 << 30
SHOWN = {
    ms: ("step_us", "simulated_us", "estimated_us"),
    percent: ("busy", "simulated_busy", "estimated_busy"),
    size: ("peak_bytes", "simulated_peak_bytes", "estimated_peak_bytes"),
}
"""How the page shows what is measured, simulated and estimated."""


def main() -> int:
    """Return how many models failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.check")
    parser.add_argument("folder", type=Path, help="where the results go")
    known = (*MODELS, *TENSORFLOW_MODELS)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"of {', '.join(known)}")
    given = parser.parse_args()
    if unknown := {*given.names} - {*known}:
        parser.error(f"no model is called {', '.join(sorted(unknown))}")
    began, chosen = time.monotonic(), given.names or [*known]
    names = [name for name in chosen if name in MODELS]
    given.folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    print(json.dumps(machine), flush=True)
    rows: dict[str, dict[str, Any]] = {}
    profiles: dict[str, Profile] = {}
    for name in names:
        rows[name] = attempt(name, "measured", lambda name=name: measured(name, machine, profiles))
        save(given.folder, machine, rows, profiles)
    with ThreadPoolExecutor(4) as pool:
        guess = {
            name: pool.submit(
                attempt, name, "estimated", lambda name=name: estimated(name, machine, profiles)
            )
            for name in names
        }
        for name in names:
            rows[name] |= guess[name].result()
    others = [name for name in chosen if name in TENSORFLOW_MODELS]
    why = why_no_tensorflow(machine) if others else ""
    for name in [] if why else others:
        if time.monotonic() - began > ENOUGH_S:
            why = f"{name} and what follows were left out: {ENOUGH_S // 60} minutes had passed."
            break
        rows[name] = attempt(name, "measured", lambda name=name: measured(name, machine, profiles))
        save(given.folder, machine, rows, profiles)
    machine["left_out"] = why
    save(given.folder, machine, rows, profiles)
    print(page(machine, rows))
    return sum("failed" in row for row in rows.values())


def describe_machine() -> dict[str, Any]:
    """Return the GPU and the versions."""
    import torch

    has_gpu = torch.cuda.is_available()
    card = torch.cuda.get_device_properties(0) if has_gpu else None
    return {
        "gpu": card.name if card else "",
        "gpu_bytes": card.total_memory if card else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if has_gpu else None,
        "python": platform.python_version(),
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }


def why_no_tensorflow(machine: dict[str, Any]) -> str:
    """Say why models of TensorFlow are left out; empty if they are not."""
    if not frameworks()["tensorflow"].is_installed:
        return "The models of TensorFlow were left out: it is not installed in this Python."
    if not machine["gpu"]:
        return ""
    count = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    found = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True)
    if found.stdout.split()[-1:] in ([], ["0"]):
        return "The models of TensorFlow were left out: this TensorFlow finds no GPU."
    return ""


def attempt(name: str, what: str, work: Any) -> dict[str, Any]:
    """Do a part of a model's check; tell if it fails, and go on."""
    began = time.monotonic()
    try:
        found: dict[str, Any] = work()
    except Exception as error:
        lines = getattr(error, "last_lines", "")
        print(f"{name}: {what} FAILED: {error}\n{lines}", flush=True)
        if not lines:
            traceback.print_exc()
        return {"failed": f"{what}: {error}"}
    took_s = time.monotonic() - began
    shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}
    print(f"{name}: {what} in {took_s:.0f} s: {json.dumps(shown)}", flush=True)
    return found | {f"{what}_in_s": took_s}


def source(name: str, machine: dict[str, Any], **options: Any) -> Any:
    """Return the training script of a model."""
    if name in TENSORFLOW_MODELS:
        script, *sizes = TENSORFLOW_MODELS[name].split()
        path, words = str(TENSORFLOW_SCRIPTS / script), sizes if machine["gpu"] else []
        return source_of(path, arguments=words, framework_name="tensorflow")
    words = [name] if machine["gpu"] else [name, "--small"]
    return source_of(str(SCRIPT), arguments=words, framework_name="torch", **options)


def measured(name: str, machine: dict[str, Any], profiles: dict[str, Profile]) -> dict[str, Any]:
    """Profile a model; simulate its step on the device that it ran on."""
    devices = "gpu:1" if machine["gpu"] else "cpu:1"
    profile = measure_profile(source(name, machine), devices, STEPS, WARM_UPS)
    profiles[f"{name}-measured"] = profile
    facts, config = profile.measured, profile.measured.config
    assert facts.cluster is not None
    step_us = facts.step_time_us or float("nan")
    step, _, peak_bytes = on_one_device(profile, facts.cluster)
    no_gaps_us, busy_us, _ = on_one_device(without_gaps(profile), facts.cluster)
    found = {
        "ops": profile.n_ops,
        "edges": profile.n_edges,
        "variables_bytes": int(profile.persistent_bytes.sum()),
        "steps": facts.steps,
        "step_us": step_us,
        "step_quartiles_us": config.get("step_quartiles_us"),
        "peak_bytes": max(facts.peak_bytes.values(), default=None),
        "simulated_us": step,
        "simulated_without_gaps_us": no_gaps_us,
        "simulated_busy": busy_us / step,
        "simulated_peak_bytes": peak_bytes + config.get("library_bytes", 0),
        "library_bytes": config.get("library_bytes"),
        "launch_gap_us": facts.launch_gap_us,
        "op_overhead_us": facts.op_overhead_us,
    }
    if "kernels_us" in config:
        found |= {"kernels": config["kernels"], "kernels_us": config["kernels_us"]}
        found |= {"unjoined_us": config["unjoined_us"], "busy": config["kernels_us"] / step_us}
    return found


def without_gaps(profile: Profile) -> Profile:
    """Return a profile whose ops on a GPU take only as long as their kernels."""
    gap_us = profile.measured.launch_gap_us or 0.0
    kernels = np.array([profile.measured.op_kernels.get(name, 0) for name in profile.op_names])
    time_us = profile.time_us.copy()
    gpu = KINDS.index("gpu")
    time_us[:, gpu] = np.maximum(time_us[:, gpu] - gap_us * kernels, 0.0)
    return profile.with_costs(time_us)


def estimated(name: str, machine: dict[str, Any], profiles: dict[str, Profile]) -> dict[str, Any]:
    """Estimate a model without running it; simulate its step on the GPU."""
    model = model_of(machine["gpu"]) if machine["gpu"] else DEFAULT_GPU
    model = model if model in GPUS else DEFAULT_GPU
    devices = "gpu:1" if machine["gpu"] else "cpu:1"  # kernels are chosen for what is there
    profile = measure_profile(source(name, machine, estimate=model), devices, 1, 0)
    profiles[f"{name}-estimated-{model}"] = profile
    n_bytes = machine["gpu_bytes"] or USUAL_GPU_BYTES
    step, busy_us, peak_bytes = on_one_device(profile, describe(1, model, n_bytes, PCIE))
    return {
        "estimated_for": model,
        "estimated_ops": profile.n_ops,
        "estimated_us": step,
        "estimated_busy": busy_us / step,
        "estimated_peak_bytes": peak_bytes,
        "estimated_flops": float(np.nansum(profile.flops)),
    }


def on_one_device(profile: Profile, cluster: Cluster) -> tuple[float, float, int]:
    """Simulate a profile on one device in its own order; return step, busy time and peak memory."""
    kinds = [device.kind for device in cluster.devices]
    gpu = kinds.index("gpu") if "gpu" in kinds else 0
    host = kinds.index("cpu") if "cpu" in kinds else 0
    runs = np.isfinite(profile.time_us[:, KINDS.index(kinds[gpu])])
    device = np.where(runs, gpu, host).astype(np.int64)
    # A tie may hold an op of the host beside a parameter; what the check asks is the GPU's time.
    free = replace(profile, colocation=("",) * profile.n_ops)
    plan = Plan(device, np.arange(profile.n_ops), method="one-device")
    schedule = simulate(Problem(free, cluster), plan)
    curve = schedule.memory[gpu]
    return float(schedule.makespan_us), float(schedule.busy_us[gpu]), curve.peak_bytes


def save(
    folder: Path, machine: dict[str, Any], rows: dict[str, Any], profiles: dict[str, Profile]
) -> None:
    """Write everything that is known so far."""
    written = json.dumps({"machine": machine, "models": rows}, indent=1)
    (folder / "gpu-check.json").write_text(written + "\n")
    (folder / "gpu-check.md").write_text(page(machine, rows))
    with zipfile.ZipFile(folder / "profiles.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, profile in profiles.items():
            path = folder / f"{name}.enplace"
            write_profile(str(path), profile)
            packed.write(path, path.name)
            path.unlink()


def page(machine: dict[str, Any], rows: dict[str, Any]) -> str:
    """Return the tables of predicted against measured."""
    where = machine["gpu"] or "CPU (small models; their estimate is for a GPU that is not here)"
    lines = [
        f"# {where}, PyTorch {machine['torch']}, {machine['when']}",
        "",
        "| model | ops | measured step | simulated | estimated | busy: measured | simulated "
        "| estimated | peak: measured | simulated | estimated |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, row in rows.items():
        cells = [name, f"{row.get('ops', 0):,}"]
        for show, keys in SHOWN.items():
            found = [row.get(key) for key in keys]
            cells += ["" if value is None else show(value) for value in found]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\n{machine['left_out']}"] if machine.get("left_out") else []
    lines += [f"\n{name}: {row['failed']}" for name, row in rows.items() if "failed" in row]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
