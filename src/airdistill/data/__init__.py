"""Datasets as arrays, and their partition among devices."""

from airdistill.data.datasets import Dataset, load_dataset, load_train_labels
from airdistill.data.partition import Partition, assign_samples, class_counts

__all__ = ["Dataset", "Partition", "assign_samples", "class_counts", "load_dataset", "load_train_labels"]
