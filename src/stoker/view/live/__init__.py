"""Show running loaders in the terminal, from stats files as they are written."""

from stoker.view.live.letters import letters_of
from stoker.view.live.tail import Tail, is_log
from stoker.view.live.terminal import frame, line
from stoker.view.live.track import Track, Tracks

__all__ = ["Tail", "Track", "Tracks", "frame", "is_log", "letters_of", "line"]
