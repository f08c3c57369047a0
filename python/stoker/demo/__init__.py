"""The demonstration: a data set made from real photographs, a storage server to hold it, and the ladder over both."""

from __future__ import annotations

from stoker.demo.dataset import DEFAULT_SEED, Dataset, make_dataset
from stoker.demo.photos import PhotosNotFoundError, find_testdata

__all__ = ["DEFAULT_SEED", "Dataset", "PhotosNotFoundError", "find_testdata", "make_dataset"]
