"""Page objects of the admin: one class per page, with the texts that are on it."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property

from django.utils import timezone


def stop_clock(page):
    """From here on the clock of this page moves only by `pass_seconds`. To be called before the page is opened.

    Otherwise a request may be under way when the clock stops, and what its answer starts then waits for ever.
    """
    now = timezone.now()
    page.clock.install(time=now - timedelta(minutes=5))  # it runs until it is stopped, and can't be put back
    page.clock.pause_at(now)


def pass_seconds(page, seconds):
    page.clock.run_for(seconds * 1000)


class Site:
    """A user of the admin. `shots`: the directory for screenshots."""

    def __init__(self, page, shots):
        self.page = page
        self.shots = shots

    @cached_property
    def dashboard(self):
        return DashboardPage(self)

    @cached_property
    def forecast(self):
        return ForecastPage(self)


class Page:
    """One page. `path`: its URL; `title`: its heading, which `open` waits for."""

    path = ""
    title = ""

    def __init__(self, site):
        self.site = site
        self.page = site.page

    def open(self, query=""):
        self.page.goto(f"{self.path}{query}")
        return self.arrived()

    def arrived(self):
        """Wait until the page is there and its scripts have run."""
        self.page.get_by_role("heading", name=self.title, exact=True, level=1).wait_for()
        self.page.wait_for_load_state("load")
        return self

    def follow(self, text):
        """Click a link in the content, not in the header or navigation."""
        self.page.locator("#content").get_by_role("link", name=text).first.click()
        return self

    def text(self):
        return self.page.locator("#content").inner_text()

    def shoot(self, name):
        """Save a screenshot of the whole page."""
        self.site.shots.mkdir(parents=True, exist_ok=True)
        (self.site.shots / f"{name}.png").write_bytes(self.page.screenshot(full_page=True))
        return self

    def overflow(self):
        """The number of pixels by which the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


class DashboardPage(Page):
    path = "/admin/delayedq/dashboard/"
    title = "Dashboard"

    def open(self, query="?span=hour"):
        return super().open(query)

    def total(self, label):
        """The number of a total, without its rate."""
        row = self.page.locator(".dq-totals div", has=self.page.get_by_text(label, exact=True))
        return row.locator("dd").inner_text().split()[0]

    def charts(self):
        """The number of charts that are drawn."""
        return self.page.locator(".dq-plot canvas").count()

    def table(self, title):
        """Unfold the table of a chart; returns the texts of its rows."""
        figure = self.page.locator("figure", has=self.page.get_by_role("heading", name=title))
        figure.get_by_text("As a table").click()
        return [row.inner_text().split("\t") for row in figure.locator("tbody tr").all()]

    def point_at(self, title):
        """Move the pointer onto the middle of a chart; returns what its legend says then."""
        figure = self.page.locator("figure", has=self.page.get_by_role("heading", name=title))
        figure.locator(".u-over").hover()
        figure.locator(".dq-time", has_text=":").wait_for()
        return figure.locator(".dq-legend").inner_text()


class ForecastPage(Page):
    path = "/admin/delayedq/dashboard/forecast/"
    title = "Forecast"

    def warnings(self):
        return [warning.inner_text() for warning in self.page.locator(".dq-stampede").all()]

    def hot(self):
        """The tooltips of the cells of the map that are not empty."""
        return [cell.get_attribute("title") for cell in self.page.locator(".dq-heat td a[title]").all()]


class MessagesPage(Page):
    path = "/admin/delayedq/message/"
    title = "Messages"

    def keys(self):
        return [cell.inner_text() for cell in self.page.locator("#result_list tbody .dq-key a").all()]

    def tick(self, *keys):
        for key in keys:
            self.page.locator("#result_list tr", has_text=key).get_by_role("checkbox").check()
        return self

    def choose(self, action):
        """Choose an action for the ticked messages; returns the confirmation."""
        self.page.locator(".dq-actions-bar").get_by_role("button", name=f"{action}…", exact=True).click()
        return Confirmation(self.site, f"{action}?").arrived()

    def said(self):
        return self.page.locator(".messagelist").inner_text()

    def undo(self):
        """Press *Undo* in the note on the last action."""
        self.page.locator(".messagelist").get_by_role("button", name="Undo").click()
        self.page.wait_for_url("**/edit/*/change/")
        return self


class HistoryPage(MessagesPage):
    path = "/admin/delayedq/finishedmessage/"
    title = "History"


class MessagePage(Page):
    def __init__(self, site, id_):
        super().__init__(site)
        self.path, self.title = f"/admin/delayedq/message/{id_}/change/", f"Message {id_}"


class EndedPage(Page):
    def __init__(self, site, id_):
        super().__init__(site)
        self.path, self.title = f"/admin/delayedq/finishedmessage/{id_}/change/", f"Message {id_}"


class EditsPage(Page):
    path = "/admin/delayedq/edit/"
    title = "Edits"


class QueuesPage(Page):
    path = "/admin/delayedq/pausedqueue/"
    title = "Queues"

    def row(self, name):
        return self.page.locator("#content tr", has=self.page.get_by_role("rowheader", name=name, exact=True))


class SchedulesPage(Page):
    path = "/admin/delayedq/cronschedule/"
    title = "Cron schedules"


class Confirmation(Page):
    def __init__(self, site, title):
        super().__init__(site)
        self.title = title

    def fill(self, **fields):
        for label, value in fields.items():
            field = self.page.get_by_label(label.capitalize().replace("_", " "), exact=False).first
            if field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        return self

    def confirm(self):
        self.page.locator(".dq-buttons .default").click()
        self.page.locator(".messagelist").wait_for()


class LoginPage(Page):
    path = "/admin/"

    def log_in(self, name, password):
        self.page.goto(self.path)
        self.page.get_by_label("Username:").fill(name)
        self.page.get_by_label("Password:").fill(password)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("heading", name="Site administration").wait_for()
