"""Values as JSON can carry them: lists for arrays, null for infinite."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def jsonable(value: Any, nan_is_null: bool = False) -> Any:
    """The same with plain lists and numbers. NaN is an error unless it, too, has a meaning where it stands."""
    if isinstance(value, dict):
        return {key: jsonable(entry, nan_is_null) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist(), nan_is_null)
    if isinstance(value, (list, tuple)):
        return [jsonable(entry, nan_is_null) for entry in value]
    if isinstance(value, np.generic):
        return jsonable(value.item(), nan_is_null)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value) and not nan_is_null:
            raise ValueError("a value is no number")
        return None
    return value


def json_text(value: Any) -> str:
    """Indented, for files that people may read."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
