"""The build hook: compiles the native helpers if there is a compiler, and does without them otherwise."""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/stoker/native")


class NativeHelpers(BuildHookInterface[Any]):
    """Puts the libraries beside their sources, and from there into the wheel, which is then for such machines."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, before files are collected."""
        if os.environ.get("STOKER_NATIVE") == "0":
            return
        # by its path: what is being built cannot be imported yet
        building = runpy.run_path(str(Path(self.root) / NATIVE / "building.py"))
        try:
            libraries: list[Path] = [building["build"]()]
        except building["NotBuilt"] as reason:
            self.app.display_warning(f"without native helpers, NumPy does the same slower: {reason}")
            return
        try:
            libraries.append(building["build_jpeg"]())
        except building["NotBuilt"] as reason:
            why = building["first_fault"](reason)
            self.app.display_info(f"without the native JPEG decoder, other decoders do, slower: {why}")
        if version == "editable":  # used from where they lie
            return
        for library in libraries:
            build_data["force_include"][str(library)] = f"stoker/native/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
