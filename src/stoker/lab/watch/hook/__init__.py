"""What a doctor puts into the processes that it watches: it times, counts and looks, and changes nothing.

It may have to work in an environment in which Stoker is not installed, so nothing here needs more than the standard
library and `stoker.foundation.machine`; what it has to do with torch, it takes from the torch that is there.
"""

from __future__ import annotations
