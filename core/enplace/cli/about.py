"""``methods``, ``clusters``, ``doctor``, ``studio``, ``completion``."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from enplace import __version__
from enplace.cli.answer import NO, YES, Answer, command
from enplace.cli.options import FILE, MethodType, PresetType, force_option, whole_option
from enplace.errors import ClusterError, EnplaceError, FileError
from enplace.files.outputs import CLUSTER, check_outputs, keep_replaced
from enplace.text import instead, table

if TYPE_CHECKING:
    from enplace.placing.registry import Placer
    from enplace.values.cluster import Cluster

LIBRARIES = ("click", "numba", "numpy", "highspy", "google-re2", "tqdm")
STUDIO_MODULES: tuple[str, ...] = ("PySide6",)
SOLVER_MODULES = {"HiGHS": "highspy", "OR-Tools": "ortools", "PuLP": "pulp"}
SOLVER_PROGRAMS = ("CBC", "CPLEX", "Gurobi")


@command("methods")
@click.argument("name", type=MethodType(), required=False)
def methods(name: str | None) -> Answer:
    """List the methods and their papers, or show one."""
    from enplace.placers import DEFAULT_METHODS, placers
    from enplace.placing.registry import find_placer

    if name is not None:
        placer = find_placer(name)
        return Answer({"methods": [_method(placer)]}, _describe_method(placer))
    found = [_method(placer) for placer in placers().values()]
    rows = [["method", "", "for", "description", "source"]]
    for placer in placers().values():
        mark = "default" if placer.name in DEFAULT_METHODS.values() else ""
        note = "" if placer.installed else f" (cannot run here: {placer.why_not})"
        serves = ", ".join(placer.objectives)
        rows.append([placer.name, mark, serves, placer.title + note, placer.source])
    return Answer({"methods": found}, table(rows, "lllll"))


def _method(placer: Placer) -> dict[str, Any]:
    return {
        "name": placer.name,
        "good": placer.good,
        "source": placer.source,
        "objectives": list(placer.objectives),
        "capabilities": list(placer.capabilities),
        "installed": placer.installed,
        "why_not": placer.why_not,
        "options": [
            {
                "name": option.name,
                "values": option.choices or option.values,
                "default": option.default,
                "help": option.help,
            }
            for option in placer.options
        ],
    }


def _describe_method(placer: Placer) -> str:
    """Say what a method does, when to choose it, what it can do, and what its flags are."""
    from enplace.cli.options import flag_of
    from enplace.placing.registry import CAPABILITIES

    why_not = f"It cannot run here: {placer.why_not}." if placer.why_not else ""
    head = [f"{placer.name}: {placer.title}", why_not, placer.summary, placer.good]
    rows = [["objectives", ", ".join(placer.objectives)], ["source", placer.source or "-"]]
    rows += [[each, CAPABILITIES[each]] for each in placer.capabilities]
    rows += [[f"--{option.name}", flag_of(option).help or ""] for option in placer.options]
    return "\n\n".join([*filter(None, head), table(rows, "ll")])


class _SizeType(click.ParamType):  # type: ignore[type-arg]
    """Bytes, written with their unit."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> int:
        from enplace.text import read_size

        return read_size(value) or self.fail(f"'{value}' is not a size such as 24GiB", param, ctx)


SIZE = _SizeType()


@command("clusters")
@click.argument("name", type=PresetType(), required=False)
@click.option(
    "--detect", is_flag=True, help="Describe the GPUs of this machine; if it has none, ask."
)
@whole_option("--gpus", 1, 255, "How many GPUs, instead of detecting them.")
@click.option("--model", metavar="NAME", help="H200, H100, A100, V100 or another name.")
@click.option("--memory", type=SIZE, metavar="SIZE", help="Memory of each GPU, such as 24GiB.")
@click.option("--link", type=click.Choice(["nvlink", "pcie"]), help="What joins the GPUs.")
@click.option("-o", "--output", type=FILE, metavar="OUT.json", help="Write the cluster.")
@force_option
def clusters(
    name: str | None,
    detect: bool,
    gpus: int | None,
    output: str | None,
    force: bool,
    **gpu: Any,
) -> Answer:
    """List the presets, show one, or describe your cluster.

    'enplace clusters --detect -o mine.json' writes this machine's; with --gpus 4 --model A100
    --memory 80GiB --link nvlink, that of another machine. Every command takes mine.json as
    --cluster.
    """
    from enplace.files.writing import write_atomically
    from enplace.readers.clusters import presets
    from enplace.writers.clusters import cluster_text, cluster_to_json

    own = detect or gpus is not None
    if (output is not None or any(gpu.values())) and not own and name is None:
        raise EnplaceError("add --detect, or --gpus with a number")
    if name is not None and (own or any(gpu.values())):
        raise EnplaceError(f"leave out the preset '{name}', or what describes another cluster")
    if name is not None and name not in presets():
        raise ClusterError(f"there is no preset '{name}'; {instead(name, presets())}")
    check_outputs([(CLUSTER, output)], force=force)
    if name is not None or own:
        cluster = presets()[name] if name is not None else _own_cluster(gpus, **gpu)
        text = str(cluster)
        if output is not None:
            keep_replaced(output)
            write_atomically(output, cluster_text(cluster) + "\n")
            text += f"\n\nThe cluster is in {output}."
        return Answer(cluster_to_json(cluster), text)
    found = [
        {
            "name": cluster.name,
            "devices": [device.name for device in cluster.devices],
            "description": cluster.description,
        }
        for cluster in presets().values()
    ]
    rows = [["cluster", "devices", "description"]]
    rows += [[c.name, str(c.n_devices), c.summary] for c in presets().values()]
    return Answer({"clusters": found}, table(rows, "lrl"))


def _own_cluster(
    gpus: int | None, model: str | None, memory: int | None, link: str | None
) -> Cluster:
    """Detect this machine's GPUs, or make a cluster of what the user says of others."""
    from enplace.frameworks.nvml import visible_cards
    from enplace.frameworks.own_cluster import LINKS, describe, detect, model_of

    if gpus is None and (cards := visible_cards()):
        return detect(cards)
    if gpus is None:
        click.echo("There is no NVIDIA GPU here, or the extra 'gpu' is missing.", err=True)
    links = "; ".join(f"{key}: {text}" for key, text in LINKS.items())
    gpus = gpus or _ask("--gpus", "How many GPUs are there", "2", click.IntRange(1, 255))
    model = model or _ask("--model", "Their model (H200, H100, A100, V100 or another)", "A100")
    memory = memory or _ask("--memory", "Memory of each", "80GiB", SIZE)
    if link is None and gpus > 1:
        link = _ask("--link", f"What joins them ({links})", "nvlink", click.Choice(list(LINKS)))
    return describe(gpus, model_of(model), memory, link or "pcie")


def _ask(option: str, question: str, usual: str, kind: Any = None) -> Any:
    """Ask for an option that was left out.

    Raises
    ------
    ClusterError
        If nobody is there to answer.
    """
    if not sys.stdin.isatty():
        raise ClusterError(
            f"add {option}: a description is --gpus 4 --model A100 --memory 80GiB --link nvlink"
        )
    return click.prompt(question, usual, type=kind, err=True, show_choices=False)


@command("doctor")
def doctor() -> Answer:
    """Report what is installed here, and what is missing.

    Exit status 1 if a missing part makes Enplace slow or stops it from working.
    """
    from enplace.frameworks.registry import frameworks
    from enplace.solvers.milp import program_of
    from enplace.solvers.scotch_process import GET_SCOTCH, SCOTCH

    versions = {"enplace": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) or "missing" for name in LIBRARIES}
    of_frameworks = {each.extra: (each.module,) for each in frameworks().values()}
    modules = {"studio": STUDIO_MODULES, **of_frameworks, "gpu": ("pynvml",), "metis": ("pymetis",)}
    modules |= {"notebook": ("matplotlib", "networkx", "pandas"), "exact": ("ortools",)}
    extras = [_extra(name, needed) for name, needed in modules.items()]
    cache = _cache()
    scotch = shutil.which(SCOTCH)
    display = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    solvers = {name: _version(module) for name, module in SOLVER_MODULES.items()}
    solvers |= {name: program_of(name) for name in SOLVER_PROGRAMS}
    healthy = cache["writable"] and "missing" not in versions.values()
    rows = [[name, version] for name, version in versions.items()]
    rows += [[f"extra {extra['name']}", _describe_extra(extra)] for extra in extras]
    rows.append(["program scotch", scotch or f"missing: {GET_SCOTCH}"])
    hint = "" if cache["writable"] else ", not writable: set NUMBA_CACHE_DIR to a folder that is"
    rows.append(["compiled code", f"{cache['folder']}{hint}"])
    rows.append(["display", display or "none: the studio needs one"])
    rows += [[f"solver {name}", found or "not found"] for name, found in solvers.items()]
    return Answer(
        {
            "versions": versions,
            "extras": extras,
            "cache": cache,
            "display": display,
            "solvers": solvers,
            "programs": {"scotch": scotch},
        },
        table(rows, "ll"),
        YES if healthy else NO,
    )


def _version(distribution: str) -> str | None:
    from importlib import metadata  # takes a while to import

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _extra(name: str, modules: tuple[str, ...]) -> dict[str, Any]:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return {
        "name": name,
        "installed": not missing,
        "missing": missing,
        "versions": {module: _version(module) for module in modules if module not in missing},
        "install": f"pip install 'enplace[{name}]'",
    }


def _describe_extra(extra: dict[str, Any]) -> str:
    if not extra["installed"]:
        return f"missing: {extra['install']}"
    return ", ".join(
        f"{module} {version or ''}".rstrip() for module, version in extra["versions"].items()
    )


def _cache() -> dict[str, Any]:
    """Find where numba keeps compiled code: next to the package, else in the user's cache."""
    import platformdirs

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    package = Path(__file__).parents[1]
    personal = Path(platformdirs.user_cache_dir("numba"))
    folders = [Path(chosen)] if chosen else [package, personal]
    usable = [folder for folder in folders if _writable(folder)]
    return {"folder": str((usable or folders)[0]), "writable": bool(usable)}


def _writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, which may not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)


@command("studio")
@click.argument("file", type=FILE, required=False)
def studio(file: str | None) -> Answer:
    """Open the studio, with FILE if given."""
    from enplace.processes.worker import python_module, safe_environment

    if any(importlib.util.find_spec(m) is None for m in ("enplace_studio", *STUDIO_MODULES)):
        raise EnplaceError("the studio is not installed; run: pip install 'enplace[studio]'")
    if file is not None and not os.path.isfile(file):
        raise FileError(f"{file}: there is no such file; check the path")
    command = python_module("enplace_studio", *([file] if file else []))
    window = subprocess.Popen(command, env=safe_environment())
    before = signal.signal(signal.SIGTERM, lambda *_: window.terminate())
    try:
        status = window.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    return Answer({"file": file, "status": status}, "", status)


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> Answer:
    """Print the completion script of a shell.

    It completes commands, options, methods, presets and files. For bash, add this line to
    ~/.bashrc: eval "$(enplace completion bash)"
    """
    from click.shell_completion import get_completion_class

    from enplace.cli.answer import cli

    maker = get_completion_class(shell)
    assert maker is not None, "click knows these shells"
    script = maker(cli, {}, "enplace", "_ENPLACE_COMPLETE").source()
    return Answer({"shell": shell, "script": script}, script)
