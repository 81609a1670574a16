"""A real browser for tests: pages opened from disk, asked and looked at through the browser's own pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
PATIENCE_SECONDS = 60.0
"""How long an answer of the browser may take, before the test fails: machines may be busy."""


def program() -> str:
    """Return where the browser is; skip the test where there is none, but not where everything has to be tested."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    what = f"no browser on the PATH ({', '.join(PROGRAMS)}): the report is not opened"
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@dataclass
class Page:
    """A page that is open in the browser, and what it has reported since it was opened."""

    _browser: Browser
    _session: str
    requests: list[str] = field(default_factory=list)
    """What was asked for, next to the page itself."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings in the console, and exceptions that nobody caught."""

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command of the browser's protocol and return the answer."""
        return self._browser.call(method, parameters, session=self._session)

    def js(self, expression: str) -> Any:
        """Return what an expression is in the page, as a plain value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """Write an image of the page, or of the part that is visible without scrolling."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def key(self, key: str) -> None:
        """Press a key, in whatever has the focus."""
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Escape": 27, "Tab": 9, "Enter": 13}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move the mouse, press or release its button, or turn its wheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


class Browser:
    """A browser without a window. Leaving the block ends all its processes."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self._process, self._reading, self._writing = process, reading, writing
        self._number = 0
        self._rest = b""
        self._pages: dict[str, Page] = {}
        self._seen: list[tuple[str | None, str]] = []

    def call(self, method: str, parameters: dict[str, Any] | None = None, *, session: str | None = None) -> Any:
        """Send a command and return the answer, after noting what else was reported before it."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait(self, event: str, session: str) -> None:
        """Wait until a page reports an event."""
        while (session, event) not in self._seen:
            self._note(self._next())

    @contextmanager
    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> Iterator[Page]:
        """Open a file in a page of its own, without a network, and yield it once it is loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.call(f"{domain}.enable")
            conditions = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
            page.call("Network.emulateNetworkConditions", **conditions)
            page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=width < 600,
            )
            wanted = [
                {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                {"name": "prefers-reduced-motion", "value": "reduce"},  # what is scrolled to is there at once
            ]
            page.call("Emulation.setEmulatedMedia", features=wanted)
            page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
            page.requests.clear()
            self._seen.clear()
            page.call("Page.navigate", url=path.as_uri())
            self.wait("Page.loadEventFired", session)
            yield page
        finally:
            del self._pages[session]
            self.call("Target.closeTarget", {"targetId": target})

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select([self._reading], [], [], PATIENCE_SECONDS)[0]:
                pytest.fail(f"the browser has not answered for {PATIENCE_SECONDS:.0f} s")
            part = os.read(self._reading, 1 << 20)
            if not part:
                pytest.fail(f"the browser has ended by itself, with code {self._process.wait()}")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, answer: dict[str, Any]) -> None:
        method, about, session = answer.get("method", ""), answer.get("params", {}), answer.get("sessionId")
        self._seen.append((session, method))
        page = self._pages.get(session) if session is not None else None
        if page is None:
            return
        if method == "Network.requestWillBeSent":
            page.requests.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            page.complaints.append(str(about["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            page.complaints.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            page.complaints.append(str(about["entry"]))


_STARTING = """
import os, sys
ends = [os.dup(int(end)) for end in sys.argv[1:3]]
for place, end in zip((3, 4), [os.dup2(end, 100 + end) for end in ends]):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads from descriptor 3 and writes to 4: whatever else may be there now goes elsewhere first."""


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser whose profile lies in `folder`, which is the caller's to remove."""
    where = program()
    to_it, from_us = os.pipe()
    from_it, to_us = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTING, str(to_it), str(to_us), where, *FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(to_it, to_us),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # one group, which can be ended as a whole
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(to_it)
    os.close(to_us)
    try:
        one = Browser(process, from_it, from_us)
        one.call("Browser.getVersion")  # it is there, and no longer one program starting another
        yield one
    finally:
        os.close(from_us)
        os.close(from_it)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
