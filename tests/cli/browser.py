"""A headless Chromium, driven over a pipe by its debugging protocol; nothing listens on a port."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find_browser():
    """Path of a browser, or None. A snap cannot read files of /tmp, so it does not count."""
    for name in NAMES:
        path = shutil.which(name)
        if path and "/snap/" not in os.path.realpath(path):
            return path
    return None


class Browser:
    """One page. Errors and warnings that it prints on its console are in `complaints`."""

    def __init__(self, path, time_limit_s):
        self.time_limit_s = time_limit_s
        self.complaints = []
        self.profile = tempfile.mkdtemp(prefix="attnbench-browser-")
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()

        def take_pipes():  # the protocol is spoken on file descriptors 3 and 4
            ends = [os.dup(to_browser), os.dup(from_browser)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=take_pipes,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.last_id = 0
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        os.close(self.output)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.input], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self.input, 1 << 20)
            if not chunk:
                raise ConnectionError("the browser ended")
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def note(self, message):
        """Keeps what the page complained of and what it requested from the network."""
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(str([arg.get("value") for arg in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "about:", "data:")):
                self.complaints.append(f"asked the network for {url}")

    def call(self, method, **params):
        self.last_id += 1
        request = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.output, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + self.time_limit_s
        while True:
            message = self.receive(deadline)
            if message.get("id") != self.last_id:
                self.note(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            else:
                return message.get("result", {})

    def run(self, expression):
        """The value of a JavaScript expression (a promise is waited for)."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True, userGesture=True)  # fmt: skip
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def open(self, path):
        """Opens a file and waits until its script is through."""
        self.complaints.clear()
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}")
        self.wait_for("document.documentElement?.dataset.ready !== undefined")

    def wait_for(self, condition):
        deadline = time.monotonic() + self.time_limit_s
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline or self.complaints:
                raise TimeoutError(f"never: {condition}; the page says {self.complaints}")
            time.sleep(0.02)

    def wait_for_complaints(self, count):
        deadline = time.monotonic() + self.time_limit_s
        while len(self.complaints) < count and time.monotonic() < deadline:
            self.run("0")  # what the page says comes before the answer
            time.sleep(0.02)

    def press(self, key):
        code = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "Escape": 27}.get(key, 0)
        extra = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, **(extra if kind == "keyDown" else {}))  # fmt: skip

    def resize(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=mobile)  # fmt: skip
