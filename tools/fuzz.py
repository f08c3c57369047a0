"""Hunts for inputs that break a parser: runs the libFuzzer targets, each for some seconds of CPU time.

    make fuzz                             builds the targets and runs all of them, 600 CPU seconds each
    make fuzz FUZZ="--seconds 30 jpeg"    one target, for half a minute
    python tools/fuzz.py --list           the targets, and what they start from

A target is a parser of foreign bytes (fuzz/NAME_fuzz.cc), compiled by the CMake preset ``fuzz`` with Clang, under
AddressSanitizer and UndefinedBehaviorSanitizer. It starts from its seeds (fuzz/seeds/NAME, testdata/pictures) and from
the corpus that earlier runs left in build/fuzz/corpus/NAME, and adds to the corpus whatever reaches new code: a second
run goes on where the first ended. Time is counted as CPU time of the target, so a busy machine gives the same hunt.

A finding is a sanitizer's report, a broken promise (the target aborts), an input that takes longer than 60 s, or one
that takes more than 2 GiB. It ends the run with status 1 and names the file that shows it again:

    build/fuzz/fuzz/jpeg_fuzz build/fuzz/findings/jpeg-crash-...

What the target wrote is in build/fuzz/logs/NAME.log. Once mended, the file becomes a seed or a unit test.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_RSS_MIB = 2048
MAX_INPUT_S = 60
"""Of wall time, for one input: ample, since the machine may be busy with other things."""
POLL_S = 0.2
ENVIRONMENT = {
    "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1:symbolize=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
ROW = "{:16}{:>8}{:>12}{:>9}{:>9}  {}"


@dataclass(frozen=True)
class Target:
    """A fuzz target as CMake lists it."""

    name: str
    program: Path
    seeds: list[str]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one target."""

    cpu_s: float
    n_executions: int
    n_edges: int
    n_corpus: int
    findings: list[str]
    """Files that show it again; what else is known where it ended without one."""


def read_targets(build: Path) -> list[Target]:
    """The targets that `build` was configured with."""
    listed = build / "fuzz" / "targets.txt"
    if not listed.exists():
        raise SystemExit(
            f"{listed} is not there: build the targets with  cmake --preset fuzz && cmake --build --preset fuzz"
        )
    targets = []
    for line in listed.read_text().splitlines():
        name, *seeds = line.split("\t")
        targets.append(Target(name, build / "fuzz" / f"{name}_fuzz", seeds))
    return targets


def seeds_of(target: Target) -> list[Path]:
    """All files that a target starts from."""
    given = [Path(seed) for seed in target.seeds]
    return sorted(file for path in given for file in (path.iterdir() if path.is_dir() else [path]))


def cpu_seconds(pid: int) -> float:
    """What a process that has not been waited for has used up to now."""
    # Behind the name, which may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(target: Target, build: Path, seconds: float) -> tuple[int, float, str]:
    """Runs a target until it has used `seconds`. Returns its exit status, CPU seconds, and what it wrote."""
    corpus, findings, starts = (build / kind for kind in ("corpus", "findings", "seeds"))
    for folder in (corpus / target.name, starts / target.name, findings, build / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds_of(target):  # the fuzzer takes folders only
        (starts / target.name / seed.name).write_bytes(seed.read_bytes())
    log = build / "logs" / f"{target.name}.log"
    command = [
        str(target.program),
        str(corpus / target.name),
        str(starts / target.name),
        f"-artifact_prefix={findings}/{target.name}-",
        f"-rss_limit_mb={MAX_RSS_MIB}",
        f"-timeout={MAX_INPUT_S}",
        "-print_final_stats=1",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **ENVIRONMENT}, cwd=build)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if cpu_seconds(process.pid) >= seconds:
                process.send_signal(signal.SIGUSR1)  # libFuzzer ends with status 0 and its statistics
            time.sleep(POLL_S)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime, log.read_text(errors="replace")


def last_number(pattern: str, text: str) -> int:
    """The number of the last match, 0 without one."""
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def hunt(target: Target, build: Path, seconds: float) -> Result:
    """Runs a target and reads its log."""
    status, cpu_s, log = run(target, build, seconds)
    findings = []
    if status != 0:
        written = re.findall(r"Test unit written to (\S+)", log)
        findings = written or [f"exit status {status}, see {build / 'logs' / target.name}.log"]
    return Result(
        cpu_s=cpu_s,
        n_executions=last_number(r"number_of_executed_units: (\d+)", log),
        n_edges=last_number(r" cov: (\d+)", log),
        n_corpus=sum(1 for _ in (build / "corpus" / target.name).iterdir()),
        findings=findings,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/fuzz.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets to run, all unless given")
    parser.add_argument("--seconds", type=float, default=600, help="CPU time for each target (default: %(default)s)")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "fuzz", help="build folder (default: build/fuzz)"
    )
    parser.add_argument("--keep-going", action="store_true", help="go on with the next target after a finding")
    parser.add_argument("--list", action="store_true", help="name the targets, and how many seeds each has, and end")
    options = parser.parse_args()

    build = options.build.resolve()
    known = {target.name: target for target in read_targets(build)}
    if unknown := [name for name in options.targets if name not in known]:
        parser.error(f"no target is named {', '.join(unknown)}; there are {', '.join(known)}")
    if options.list:
        for target in known.values():
            print(f"{target.name:16}{len(seeds_of(target))} seeds")
        return 0

    print(ROW.format("target", "CPU s", "executions", "edges", "corpus", "finding"), flush=True)
    has_finding = False
    for name in options.targets or known:
        result = hunt(known[name], build, options.seconds)
        has_finding |= bool(result.findings)
        numbers = (f"{result.cpu_s:.0f}", result.n_executions, result.n_edges, result.n_corpus)
        print(ROW.format(name, *numbers, " ".join(result.findings) or "none"), flush=True)
        if result.findings and not options.keep_going:
            break
    if has_finding:
        print("show a finding again with  build/fuzz/fuzz/TARGET_fuzz FILE", file=sys.stderr)
    return int(has_finding)


if __name__ == "__main__":
    sys.exit(main())
