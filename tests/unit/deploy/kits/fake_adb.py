"""Imitates ``adb`` and a phone: a folder is its storage; ``phone.json`` says what it does and counts what it ran."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

HOME = Path(os.environ["FAKE_PHONE"])
PHONE = json.loads((HOME / "phone.json").read_text())


def end(text: str = "", code: int = 0, error: str = "") -> None:
    (HOME / "phone.json").write_text(json.dumps(PHONE))
    sys.stdout.write(text)
    sys.stderr.write(error)
    sys.exit(code)


def local(path: str) -> Path:
    return HOME / "storage" / Path(path).name


def bench(command: str) -> str:
    """Both tests of llama-bench: times grow with the file's size, and with how often the phone was asked."""
    lines = []
    for words in command.split("&&")[1:]:
        given = dict(re.findall(r"-([mtpnd]) (\S+)", words))
        size = local(given["m"]).stat().st_size
        PHONE["runs"] = PHONE.get("runs", 0) + 1
        row = {"build_commit": "abc", "build_number": 1, "model_filename": given["m"], "n_threads": int(given["t"])}
        row |= {"n_prompt": int(given["p"]), "n_gen": int(given["n"]), "n_depth": int(given.get("d", 0))}
        row["samples_ns"] = [(row["n_prompt"] + row["n_gen"]) * size * PHONE.get("slower", [1])[0]]
        lines.append(json.dumps(row))
    PHONE["slower"] = PHONE.get("slower", [1])[1:] or [1]
    return "\n".join(lines) + "\n"


def shell(command: str) -> None:
    if command.startswith("getprop"):
        end(PHONE["props"].get(command.split()[1], "") + "\n")
    if command.startswith("dumpsys battery"):
        degrees = PHONE["battery_c"]
        PHONE["battery_c"] = degrees[1:] or degrees
        end(f"Current state:\n  AC powered: false\n  USB powered: true\n  level: 80\n  scale: 100\n"
            f"  temperature: {int(10 * degrees[0])}\n")  # fmt: skip
    if command.startswith("cat /sys/class/thermal"):
        end("41000\n-1\n38500\n")
    if command.startswith("cat /sys/devices"):
        end("1800000\n2900000\n")
    if command.startswith("mkdir -p"):
        path = local(command.split("stat -c %s ")[1].split()[0])
        end(f"{path.stat().st_size}\n" if path.exists() else "")
    if command.startswith("df -k"):
        end(f"/dev/block/dm-1 100 50 {PHONE['free_kib']} 50% /data\n")
    if command.startswith("chmod"):
        source, target = re.findall(r"mv (\S+) (\S+)", command)[0]
        local(source).rename(local(target))
        end()
    if command.startswith("rm -f"):
        local(command.split()[2]).unlink(missing_ok=True)
        end()
    if command.startswith("cd "):
        if PHONE.get("unplugged_after") == PHONE.get("runs", 0):
            PHONE["unplugged_after"] = None
            end(code=1, error="error: device 'P1' not found\n")
        end(bench(command))
    end(code=127, error=f"sh: {command}: not found\n")


def main() -> None:
    words = sys.argv[1:]
    if words == ["devices"]:
        rows = "".join(f"{name}\t{state}\n" for name, state in PHONE["devices"].items())
        end(f"List of devices attached\n{rows}\n")
    assert words[0] == "-s"
    if words[2] == "shell":
        shell(words[3])
    if PHONE.get("full"):
        local(words[4]).write_bytes(b"half")
        end(code=1, error="adb: error: failed to copy: remote couldn't write: No space left on device\n")
    PHONE["pushed"] = [*PHONE.get("pushed", []), Path(words[3]).name]
    shutil.copyfile(words[3], local(words[4]))
    end("1 file pushed\n")


main()
