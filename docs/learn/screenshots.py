"""Take the screenshots of the explorer again: `python docs/learn/screenshots.py`.

`mini` is served meanwhile. Needs Chromium, Playwright and Pillow.
"""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from drawing import browser
from PIL import Image

IMAGES = Path(__file__).parents[1] / "images"
YORK = "text=He was born in New York in January 1950.&words=5"
SECOND = "text=It is the second largest city in the country.&words=3"
MAN = "text=The old man walked along the river.&words=2"
# Name, view with what it shows, width, height, scale, colours.
SCREENSHOTS = (
    ("fill", f"fill?{SECOND}", 1200, 760, 1.0, "light"),
    ("layer", f"layer?{SECOND}", 1200, 1400, 1.0, "light"),
    ("attention", f"attention?{MAN}", 1200, 1000, 1.0, "light"),
    ("words", f"occlusion?{YORK}", 1200, 760, 1.0, "dark"),
    ("phone", f"next?{SECOND}", 360, 740, 1.5, "dark"),
)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers.

    Raises:
        SystemExit: it has ended.
    """
    while server.poll() is None:
        try:
            urlopen(url).close()
            return
        except URLError:
            time.sleep(0.5)
    raise SystemExit("the server has ended")


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "bertworks", "serve", "mini", "--port", str(port)]
    with browser() as chromium, subprocess.Popen(command) as server:
        try:
            wait_for(url, server)
            for name, view, width, height, scale, colours in SCREENSHOTS:
                page = chromium.new_page(
                    viewport={"width": width, "height": height},
                    device_scale_factor=scale,
                    color_scheme=colours,
                    reduced_motion="reduce",
                )
                page.goto(f"{url}#/{view}")
                page.wait_for_selector("main h1")
                page.wait_for_selector('main:not([aria-busy="true"])')
                shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                shot.quantize(64).save(IMAGES / f"explorer-{name}.png", optimize=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
