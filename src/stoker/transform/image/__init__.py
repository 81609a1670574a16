"""Pictures: decoded no further than needed, cut, resized, changed in colour; the same for every engine."""
