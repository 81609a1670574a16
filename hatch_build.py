"""Build hook: compile the native helpers if there is a compiler; otherwise build a wheel without them."""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/stoker/native")


class NativeHelpers(BuildHookInterface[Any]):
    """Builds the libraries next to their sources and includes them in the wheel, which is then platform-specific."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the libraries before files are collected."""
        if os.environ.get("STOKER_NATIVE") == "0":
            return
        # by its path: the package cannot be imported while it is being built
        building = runpy.run_path(str(Path(self.root) / NATIVE / "building.py"))
        try:
            libraries: list[Path] = [building["build"]()]
        except building["NotBuilt"] as reason:
            self.app.display_warning(f"native helpers not built, NumPy does the same more slowly: {reason}")
            return
        try:
            libraries.append(building["build_jpeg"]())
        except building["NotBuilt"] as reason:
            why = building["first_fault"](reason)
            self.app.display_info(f"native JPEG decoder not built, other decoders are slower: {why}")
        if version == "editable":  # used in place
            return
        for library in libraries:
            build_data["force_include"][str(library)] = f"stoker/native/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
