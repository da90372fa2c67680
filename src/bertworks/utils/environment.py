"""The environment variables of this package; any other `BERTWORKS_…` variable is an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..errors import SettingsError, did_you_mean, truncate_repr

PREFIX = "BERTWORKS_"
SERVE_PREFIX = "BERTWORKS_SERVE"  # then _ and the name of an option or setting, in capitals
_X86 = ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx")
_ARM = ("neon", "neondot", "neonbf16", "neoni8mm")
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "BERTWORKS_API_KEYS": (),  # keys of `serve`, separated by commas
    "BERTWORKS_LINKER": (),  # of `build_native.py`, as the next one
    "BERTWORKS_MACHINE": ("", "x86_64", "aarch64", "none"),
    "BERTWORKS_DATA": (),  # the data of tests and benchmarks
    # 0: without native code; a name: with the kernels of that instruction set
    "BERTWORKS_NATIVE": ("", "0", "1", *_X86, *_ARM),
}
"""Each variable with its allowed values; any value if there are none.

Besides these, each option and setting of `serve` has a variable that begins with `SERVE_PREFIX`.
"""

# Kubernetes describes each service of a namespace to all containers. Those of a service `bertworks`
# are BERTWORKS_SERVICE_HOST, BERTWORKS_SERVICE_PORT_HTTP, BERTWORKS_PORT_8080_TCP_ADDR and so on.
_HOST = "_SERVICE_HOST"
_OF_SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)|_PORT(_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)?")


def check_environment(environment: Mapping[str, str], serve_variables: Iterable[str] = ()) -> None:
    """Check that this package knows each variable that is addressed to it.

    Args:
        serve_variables: the variables of `serve`.

    Raises:
        SettingsError: a variable is unknown, or has an impossible value.
    """
    known = {**VARIABLES, **dict.fromkeys(serve_variables, ())}
    services = {name.removesuffix(_HOST) for name in environment if name.endswith(_HOST)}
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX):
            continue
        if name not in known:
            if any(
                name.startswith(service) and _OF_SERVICE.fullmatch(name, len(service))
                for service in services
            ):
                continue
            raise SettingsError(
                f"the environment variable {name} is unknown",
                fix=f"{did_you_mean(name.upper(), known)}; unset this one.",
            )
        allowed = known[name]
        if allowed and environment[name] not in allowed:
            values = ", ".join(filter(None, allowed))
            raise SettingsError(
                f"the environment variable {name} is {truncate_repr(environment[name])}",
                fix=f"Allowed values: {values}.",
            )
