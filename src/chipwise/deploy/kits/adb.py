"""Measures a GGUF file on an Android phone connected by cable, with llama.cpp's benchmark program, through ``adb``.

Program and models are copied to ``/data/local/tmp`` once: their names on the phone contain a digest of their bytes, and
an incomplete copy has a different name. The phone is then left alone until its battery is cool. Each round runs a small
reference model and the model one after the other, so a phone that slows down is distinguished from a slow model.
Finished rounds are kept on this machine: if the cable was unplugged, the same command continues with the next round.

``CHIPWISE_ADB`` is the command that reaches the phone (default: ``adb``).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from chipwise.core.files import read_json, write_json
from chipwise.errors import InputError, MeasurementError, SpecError, Unreachable, line_of

PLACE = "/data/local/tmp/chipwise"
SPARE_BYTES = 64 * 2**20  # bytes that must stay free on the phone
COMMAND_S, PUSH_BYTES_PER_S = 60.0, 1e6  # limits on a command, and on copying over the slowest cable
BENCH_S = 1800.0
COOL_EVERY_S, COOL_MOST_S = 10.0, 900.0
LOST = re.compile(r"device (?:'[^']*' )?(?:not found|offline)|no devices/emulators found|device still authorizing")
FULL = "No space left on device"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhoneState:
    """What a phone reports about itself at one moment; None for what it does not report."""

    battery_c: float | None
    battery_share: float | None  # charge, 0 to 1
    charging: bool | None
    hottest_c: float | None  # temperature of the hottest thermal zone
    clocks_hz: tuple[int, ...]  # clock of each processor core


def contents(path: Path) -> str:
    """16 hex digits that identify a file by its bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


class Phone:
    """A phone that ``adb`` reaches.

    Args:
        serial: The phone's serial number (``adb devices``). Default: the one phone that is connected.

    Raises:
        InputError: Several phones are connected and none was named, or the named one is not among them.
        Unreachable: adb is missing, no phone is connected, or the phone is offline or has not allowed this machine.
    """

    def __init__(self, serial: str | None = None) -> None:
        self._adb = shlex.split(os.environ.get("CHIPWISE_ADB", "adb"))
        lines = self._run("devices").splitlines()[1:]
        states = dict(line.split("\t", 1) for line in lines if "\t" in line)
        if not states:
            raise Unreachable("no phone is connected: switch on USB debugging in its developer options, and plug it in")
        if serial is None and len(states) > 1:
            raise InputError(
                f"{len(states)} phones are connected ({', '.join(sorted(states))}); name one with --serial"
            )
        self.serial = serial or next(iter(states))
        if self.serial not in states:
            raise InputError(f"{self.serial} is not connected; these are: {', '.join(sorted(states))}")
        state = states[self.serial].strip()
        if state == "unauthorized":
            raise Unreachable(f"{self.serial}: allow this machine in the dialog on the phone's screen, and try again")
        if state != "device":
            raise Unreachable(f"{self.serial} is {state}: unlock it, plug it in again, and try again")
        self._adb += ["-s", self.serial]

    def _run(self, *words: str, limit_s: float = COMMAND_S) -> str:
        try:
            done = subprocess.run([*self._adb, *words], capture_output=True, timeout=limit_s, check=False)
        except FileNotFoundError:
            raise Unreachable(
                f"{self._adb[0]}: there is no such program; install Android's platform tools (Debian: apt install adb)"
            ) from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"the phone gave no answer to {words[0]} within {limit_s:g} s") from None
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode and LOST.search(said):
            raise Unreachable(f"the connection to the phone was lost ({line_of(said, -1)}); plug it in and run again")
        if done.returncode:
            lines = (said or done.stdout.decode(errors="replace")).strip().splitlines()
            raise MeasurementError(f"adb {words[0]} failed with code {done.returncode}: {' | '.join(lines[-3:])}")
        return done.stdout.decode(errors="replace")

    def shell(self, command: str, *, limit_s: float = COMMAND_S) -> str:
        """Runs a command in the phone's shell and returns its output.

        Raises:
            Unreachable: The connection was lost, or there was no answer in time.
            MeasurementError: The command failed.
        """
        return self._run("shell", command, limit_s=limit_s)

    def facts(self) -> dict[str, str]:
        """The phone's model, chip and Android version, as far as it states them."""
        names = {"model": "ro.product.model", "soc": "ro.soc.model", "android": "ro.build.version.release"}
        found = {name: self.shell(f"getprop {key}").strip() for name, key in names.items()}
        return {name: value for name, value in found.items() if value}

    def state(self) -> PhoneState:
        """The phone's current temperatures, charge and clocks."""
        said = dict(re.findall(r"^\s*([A-Za-z ]+): (\S+)\s*$", self.shell("dumpsys battery"), re.MULTILINE))
        zones = self._numbers("cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null; true")
        degrees = [value / 1000 for value in zones if 10_000 <= value <= 150_000]  # other values are not millidegrees
        clocks = self._numbers("cat /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq 2>/dev/null; true")
        tenths, level, full = (said.get(name, "") for name in ("temperature", "level", "scale"))
        powered = [said[name] == "true" for name in ("AC powered", "USB powered", "Wireless powered") if name in said]
        return PhoneState(
            battery_c=int(tenths) / 10 if tenths.isdigit() else None,
            battery_share=int(level) / int(full) if level.isdigit() and full.isdigit() and int(full) else None,
            charging=any(powered) if powered else None,
            hottest_c=max(degrees, default=None),
            clocks_hz=tuple(1000 * value for value in clocks),
        )

    def _numbers(self, command: str) -> list[int]:
        return [int(word) for word in self.shell(command).split() if word.lstrip("-").isdigit()]

    def push(self, path: Path) -> str:
        """Copies a file to the phone unless it is already there; returns its path on the phone.

        Raises:
            MeasurementError: The phone's storage is full.
        """
        size, there = path.stat().st_size, f"{PLACE}/{contents(path)}-{path.name}"
        quoted = shlex.quote(there)
        if self.shell(f"mkdir -p {PLACE}; stat -c %s {quoted} 2>/dev/null; true").strip() == str(size):
            return there
        free = self.shell(f"df -k {PLACE} | tail -n 1").split()
        if len(free) > 3 and free[3].isdigit() and int(free[3]) * 1024 < size + SPARE_BYTES:
            raise MeasurementError(
                f"{path.name} needs {(size + SPARE_BYTES) / 1e6:,.0f} MB on the phone, which has "
                f"{int(free[3]) * 1024 / 1e6:,.0f} MB free; delete something there (earlier models: rm -r {PLACE})"
            )
        try:
            self._run("push", str(path), f"{there}.part", limit_s=COMMAND_S + size / PUSH_BYTES_PER_S)
        except MeasurementError as error:
            self.shell(f"rm -f {quoted}.part")
            if FULL in str(error):
                raise MeasurementError(f"{path.name}: the phone's storage is full; delete something there") from None
            raise
        self.shell(f"chmod 755 {quoted}.part && mv {quoted}.part {quoted}")
        return there

    def cool_down(self, most_c: float, *, on_wait: Callable[[float], object], sleep: Callable[[float], object]) -> bool:
        """Waits until the battery is at most ``most_c``; returns whether it cools down within a quarter of an hour."""
        for _ in range(int(COOL_MOST_S / COOL_EVERY_S)):
            degrees = self.state().battery_c
            if degrees is None or degrees <= most_c:
                return degrees is not None
            on_wait(degrees)
            sleep(COOL_EVERY_S)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How the program is run: number of prompt tokens, number of generated tokens, and number of threads."""

    program: Path
    prompt: int
    new: int
    threads: int

    def command(self, program: str, model: str) -> str:
        """The shell command that times one prompt, and then one generation of tokens after a prompt of this length."""
        return (
            f"cd {PLACE} && LD_LIBRARY_PATH={PLACE} {shlex.quote(program)} -m {shlex.quote(model)} -t {self.threads} "
            f"-p {self.prompt} -n 0 -r 1 -o jsonl && LD_LIBRARY_PATH={PLACE} {shlex.quote(program)} -m "
            f"{shlex.quote(model)} -t {self.threads} -p 0 -n {self.new - 1} -d {self.prompt} -r 1 -o jsonl"
        )


class Rounds:
    """The finished rounds, kept in a file until all rounds are finished.

    Raises:
        SpecError: The file is damaged; the message names the file to delete.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, list[Mapping[str, object]]()
        if path.exists():
            kept = read_json(path)
            fields = {"model", "reference", "cool", "before", "after"}
            if not isinstance(kept, list) or not all(isinstance(item, dict) and fields <= set(item) for item in kept):
                raise SpecError("holds no rounds of a measurement on a phone; delete it", file=str(path))
            self.done = kept

    def add(self, found: Mapping[str, object]) -> None:
        """Stores one finished round."""
        self.done.append(found)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.done)


def run_rounds(
    phone: Phone,
    bench: Bench,
    model: Path,
    reference: Path,
    kept: Rounds,
    *,
    rounds: int,
    cool_c: float,
    on_progress: Callable[[str, int, int], object],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Runs the rounds that are missing, and adds each to ``kept``.

    Args:
        phone: The phone.
        bench: The program, and its numbers of tokens and threads.
        model: The GGUF file to measure.
        reference: A small GGUF file that runs before ``model`` in every round.
        kept: Finished rounds.
        rounds: Number of rounds that the measurement needs.
        cool_c: The highest battery temperature at which a round begins.
        on_progress: Called with the current step, the number of finished rounds and the total number.
        sleep: Function that waits for the given number of seconds.
    """
    on_progress("copying to the phone", len(kept.done), rounds)
    program, *files = (phone.push(path) for path in (bench.program, reference, model))
    while (done := len(kept.done)) < rounds:
        cool = phone.cool_down(
            cool_c, on_wait=lambda degrees: on_progress(f"cooling, {degrees:g} °C", done, rounds), sleep=sleep
        )
        on_progress("measuring", done, rounds)
        before = phone.state()
        texts = [phone.shell(bench.command(program, file), limit_s=BENCH_S) for file in files]
        states = {"before": asdict(before), "after": asdict(phone.state())}
        kept.add({"reference": texts[0], "model": texts[1], "cool": cool, **states})
    on_progress("done", rounds, rounds)
