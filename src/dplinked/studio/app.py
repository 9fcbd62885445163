"""The studio's app, put together from its pages."""

from __future__ import annotations

from htmltools import tags
from shiny import App, Inputs, Outputs, Session, reactive, ui

from dplinked.studio import budget_page, check_page, plan_page, release_page, study_page
from dplinked.studio.desk import Desk, Job
from dplinked.studio.look import STYLE

_POLL = 0.2  # seconds between two looks at a running release


def build_app(desk: Desk) -> App:
    """Build the app for one desk. Who may use it is the guard's business."""
    pages = [study_page, check_page, plan_page, release_page, budget_page]
    layout = ui.page_navbar(
        *(page.layout() for page in pages),
        title=tags.span("dplinked studio", ui.input_dark_mode(id="mode"), class_="brand"),
        id="page",
        lang="en",
        theme=ui.Theme("bootstrap"),  # Shiny's own theme would load its fonts from the internet
        header=tags.head(
            tags.link(rel="icon", href="data:,"), ui.include_css(STYLE), ui.busy_indicators.use(pulse=False, fade=False)
        ),
        window_title="dplinked studio",
    )

    def server(input: Inputs, output: Outputs, session: Session) -> None:
        job = reactive.value[Job | None](desk.job)
        room = study_page.serve(input, desk)
        check_page.serve(input, room)
        plan_page.serve(input, room)
        release_page.serve(input, desk, room, job)
        budget_page.serve(input, room, job)

        @reactive.effect
        def _follow() -> None:
            """Follow a running release, also one that another window started."""
            input.page(), job()
            job.set(desk.job)
            if desk.job is not None and desk.job.running:
                reactive.invalidate_later(_POLL)

    app = App(layout, server)
    app.sanitize_errors = True
    return app
