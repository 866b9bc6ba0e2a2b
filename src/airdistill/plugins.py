"""Load a user's own objects (schemes, models, front-ends) by a reference such as `package.module:name`.

References are stored in scenarios and run folders. References to modules of AirDistill that have moved since they were
written still work.

>>> load_object("math:tau", "learning.model")
6.283185307179586
>>> load_object("airdistill.air.loopback:FrontEnd", "radio").__module__
'airdistill.radio.loopback'
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from airdistill.errors import InputError, described

# Modules of version 0.1 with objects that a stored reference may name, and where these objects are now.
_MOVED = {
    "airdistill.air.loopback": "airdistill.radio.loopback",
    "airdistill.schemes.airdistill": "airdistill.schemes.distillation",
    "airdistill.schemes.airdistill_proxy": "airdistill.schemes.public_set",
    "airdistill.schemes.fd_error_free": "airdistill.schemes.distillation",
    "airdistill.schemes.fedavg": "airdistill.schemes.federated",
    "airdistill.schemes.fedsgd": "airdistill.schemes.federated",
    "airdistill.schemes.local_only": "airdistill.schemes.distillation",
    "airdistill.schemes.orthogonal_fd": "airdistill.schemes.distillation",
    "airdistill.schemes.ota_fd": "airdistill.schemes.distillation",
    "airdistill.schemes.ota_fd_antennas": "airdistill.schemes.distillation",
    "airdistill.schemes.ota_fd_fixed": "airdistill.schemes.distillation",
    "airdistill.schemes.ota_fl": "airdistill.schemes.federated",
    "airdistill.schemes.ota_fl_fixed": "airdistill.schemes.federated",
    "airdistill.schemes.ota_fl_sampled": "airdistill.schemes.federated",
    "airdistill.schemes.ota_proxy_fd": "airdistill.schemes.public_set",
    "airdistill.schemes.proxy_fd": "airdistill.schemes.public_set",
    "airdistill.schemes.selective_fd": "airdistill.schemes.public_set",
}


def load_object(reference: str, field: str) -> Any:
    """Return the object that `package.module:name` refers to; errors name `field`.

    Modules in the working directory are found as well.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise InputError(field, reference, "must have the form package.module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module_name = _MOVED.get(module_name, module_name)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module can raise any exception
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name.split(".")[0]
        way_out = "; run the command in its folder, or put that on PYTHONPATH" if absent else ""
        raise InputError(field, reference, f"cannot be imported: {described(error)}{way_out}") from error
    if not hasattr(module, name):
        way_out = ": name the file of the class instead, as in mine:Class" if module_name == "__main__" else ""
        raise InputError(field, reference, f"{module_name} has no {name}{way_out}")
    return getattr(module, name)
