"""Things of the user's own, named as `package.module:name`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from airdistill.errors import InputError


def load_object(reference: str, field: str) -> Any:
    """What `package.module:name` names; modules beside the working directory count. `field` is for the error."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise InputError(field, reference, "must read package.module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's own code can fail in any way
        raise InputError(field, reference, f"cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise InputError(field, reference, f"{module_name} has no {name}")
    return getattr(module, name)
