"""Receive combining at the size of a cell: seconds per design, and the optimality gap.

    python benchmarks/combining.py [DEVICES] [ANTENNAS]

One class; ten classes with equal shares (IID data: one problem); ten classes with different shares, with one combiner
for all or one per class. The matrices are small, and OPENBLAS_NUM_THREADS=1 limits BLAS to one thread. If cvxpy is
installed, its solvers are compared with the relaxation.
"""

import sys
import time

import numpy as np

from airdistill.planning.antennas.combining import best_combiner, combiner_of_each_class
from airdistill.planning.antennas.relaxation import relax

REPEATS = 3


def fleet(seed, num_devices, num_antennas, num_classes, alike):
    """Rayleigh channels of devices at 100 to 500 m with path-loss exponent 3; shares uniform over a factor of 4."""
    rng = np.random.default_rng(seed)
    gauss = rng.standard_normal((2, num_devices, num_antennas)) / np.sqrt(2)
    channel = 1e-5 * (gauss[0] + 1j * gauss[1]) * (rng.uniform(1, 5, num_devices) ** -1.5)[:, None]
    shares = rng.uniform(0.5, 2, (num_devices, 1 if alike else num_classes)) * np.ones(num_classes)
    return channel, shares**2, np.ones(num_classes)


def timed(solve):
    """Wall-clock and processor seconds, because the machine may be shared, and the result."""
    start, worked = time.perf_counter(), time.process_time()
    result = solve()
    return time.perf_counter() - start, time.process_time() - worked, result


def measure(name, num_devices, num_antennas, num_classes, alike, each):
    seconds, work, gaps, drawn = [], [], [], []
    for seed in range(REPEATS):
        given = fleet(seed, num_devices, num_antennas, num_classes, alike)
        rng = np.random.default_rng(seed)
        if each:
            took, worked, made = timed(lambda given=given, rng=rng: combiner_of_each_class(*given[:2], rng))
        else:
            took, worked, made = timed(lambda given=given, rng=rng: [best_combiner(*given, rng)])
        seconds.append(took)
        work.append(worked)
        gaps += [one.gap for one in made]
        drawn += [one.randomised_cost / one.bound - 1 for one in made]
    print(
        f"{name:<38} {np.median(seconds):>8.3f} s ({np.median(work):.3f} of CPU)   gap {100 * np.median(gaps):>6.1f} % "
        f"(at most {100 * max(gaps):.1f} %), by randomisation alone {100 * np.median(drawn):>6.1f} %"
    )


def against_cvxpy(num_devices, num_antennas, num_classes):
    try:
        import cvxpy
    except ImportError:
        return
    channel, burden, importance = fleet(0, num_devices, num_antennas, num_classes, alike=False)
    if num_antennas > num_devices:
        channel = channel @ np.linalg.qr(channel.T)[0].conj()
    unit = channel / np.sqrt(burden.max(axis=1))[:, None]
    unit /= np.linalg.norm(unit, axis=1).min()
    burden, importance = burden / burden.max(axis=1)[:, None], importance / num_classes
    took, worked, own = timed(lambda: relax(unit, burden, importance))
    print(f"relaxation, {num_classes} classes: this {took:.3f} s ({worked:.3f} of CPU), bound {own.bound:.8g}")
    size = unit.shape[1]
    covariance, levels = cvxpy.Variable((size, size), hermitian=True), cvxpy.Variable(num_classes)
    powers = cvxpy.hstack([cvxpy.real(cvxpy.trace(np.outer(row, row.conj()) @ covariance)) for row in unit])
    limits = [covariance >> 0, cvxpy.real(cvxpy.trace(covariance)) == 1]
    limits += [powers >= cvxpy.multiply(burden[:, klass], levels[klass]) for klass in range(num_classes)]
    problem = cvxpy.Problem(cvxpy.Minimize(importance @ cvxpy.inv_pos(levels)), limits)
    for solver in ("CLARABEL", "SCS"):
        took, worked, value = timed(lambda solver=solver: problem.solve(solver=solver))
        print(f"    cvxpy {solver}: {took:.2f} s ({worked:.2f} of CPU), {value / own.bound - 1:+.1e} of this")


def main(num_devices, num_antennas):
    print(f"{num_devices} devices, {num_antennas} antennas, medians of {REPEATS}")
    measure("one class", num_devices, num_antennas, 1, alike=True, each=False)
    measure("10 classes, equal shares", num_devices, num_antennas, 10, alike=True, each=False)
    measure("10 classes, one combiner", num_devices, num_antennas, 10, alike=False, each=False)
    measure("10 classes, one combiner each", num_devices, num_antennas, 10, alike=False, each=True)
    for num_classes in (1, 10):
        against_cvxpy(num_devices, num_antennas, num_classes)


if __name__ == "__main__":
    main(*([int(argument) for argument in sys.argv[1:]] or [50, 64]))
