"""Records the golden cases anew: `python tests/golden/regenerate.py [CASE ...]`, by default all of them.

A name that ends with * stands for all cases that begin so. Prints what changed, and how long the slowest cases took.
"""

import json
import lzma
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.cases import CASES
from golden.comparing import DIGESTS, NUMBERS, first_difference, this_machine
from golden.recording import digest_of, observe, write_inputs


def main(asked):
    names, machine = _named(asked), this_machine()
    old_digests, old_numbers = _stored()
    if old_digests["machine"] not in (None, machine) and len(names) < len(CASES):
        sys.exit("recorded on another type of processor, or with other libraries: regenerate all cases, or none")
    numbers = {name: kept for name, kept in old_numbers.items() if name in CASES} | _observed(names)
    _print_changes(old_numbers, numbers)
    digests = {name: {file: digest_of(each) for file, each in numbers[name].items()} for name in sorted(numbers)}
    refused = sum("refused" in each for each in numbers.values())
    written = {"machine": machine, "cases": digests}
    DIGESTS.write_text(json.dumps(written, indent=0) + "\n")
    content = json.dumps(numbers, sort_keys=True, separators=(",", ":")).encode()
    NUMBERS.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    _say(f"{len(numbers) - refused} runs and {refused} refusals; {NUMBERS.name}: {NUMBERS.stat().st_size:,} bytes")


def _named(asked):
    found = [name for name in CASES if not asked or any(_fits(name, each) for each in asked)]
    unknown = [each for each in asked if not any(_fits(name, each) for name in CASES)]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}")
    return found


def _fits(name, asked):
    return name.startswith(asked[:-1]) if asked.endswith("*") else name == asked


def _stored():
    if not DIGESTS.exists():
        return {"machine": None, "cases": {}}, {}
    return json.loads(DIGESTS.read_text()), json.loads(lzma.decompress(NUMBERS.read_bytes()))


def _observed(names):
    seconds, observed, started = {}, {}, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        inputs = write_inputs(Path(folder) / "inputs")
        for name in names:
            before = time.process_time()
            observed[name] = observe(CASES[name], inputs, Path(folder) / "out")
            seconds[name] = time.process_time() - before
    _say(f"{time.process_time() - started:.1f} CPU seconds; the slowest:")
    for name in sorted(seconds, key=seconds.get, reverse=True)[:12]:
        _say(f"  {seconds[name]:5.2f} s  {name}")
    return observed


def _print_changes(old, new):
    for name in sorted({*old, *new}):
        if name not in new or name not in old:
            _say(f"{'new' if name in new else 'gone'}: {name}")
        elif (found := first_difference(old[name], new[name], tolerance=None)) is not None:
            _say(f"changed: {name}: {found[0]} was {found[1]} and is {found[2]}")


def _say(line):
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
