"""Small scenarios for federations on a public set."""

from small_worlds import small_scenario, write_dataset

from airdistill.scenario.loading import changed

CLASSES, WIDTH, PUBLIC_SAMPLES = 4, 8, 40


def public_scenario(folder, *changes, groups=True):
    """Three devices, one with another model, that hold two of four blobs each; 40 of 80 test samples are public."""
    path = folder / "skewed.npz"
    if not path.exists():
        write_dataset(path, num_classes=CLASSES, features=(WIDTH,), num_train=90, num_test=80)
    scenario = small_scenario(
        folder, f"data.dataset={path}", "data.partition=shards", "data.classes_per_device=2",
        f"public.samples={PUBLIC_SAMPLES}", "public.distill_epochs=2", "learning.local_epochs=1",
        "learning.initial_lr=0.05", "radio.noise_power=1e-16", "privacy.epsilon=50", "learning.rounds=1", *changes,
    )  # fmt: skip
    both = [{"count": 2, "model": "softmax_regression"}, {"count": 1, "model": "mlp"}]
    return changed(scenario, {"fleet": {"groups": both}, "public": {"server_model": "mlp"}}) if groups else scenario
