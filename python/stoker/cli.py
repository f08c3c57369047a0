"""The command line."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from stoker import cost_commands, data_commands, plan_commands, storage_commands

__all__ = ["app", "main", "told"]

app = typer.Typer(
    name="stoker",
    help="Keeps GPUs fed while vision-language models are fine-tuned.",
    epilog="Start with `stoker demo`: it needs no GPU, no data and no network.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object to standard output; progress goes to standard error.")
]
_Rungs = Annotated[
    list[str] | None,
    typer.Option(
        "--rungs",
        metavar="NAME[,NAME]",
        help="Climb only these: python-serial, serial, concurrent, prefetch. Default: all.",
    ),
]
_Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="Steps to measure on every rung, after the first. Default: each rung's own."),
]
_Ranks = Annotated[int, typer.Option("--ranks", min=1, help="Rank processes; they meet at a barrier every step.")]
_Gpus = Annotated[int, typer.Option("--gpus-per-rank", min=1, help="H100 GPUs that each rank stands for.")]
_Output = Annotated[
    Path | None,
    typer.Option("--output", help="Folder for ladder.json, ladder.svg and ladder.html. Default: beside the data."),
]


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            sys.stdout.write(f"stoker {version('stoker')}\n")
        except PackageNotFoundError:
            sys.stdout.write("stoker (run from a folder; no version is installed)\n")
        raise typer.Exit()


@app.callback()
def _stoker(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    *,
    as_json: _Json = False,
    rungs: _Rungs = None,
    steps: _Steps = None,
    ranks: _Ranks = 2,
    gpus_per_rank: _Gpus = 8,
    samples: Annotated[int, typer.Option("--samples", min=16, help="Rows of the data set that is made.")] = 640,
    seed: Annotated[int, typer.Option("--seed", help="The data set and its order follow from it.")] = 17,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keeps the data set. Default: build/demo in the checkout.")
    ] = None,
    output: _Output = None,
) -> None:
    """See what waiting for data costs, and what is left of it: the ladder, on data made here.

    Makes a data set from photographs (once), puts it into a storage server on loopback that answers as slowly as a
    distant object store, and feeds emulated H100 GPUs from it, first by the loop that people start with, then by the
    engine with ever more of its means. Takes three to four minutes on two cores.

    Each line of the result is one way of loading: seconds waited and trained per step, the **wait ratio** (wait / step
    time), GPU busy (training / step time), and what it cost in CPU. The digest shows that the engine's batches are the
    same on every rung.
    """
    from stoker.demo.run import DemoOptions, default_folder, served_plan
    from stoker.ladder.climb import rungs_from

    console = Console(stderr=as_json)
    with _errors_said():
        at = folder or default_folder()
        options = DemoOptions(
            folder=at / "data",
            n_samples=samples,
            seed=seed,
            rungs=rungs_from(rungs or []),
            steps=steps,
            n_ranks=ranks,
            gpus_per_rank=gpus_per_rank,
        )
        _check_packages(options.rungs)
        with _preparing(console) as say, served_plan(options, say=say) as plan:
            say(None, 1, 1)
            _climb(plan, console, output or at, as_json=as_json)


@app.command()
def ladder(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Settings file, such as run.yaml. On a virtual cluster it may be left out: data is made.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    *,
    as_json: _Json = False,
    rungs: Annotated[
        list[str] | None,
        typer.Option(
            "--rungs",
            metavar="NAME[,NAME]",
            help="Climb only these; a wrong name lists those that there are. Default: all.",
        ),
    ] = None,
    steps: _Steps = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=1,
            help="Ranks; they meet at a barrier every step. Default: 2; with --ray 1, and 4 times as many at the large "
            "scale.",
        ),
    ] = None,
    gpus_per_rank: Annotated[
        int | None,
        typer.Option("--gpus-per-rank", min=1, help="GPUs that each rank stands for. Default: 8; with --ray 1."),
    ] = None,
    output: _Output = None,
    on_ray: Annotated[
        bool, typer.Option("--ray", help="Climb on a Ray cluster: by value and by reference, packed and spread.")
    ] = False,
    address: Annotated[
        str, typer.Option("--address", help="The Ray cluster: auto for that of this node, or host:port.")
    ] = "auto",
    virtual_cluster: Annotated[
        bool,
        typer.Option(
            "--virtual-cluster",
            help="Make a cluster of network namespaces on this machine for it, with network cards so slow that they "
            "bind and not this machine's cores. Needs root.",
        ),
    ] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=2, help="Of the virtual cluster.")] = 5,
    nic_mbit: Annotated[
        float | None,
        typer.Option(
            "--nic-mbit",
            min=1,
            help="Speed of each node's network card, in Mbit/s. Default: 200 on a virtual cluster, else what Ray's "
            "label stoker-nic-gbit or the kernel says.",
        ),
    ] = None,
    gpu_speed: Annotated[
        float, typer.Option("--gpu-speed", min=0.01, help="Of each emulated GPU, in H100s; with --ray.")
    ] = 1.0,
) -> None:
    """Climb the ladder on your own data and settings.

    The same rungs as `stoker demo`, with the data, model and storage that the settings name (credentials also from the
    environment, as usual). The ranks are emulated H100 GPUs that train Qwen3-VL-8B, so no GPU is needed. The last rung
    runs with the speed settings of the file. Nothing is written but the report.

    With **--ray** the ranks stand on the nodes of a Ray cluster, and the rungs show what by value and by reference,
    packed and spread, eager and lazy change, at small scale and with four times the ranks, and which bound holds.
    """
    import stoker
    from stoker.ladder.climb import Plan, rungs_from
    from stoker.ladder.emulation import RankModel
    from stoker.ladder.own import python_serial_of

    console = Console(stderr=as_json)
    with _errors_said():
        if on_ray or virtual_cluster:
            values: dict[str, Any] = {
                "run": None if run is None else str(run.resolve()),
                "output": str((output or (run.parent / "ladder" if run else Path("ladder"))).resolve()),
                "steps": steps,
                "n_ranks": ranks or 1,
                "gpus_per_rank": gpus_per_rank or 1,
                "gpu_speed": gpu_speed,
                "address": address,
                "nic_mbit_s": nic_mbit,
                "as_json": as_json,
            }
            _climb_on_ray(values, rungs or [], virtual_nodes=nodes if virtual_cluster else 0)
            return
        if run is None:
            raise _UserError("name a settings file, such as run.yaml; `stoker demo` makes data of its own")
        chosen = rungs_from(rungs or [])
        _check_packages(chosen)
        settings = stoker.Settings.load(run)
        plan = Plan(
            settings=settings,
            python_serial=python_serial_of(settings),
            rungs=chosen,
            steps=steps,
            n_ranks=ranks or 2,
            model=RankModel(n_gpus=gpus_per_rank or 8),
            facts=lambda: {"settings": str(run)},
        )
        _climb(plan, console, output or run.parent / "ladder", as_json=as_json)


def _climb_on_ray(values: dict[str, Any], rungs: list[str], *, virtual_nodes: int) -> None:
    from stoker.demo.run import default_folder

    try:
        command = importlib.import_module("stoker.ray.ladder.command")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise _UserError("a cluster needs Ray: pip install 'stoker[ray]'") from None
    chosen = importlib.import_module("stoker.ray.ladder.rungs").rungs_from(rungs)
    _check_packages(chosen)
    options = command.ClusterOptions(rungs=chosen, data_folder=str(default_folder() / "data"), **values)
    if virtual_nodes:
        status = command.climb_on_virtual(options, n_nodes=virtual_nodes)
        if status:
            raise typer.Exit(status)
        return
    if options.run is None:
        raise _UserError("name a settings file, such as run.yaml, whose data all nodes of the cluster can read")
    command.climb_here(options)


def _climb(plan: Any, console: Console, folder: Path, *, as_json: bool) -> None:
    from stoker.ladder.climb import climb
    from stoker.ladder.display import Display, result_table
    from stoker.ladder.report import write_report

    with Display(console, plan) as display:
        result = climb(plan, display)
    paths = write_report(result, folder)
    if not console.is_terminal:  # there the live table stays
        result_table(console, result.rungs)
    for path in (paths["html"], paths["json"]):
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps(result.to_dict()) + "\n")
        sys.stdout.flush()
    if not result.digests_agree:
        _complain("the engine rungs delivered different batches; this is a fault of Stoker, please report it")
        raise typer.Exit(1)


def _check_packages(rungs: tuple[str, ...]) -> None:
    from stoker.ladder.python_serial import missing_packages

    missing = missing_packages() if "python-serial" in rungs else []
    if missing:
        raise _UserError(
            f"the rung python-serial needs {', '.join(missing)}: pip install 'stoker[demo]', or leave it out by "
            "--rungs serial,concurrent,prefetch"
        )


class _UserError(Exception):
    """Said without a traceback."""


@contextlib.contextmanager
def _errors_said(status: int = 1) -> Iterator[None]:
    """Turns what users can do something about into one line and exit status `status`, and Ctrl-C into an exit."""
    from stoker.demo.run import StorageServerError
    from stoker.errors import StokerError
    from stoker.ladder.ranks import RankFailedError

    try:
        yield
    except KeyboardInterrupt:
        _complain("interrupted")
        raise typer.Exit(130) from None
    except (_UserError, StokerError, RankFailedError, StorageServerError, OSError, ValueError) as error:
        _complain(str(error))
        raise typer.Exit(status) from None


def _complain(message: str) -> None:
    Console(stderr=True).print(f"stoker: {message}", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _preparing(console: Console) -> Iterator[Any]:
    """Yields a function that shows how far the preparations are; what it is told last, None, ends the showing."""
    from rich.progress import Progress

    if not console.is_terminal:
        said: set[str] = set()

        def say_line(what: str | None, done: int, total: int) -> None:
            if what is not None and what not in said:
                said.add(what)
                console.print(f"{what}: {total}", markup=False, highlight=False)

        yield say_line
        return
    with Progress(console=console, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def say_bar(what: str | None, done: int, total: int) -> None:
            if what is None:
                progress.stop()
                return
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        yield say_bar


def told(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with its errors said in a line and exit status 2."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        with _errors_said(data_commands.STATUS_NOT_DONE):
            command(*args, **options)

    return run


_EXAMPLES: dict[Callable[..., None], str] = {
    data_commands.inspect: """
        stoker inspect run.yaml

        stoker inspect run.yaml --row 17 --html sample.html

        stoker inspect train.jsonl --model /models/Qwen3-VL-8B-Instruct --line 1204 --json
    """,
    data_commands.check: """
        stoker check run.yaml

        stoker check run.yaml --media all --ledger left-out.jsonl

        stoker check s3://bucket/train.jsonl --model /models/Qwen3-VL-8B-Instruct --media none --json
    """,
    data_commands.parity: """
        stoker parity run.yaml

        stoker parity run.yaml --samples 200 --profile hf-5.18-pil

        stoker parity train.jsonl --model /models/Qwen3-VL-8B-Instruct --json
    """,
    plan_commands.index: """
        stoker index run.yaml

        stoker index run.yaml --no-media --workers 8

        stoker index run.yaml --ledger left-out.jsonl --html statistics.html --json
    """,
    plan_commands.plan: """
        stoker plan run.yaml --dp-size 8 --dp-size 64

        stoker plan run.yaml --packs-per-step 1024 --dp-size 1024 --compare --picture plan.svg

        stoker plan run.yaml --epochs 1 --measure --json
    """,
    cost_commands.fit_costs: """
        stoker fit-costs records.jsonl --output costs.json
    """,
    storage_commands.probe: """
        stoker probe run.yaml

        stoker probe s3://bucket/train.jsonl --step-samples 512 --step-s 1.2 --save storage.json

        stoker probe https://data.example.org/photos/0001.jpg --seconds 5 --json
    """,
}
for _command, _lines in _EXAMPLES.items():
    _epilog = "Examples:\n\n" + "\n\n".join(f"`{line.strip()}`" for line in _lines.split("\n\n"))
    app.command(epilog=_epilog)(told(_command))


class _RayGroup(TyperGroup):
    """Its commands are read when one is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        names: list[str] = self._group().list_commands(ctx)
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of them."""
        return self._group().get_command(ctx, cmd_name)

    @functools.cache  # noqa: B019  one for the life of the process
    def _group(self) -> Any:
        from stoker.ray.commands import make_app

        return typer.main.get_command(make_app())


app.add_typer(
    typer.Typer(cls=_RayGroup),
    name="ray",
    no_args_is_help=True,
    help="Clusters for runs with `ray:` in their settings: start one, see whether it can serve, see what it does.",
)


def main() -> None:
    """The program ``stoker``."""
    app()
