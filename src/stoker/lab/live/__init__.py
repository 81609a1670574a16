"""Show running loaders in the terminal, from stats files as they are written."""

from stoker.lab.live.letters import letters_of
from stoker.lab.live.live_view import LiveFrame, line
from stoker.lab.live.tail import Tail, is_log
from stoker.lab.live.track import Track, Tracks

__all__ = ["LiveFrame", "Tail", "Track", "Tracks", "is_log", "letters_of", "line"]
