"""The studio's app, put together from its pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from htmltools import Tag, TagList, tags
from shiny import App, Inputs, Outputs, Session, reactive, render, ui
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from dplinked.studio import (
    budget_page,
    check_page,
    files_page,
    link_page,
    plan_page,
    release_page,
    review_page,
    study_page,
)
from dplinked.studio.desk import Desk
from dplinked.studio.documentation import address, render_absence, render_page
from dplinked.studio.look import SCRIPT, STYLE, render_to, say
from dplinked.studio.path import STEPS, State, after, before, number
from dplinked.studio.room import Room
from dplinked.studio.whole import as_notebook, as_script, parts_of

_PAGES: dict[str, Any] = {
    "files": files_page,
    "link": link_page,
    "review": review_page,
    "study": study_page,
    "check": check_page,
    "plan": plan_page,
    "release": release_page,
    "budget": budget_page,
}


def build_app(desk: Desk, then: Callable[[], Any] | None = None) -> App:
    """Build the app for one desk. Who may use it is the guard's business. `then` is called whenever a page was sent to a window that is opened."""

    def layout(_: Any) -> Tag:
        return ui.page_navbar(
            *(_PAGES[step].layout() for step in STEPS),
            title=tags.span("dplinked studio", ui.input_dark_mode(id="mode"), class_="brand"),
            id="page",
            selected=desk.workspace.step or "files",
            lang="en",
            theme=ui.Theme("bootstrap"),  # Shiny's own theme would load its fonts from the internet
            header=TagList(
                tags.head(
                    tags.link(rel="icon", href="data:,"),
                    ui.include_css(STYLE),
                    ui.include_js(SCRIPT),
                    ui.busy_indicators.use(pulse=False, fade=False),
                ),
                ui.output_ui("elsewhere"),
            ),
            footer=tags.footer(
                tags.h2("The whole path outside the studio"),
                tags.p("Every step that is ready, as it stands now, to be run in this folder.", class_="hint"),
                tags.div(
                    ui.download_button("download_notebook", "Download notebook"),
                    ui.download_button("download_script", "Download shell script"),
                    class_="buttons",
                ),
                tags.p(
                    tags.a("All of the documentation", href=address("index"), target="_blank", rel="noopener"),
                    ", in a new tab. It needs no network.",
                    class_="hint",
                ),
                class_="whole",
            ),
            window_title="dplinked studio",
        )

    def server(input: Inputs, output: Outputs, session: Session) -> None:
        room = Room(desk)
        room.watch()
        session.on_ended(room.leave)
        if then is not None:
            session.on_flushed(then, once=True)
        for step in STEPS:
            _serve_step(input, room, step, reactive.calc(_PAGES[step].serve(input, room)))
        _serve_whole(room)
        _serve_window(input, room)

    app = App(layout, server)
    app.sanitize_errors = True
    app.starlette_app.routes.insert(0, Route(f"/{address('{name}')}", _show_documentation))
    return app


def _show_documentation(asked: Request) -> HTMLResponse:
    """A page of the documentation, behind the guard like all that is served."""
    found = render_page(asked.path_params["name"])
    kept = {"cache-control": "no-store"}
    return HTMLResponse(render_absence(), 404, kept) if found is None else HTMLResponse(found, 200, kept)


def _serve_step(input: Inputs, room: Room, step: str, state: Callable[[], State]) -> None:
    """Show how far a step is, and lead to those before and after it."""

    @render_to(f"mark_{step}")
    def _mark() -> TagList:
        now = state()
        return TagList(
            tags.span(now.mark, aria_hidden="true", class_=f"sign {now.kind}"),
            tags.span(f", {now.aloud}", class_="visually-hidden"),
        )

    @render_to(f"state_{step}")
    def _state() -> Tag:
        now = state()
        place = tags.span(f"Step {number(step)} of {len(STEPS)}. ", class_="place")
        return tags.p(place, tags.strong(now.says), f" {now.next}", class_=f"state {now.kind}", role="status")

    for way, to in (("back", before(step)), ("next", after(step))):
        if to is not None:
            _lead(input[f"{way}_{step}"], room, to)


def _serve_whole(room: Room) -> None:
    """Let the whole path be downloaded."""

    @render.download_button(filename="studio.ipynb", media_type="application/x-ipynb+json")
    def download_notebook() -> Iterator[str]:
        yield as_notebook(parts_of(room))

    @render.download_button(filename="studio.sh", media_type="application/x-sh")
    def download_script() -> Iterator[str]:
        yield as_script(parts_of(room))


def _lead(button: Any, room: Room, to: str) -> None:
    @reactive.effect
    @reactive.event(button)
    def _() -> None:
        room.go(to)


def _serve_window(input: Inputs, room: Room) -> None:
    """Keep the step that is shown, and let one window work at a time."""

    @reactive.effect
    @reactive.event(input.page)
    def _stay() -> None:
        room.stay(input.page())

    @reactive.effect
    def _put_aside() -> None:
        if not room.here():
            ui.modal_remove()  # what was asked here is answered nowhere

    @render.ui
    def elsewhere() -> Tag | None:
        if not room.here():
            return tags.div(
                tags.h1("The studio is open in another window"),
                tags.p("Work goes on there, so that two windows do not undo each other's changes. Nothing is lost if you go on here."),
                ui.input_action_button("take_over", "Go on in this window", class_="btn-primary"),
                class_="elsewhere", role="alertdialog", aria_label="The studio is open in another window",
            )  # fmt: skip
        fault = room.told()
        return None if fault is None else say(fault.text, "bad")

    @reactive.effect
    @reactive.event(input.take_over)
    def _take() -> None:
        room.take()
        with reactive.isolate():
            room.go(room.desk.workspace.step or "files")
