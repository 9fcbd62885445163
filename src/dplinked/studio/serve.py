"""Start the studio, for this machine only, at an address that works once."""

from __future__ import annotations

import gc
import logging
import os
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dplinked.errors import StudyError, raise_alone
from dplinked.report.page import page, paragraph, to_html
from dplinked.studio.desk import Desk
from dplinked.studio.guard import Guard

_NEEDED = ("matplotlib", "shiny", "tomlkit", "uvicorn")
_LATER = 0.3  # seconds after the first page was sent, in which a browser shows it


def run_studio(study: Path | None, *, port: int = 0, browser: bool = True, say: Callable[[str], None] = print) -> None:
    """Serve the studio until it is interrupted.

    Parameters
    ----------
    study
        The study file to open. The studio works in its folder; without a study file, in the current folder.
    port
        The port on 127.0.0.1; 0 takes any free one.
    browser
        Whether to open the address in the user's browser.
    say
        Function that is called with the address, to show it to the user.
    """
    if any(find_spec(name) is None for name in _NEEDED):
        raise StudyError("The studio needs Shiny: pip install 'dplinked[studio]'.")
    desk, listening = Desk.open(study), _listen(port)
    guard = Guard(listening.getsockname()[1])
    opened = " Your browser should open it now; if it does not, open it yourself." if browser else ""
    say(f"The studio runs at\n\n    {guard.address}\n\nThe address works once.{opened} Stop the studio with Ctrl-C.")
    opening = threading.Thread(target=_open_browser, args=(guard,), daemon=True)
    if browser:  # this takes a while, so the rest is loaded meanwhile
        opening.start()
    gc.disable()  # what is loaded now stays until the end, so that looking through it is lost time
    import uvicorn

    from dplinked.studio.app import build_app

    gc.freeze()
    gc.enable()
    guard.app = build_app(desk, then=_warm_up)
    settings = uvicorn.Config(
        guard,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_per_message_deflate=False,  # to this machine, nothing has to be made small
        timeout_graceful_shutdown=2,
    )
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of browsers that are gone
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is to be known stands on the pages
            uvicorn.Server(settings).run([listening])
    except KeyboardInterrupt:  # the way to stop the studio; a running release is finished first
        say("Stopped.")
    finally:
        listening.close()
        guard.entered.set()  # the redirecting page, if it is still there, is of no more use
        if browser:
            opening.join(1.0)


def _listen(port: int) -> socket.socket:
    """Open a socket that accepts connections at once, so that the address works as soon as it is shown."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # reuse a port that was just closed; on other systems this option would share a port in use
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
    except (OSError, OverflowError):
        listening.close()
        raise_alone(StudyError(f"Port {port} cannot be used. Choose another one, or 0 for any that is free."))
    return listening


@cache
def _warm_up() -> None:
    """Load what the first check and the first picture need, once the first page is there: before, it would be late for that."""
    soon = threading.Timer(_LATER, _load)
    soon.daemon = True
    soon.start()


def _load() -> None:
    import formulaic  # noqa: F401
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.style  # noqa: F401
    import scipy.special  # noqa: F401
    import tomlkit  # noqa: F401

    gc.freeze()


def _open_browser(guard: Guard) -> None:
    """Open the studio in the user's browser by a page that leads to its address, and remove that page when it was used.

    Command lines can be read by all users of a machine, so the browser's must not hold the address. The page is for its owner's eyes.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="dplinked-", ignore_cleanup_errors=True) as folder:  # a folder of mode 0700
        webbrowser.open(write_redirect(Path(folder), guard.address).as_uri())
        guard.entered.wait()


def write_redirect(folder: Path, address: str) -> Path:
    """Write a page that leads to an address and that nobody but its owner can read. Returns its path."""
    path, shown = folder / "studio.html", to_html(address)
    lead = f'<meta http-equiv="refresh" content="0; url={shown}">\n{paragraph("Opening …")}\n<p><a href="{shown}">Open the studio</a></p>'
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(page("dplinked studio", lead))
    return path
