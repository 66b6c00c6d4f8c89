import subprocess
import sys

from chipwise.run.ledger import Ledger

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_the_time_of_ended_and_of_living_children_counts_in_its_phase() -> None:
    ledger = Ledger({"before": 2.0})
    ledger.begin("ended")
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ledger.begin("living")
    child = subprocess.Popen(
        [sys.executable, "-c", BURN + "\nprint('done', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    ledger.begin("idle")
    child.communicate(b"\n")
    spent = ledger.settle()
    assert spent["before"] == 2.0
    assert spent["ended"] >= 0.25
    assert spent["living"] >= 0.25
    assert spent["idle"] < 0.25  # a child that ends is not counted a second time
