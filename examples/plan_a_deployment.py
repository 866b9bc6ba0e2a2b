"""Plan a deployment: how many sensors does a whole-device guarantee need before the knowledge is worth sharing?

Run it with `python examples/plan_a_deployment.py`. It needs no data: the counts of every device are declared.
"""

import airdistill as ad

CLASSES, SAMPLES_PER_CLASS = 10, 30


def plan_for(num_devices: int) -> ad.Plan:
    counts = [[SAMPLES_PER_CLASS] * CLASSES] * num_devices
    return ad.plan(
        ad.load(
            "device-level",
            [
                f"fleet.devices={num_devices}",
                f"data.class_counts={counts}",
                'radio.distance=["50 m", "300 m"]',
                "learning.rounds=50",
            ],
        )
    )


def main() -> None:
    print(f"{'devices':>8} {'squared error of the knowledge':>32} {'what binds':>12} {'uplink':>10} {'energy':>10}")
    for num_devices in (20, 50, 100, 200, 400):
        plan = plan_for(num_devices)
        print(
            f"{num_devices:>8} {plan.forecast.effective_noise:>32.3g} {plan.forecast.regime:>12} "
            f"{plan.uplink_seconds * 1e3:>7.1f} ms {plan.uplink_joules * 1e3:>7.2f} mJ"
        )


if __name__ == "__main__":
    main()
