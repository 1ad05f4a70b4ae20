# SPDX-License-Identifier: MIT
"""Plants faults in what oscar reads and writes, and says what it does with them: faults.py [--only ID] [--keep] [--json FILE]

    OSCAR_BINARY=build/oscar .venv/bin/python tests/faults/faults.py                  # all, and a table by class
    OSCAR_BINARY=build/oscar .venv/bin/python tests/faults/faults.py --class figures  # those of one class
    OSCAR_BINARY=build/oscar .venv/bin/python tests/faults/faults.py --only ID --keep # one; its folder stays
Exit 1 if a fault was accepted, crashed oscar, made it hang, or could not be planted, or if a command refuses sound inputs.

To add a fault, yield one more Fault (harness.py) from faults() of the module of its class, or add a line to one of that
module's tables; its id says what is wrong. A fault is planted in copies of prepared inputs (inputs.py); edit.py has an
editor for each format. The same command is tried on sound inputs, too, so that a refusal for another reason is found out."""
import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED = 77
PROJECT = Path(os.environ.get("OSCAR_PROJECT", Path(__file__).parents[2])).resolve()
CLASSES = ("hostile_text", "derived_files", "json_documents", "hdf5_files", "user_files", "figures", "drifted_statistics",
           "drifted_dumps", "bounded", "transport", "addresses", "options")
OUTCOMES = ("refused", "accepted", "crashed", "hung", "misplanted")


def collect(names):
    """{class: [fault, …]}; every id once."""
    classes = {name: list(importlib.import_module(name).faults()) for name in names}
    ids = Counter(fault.id for faults in classes.values() for fault in faults)
    twice = [name for name, count in ids.items() if count > 1]
    assert not twice, f"ids of several faults: {twice}"
    return classes


class Runner:
    def __init__(self, binary, scratch, keep):
        self.binary, self.scratch, self.keep = binary, scratch, keep
        self.prepared = scratch / "prepared"
        self.controls, self.lock = {}, threading.Lock()

    def attempt(self, function, fault, folder):
        try:
            return function(fault, folder, self.prepared, self.binary)
        finally:
            if not self.keep:
                shutil.rmtree(folder, ignore_errors=True)

    def run(self, number, fault):
        import harness
        outcome, happened, seconds = self.attempt(harness.try_fault, fault, self.scratch / f"{number:04}")
        return {"id": fault.id, "command": "oscar " + " ".join(map(str, fault.args)),
                "outcome": outcome, "happened": happened, "seconds": round(seconds, 3)}

    def control(self, number, fault):
        import harness
        return fault, self.attempt(harness.try_control, fault, self.scratch / f"control-{number:04}")


def controls_of(faults):
    """One fault for each command on the same inputs."""
    chosen = {}
    for fault in faults:
        if fault.instead or fault.control and fault.plant:
            chosen.setdefault((fault.instead or fault.args, fault.inputs), fault)
    return list(chosen.values())


def counted(results):
    """{class: {outcome: count}}."""
    return {name: {outcome: sum(result["outcome"] == outcome for result in found) for outcome in OUTCOMES}
            for name, found in results.items()}


def table(results):
    rows = [("class", "planted", *OUTCOMES)]
    rows += [(name, sum(counts.values()), *counts.values()) for name, counts in counted(results).items()]
    rows.append(("all", *(sum(row[column] for row in rows[1:]) for column in range(1, len(rows[0])))))
    return "\n".join(f"{row[0]:<20}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="the fault with this id; may be given again")
    parser.add_argument("--class", dest="names", action="append", choices=CLASSES)
    parser.add_argument("--list", action="store_true", help="ids, and nothing is run")
    parser.add_argument("--keep", action="store_true", help="keep the folders, and say where they lie")
    parser.add_argument("--json", type=Path, help="write how many were planted and what came of them, by class, to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() + 1)
    return parser.parse_args()


def run_all(classes, options, scratch):
    """({class: [result, …]}, [what is wrong with commands on sound inputs])."""
    import inputs
    runner = Runner(Path(os.environ.get("OSCAR_BINARY", PROJECT / "build/oscar")).resolve(), scratch, options.keep)
    runner.prepared.mkdir()
    inputs.prepare(runner.prepared, runner.binary, PROJECT)
    every = [fault for faults in classes.values() for fault in faults]
    with ThreadPoolExecutor(options.jobs) as pool:
        controls = list(pool.map(lambda pair: runner.control(*pair), enumerate(controls_of(every))))
        answers = iter(list(pool.map(lambda pair: runner.run(*pair), enumerate(every))))
    results = {name: [next(answers) for _ in faults] for name, faults in classes.items()}
    return results, [f"{fault.id}: oscar {' '.join(map(str, fault.args))}: {wrong}" for fault, wrong in controls if wrong]


def main():
    if missing := [name for name in ("h5py", "numpy", "torch", "gguf") if importlib.util.find_spec(name) is None]:
        print(f"skipped: needs {', '.join(missing)}; run scripts/setup.sh --tests")
        return SKIPPED
    sys.path[1:1] = [str(PROJECT / "tests/cli/zoo"), str(PROJECT / "tests/bench")]
    import provenance
    machine, began = provenance.machine(), time.monotonic()
    options = arguments()
    classes = collect(options.names or CLASSES)
    if options.only:
        classes = {name: [fault for fault in faults if fault.id in options.only] for name, faults in classes.items()}
        classes = {name: faults for name, faults in classes.items() if faults}
    if options.list:
        print("\n".join(fault.id for faults in classes.values() for fault in faults))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="oscar-faults-"))
    try:
        results, unsound = run_all(classes, options, scratch)
    finally:
        if not options.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    found = [result for faults in results.values() for result in faults]
    for result in found:
        if result["outcome"] != "refused" or options.only:
            print(f"{result['outcome']}: {result['id']}\n  $ {result['command'][:200]}\n  {result['happened']}")
    for wrong in unsound:
        print(f"a command refuses sound inputs: {wrong}")
    print(table(results))
    if options.keep:
        print(f"kept in {scratch}")
    if options.json:
        document = {"machine": machine, "commit": provenance.commit(), "seconds": round(time.monotonic() - began, 1),
                    "classes": counted(results), "not_refused": [each for each in found if each["outcome"] != "refused"],
                    "unsound": unsound}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if found and not unsound and all(result["outcome"] == "refused" for result in found) else 1


if __name__ == "__main__":
    sys.exit(main())
