"""Loaders while they run, in the terminal: lines of stats that are being written, drawn as they come."""

from stoker.view.live.letters import letters_of
from stoker.view.live.tail import Tail, is_log
from stoker.view.live.terminal import frame, line
from stoker.view.live.track import Track, Tracks

__all__ = ["Tail", "Track", "Tracks", "frame", "is_log", "letters_of", "line"]
