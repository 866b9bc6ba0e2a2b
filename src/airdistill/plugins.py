"""Load a user's own objects (schemes, models, front-ends) by a reference such as `package.module:name`.

References are stored in scenarios and run folders. References to modules of AirDistill that have moved since they were
written still work.

>>> load_object("math:tau", "learning.model")
6.283185307179586
>>> load_object("airdistill.air.loopback:FrontEnd", "radio").__module__
'airdistill.radio.loopback'
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
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
        if module_name.endswith(".py"):
            way_out = f"; name the module without .py: {module_name.removesuffix('.py')}:{name}"
        raise InputError(field, reference, f"cannot be imported: {described(error)}{way_out}") from error
    if not hasattr(module, name):
        alike = difflib.get_close_matches(name, [known for known in vars(module) if known[0] != "_"], 1)
        way_out = f"; did you mean {module_name}:{alike[0]}?" if alike else ""
        if module_name == "__main__":
            way_out = ": name the file of the class instead, as in mine:Class"
        raise InputError(field, reference, f"{module_name} has no {name}{way_out}")
    return getattr(module, name)


def source_digests(names: Iterable[str]) -> dict[str, str | None]:
    """The digests of the files of these modules and of the user's own modules that they import, by module.

    None stands for a module without a file, as in an interactive session: whether it has changed cannot be known. What
    a function imports when it is called is not followed, nor is what code reads from other files, nor an edit that a
    process made after it had imported the module.
    """
    found: dict[str, str | None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if module is None or name in found or name.split(".")[0] == "airdistill":
            continue
        file = getattr(module, "__file__", None)
        found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None
        waiting += [each for each in _imported(module) if _is_users(each, name)]
    return dict(sorted(found.items()))


def _imported(module: ModuleType) -> set[str]:
    """The modules of which a module has anything at its top level."""
    names = set()
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            names.add(value.__name__)
        else:  # of an object its class, because its own attributes may run any code
            named = value if isinstance(value, type | FunctionType) else type(value)
            names.add(str(named.__module__))
    return names


def _is_users(name: str, by: str) -> bool:
    """Whether a module that another one imports is the user's own: of the same package, or not an installed one."""
    if name.split(".")[0] == by.split(".")[0]:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    installed = [Path(folder).resolve() for folder in set(sysconfig.get_paths().values())]
    return file is not None and not any(Path(file).resolve().is_relative_to(folder) for folder in installed)
