"""Take the explorer's pictures again: `python docs/explorer_pictures.py`.

`bertworks serve mini` runs meanwhile. Needs Playwright, Pillow and Chromium (`CHROMIUM` says where,
if it is not on the path).
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
YORK = "text=He was born in New York in January 1950.&words=5"
MAN = "text=The old man walked along the river.&words=2"
# Name, view, what it shows, width, height, pixels each, colours.
PICTURES = (
    ("fill", "fill", YORK, 1200, 760, 1.0, "light"),
    ("attention", "attention", MAN, 1200, 1000, 1.0, "light"),
    ("words", "occlusion", YORK, 1200, 760, 1.0, "dark"),
    ("phone", "next", YORK, 360, 740, 1.5, "dark"),
)


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bertworks", "serve", "mini", "--port", str(port)]
    server = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(120):
            try:
                urlopen(url).close()
                break
            except URLError:
                time.sleep(0.5)
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, view, given, width, height, scale, colours in PICTURES:
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    device_scale_factor=scale,
                    color_scheme=colours,
                    reduced_motion="reduce",
                )
                page.goto(f"{url}#/{view}?{given}")
                page.wait_for_selector("main h1")
                page.wait_for_selector('main:not([aria-busy="true"])')
                shot = Image.open(io.BytesIO(page.screenshot()))
                file = IMAGES / f"explorer-{name}.png"
                shot.convert("RGB").quantize(64).save(file, optimize=True)
                print(file, shot.size, f"{file.stat().st_size // 1000} kB")
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
