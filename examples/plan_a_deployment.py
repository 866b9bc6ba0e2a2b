"""Plan a deployment: how many sensors, and how much transmit power, does private distillation need?

Run it with `python examples/plan_a_deployment.py [EPSILON [FIELD=VALUE ...]]`. It trains nothing and needs no data,
because the scenario declares what every sensor holds: 300 samples, 30 of each of 10 classes. 20 s on two cores.
"""

import sys

import airdistill as ad

CLASSES, SAMPLES_OF_A_CLASS = 10, 30
HEADER = ("devices", "power", "rounds", "limited by", "linear", "tracked", "uplink", "energy", "ε")
WIDTHS = (8, 8, 8, 12, 9, 9, 9, 14, 5)


def plan_for(devices: int, power: str, epsilon: str, changes: list[str]) -> ad.Plan:
    """Plan a run with this fleet, transmit power and whole-device ε."""
    scenario = [
        f"fleet.devices={devices}",
        f"data.class_counts={[[SAMPLES_OF_A_CLASS] * CLASSES] * devices}",
        f'radio.peak_power="{power}"',
        'radio.distance=["50 m", "300 m"]',
        f"privacy.epsilon={epsilon}",
    ]
    return ad.plan(ad.load("device-level", [*scenario, *changes]))


def row(plan: ad.Plan, power: str) -> tuple[str, ...]:
    error = {receiver.name: receiver.squared_error for receiver in ad.what_if(plan, with_steps=False).receivers}
    return (
        f"{plan.fleet.num_devices}",
        power,
        f"{plan.num_rounds}",
        "both" if plan.forecast.regime == "mixed" else plan.forecast.regime,
        f"{error['linear']:.3g}",
        f"{error['tracking']:.2g}",
        f"{plan.uplink_seconds * 1e3:.0f} ms",
        f"{plan.uplink_joules * 1e6:,.2f} µJ",
        f"{plan.epsilon_by_model['device'].max():.3g}",
    )


def show(cells: tuple[str, ...]) -> None:
    print("".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)


def main(epsilon: str, changes: list[str]) -> None:
    print(f"Whole-device ε = {epsilon}, δ = 1e-5; sensors 50 to 300 m away, 400 rounds at most.")
    show(HEADER)
    for devices, power in [(20, "1 mW"), (50, "1 mW"), (200, "1 mW"), (200, "1 uW"), (200, "1 nW")]:
        show(row(plan_for(devices, power, epsilon, changes), power))
    print("linear, tracked: planned squared error of a class mean with the paper's receiver and with the tracking one.")
    print("The squared norm of a class mean is at most 1: distillation helps if the error is far below that.")
    print("uplink, energy: air time and transmitted energy of the whole fleet over all rounds; ε: of the worst device.")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "8", sys.argv[2:])
