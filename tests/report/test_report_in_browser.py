"""The page in a real browser: it asks for nothing, complains about nothing, and does what its buttons say."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from written_runs import HOSTILE

from qemrl.report.content import gather
from qemrl.report.page import make_page

pytestmark = pytest.mark.browser

# A browser of a test needs no sandbox, and is to fetch nothing on its own account.
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1180, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("there is no Chromium to look at the page with; `make test` installs it, or: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(SWITCHES))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(campaign, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(make_page(gather(campaign, agents=False, seed=0, tick=lambda _: None)), encoding="utf-8")
    return path


class Opened:
    """The page in a tab, with all that it asked for and complained about."""

    def __init__(self, browser: Browser, file: Path, size: dict[str, int], scheme: str = "light") -> None:
        self.page: Page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def paths(self, arm: int) -> list[str]:
        """The lines of an algorithm in all charts."""
        found = self.page.locator(f"#curves path.mean[data-arm='{arm}']")
        return [path.get_attribute("d") or "" for path in found.all()]


@pytest.fixture(scope="module")
def desktop(browser, file) -> Opened:
    return Opened(browser, file, DESKTOP)


@pytest.fixture(autouse=True)
def _as_it_opens(desktop):
    desktop.page.reload()
    yield
    assert not desktop.complaints
    desktop.page.mouse.move(0, 0)


def test_nothing_is_asked_for_but_the_file_and_nothing_is_complained_about(desktop, file):
    desktop.page.wait_for_load_state("networkidle")
    assert set(desktop.requests) == {file.as_uri()}
    assert not desktop.complaints
    assert desktop.page.locator("#curves svg").count() > 2


def test_a_click_on_an_algorithm_takes_it_out_of_all_charts_and_puts_it_in_again(desktop):
    before = desktop.paths(arm=1)
    assert len(before) == 2  # a line for each of two tasks
    button = desktop.page.locator("#curves button.arm[data-arm='1']")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert desktop.paths(arm=1) == []
    assert len(desktop.paths(arm=2)) == 2
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert desktop.paths(arm=1) == before


def test_with_all_algorithms_out_the_charts_say_so(desktop):
    for button in desktop.page.locator("#curves button.arm").all():
        button.click()
    assert desktop.page.locator("#curves .plot").first.inner_text() == "no algorithm is selected"


@pytest.mark.parametrize("name", ["log-steps", "log-returns"])
def test_a_switch_changes_the_axis_and_changes_it_back(desktop, name):
    linear, ticks = desktop.paths(arm=1), desktop.page.locator("#curves .plot text").all_text_contents()
    button = desktop.page.locator(f"button[data-switch='{name}']")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert all(one != other for one, other in zip(linear, desktop.paths(arm=1), strict=True))
    assert desktop.page.locator("#curves .plot text").all_text_contents() != ticks
    assert "NaN" not in "".join(desktop.paths(arm=1))
    button.click()
    assert desktop.paths(arm=1) == linear


def test_single_seeds_can_be_hidden(desktop):
    seeds = desktop.page.locator("#curves path.seed")
    assert seeds.count() == 19  # three algorithms on two tasks with three seeds, and one that is not finished
    desktop.page.locator("button[data-switch='seeds']").click()
    assert seeds.count() == 0


def test_pointing_at_a_chart_shows_the_step_and_every_mean_with_its_interval(desktop):
    plot = desktop.page.locator("#curves .plot").nth(1)  # probe/2, whose means end at 20, 40 and 60
    box = plot.bounding_box()
    assert box is not None
    tip = plot.locator(".tip")
    assert not tip.is_visible()
    desktop.page.mouse.move(box["x"] + box["width"] - 25, box["y"] + box["height"] / 2)
    assert tip.is_visible()
    assert tip.inner_text().startswith("step 4,000")
    assert "qr-dqn 20.00 [−4.84, 44.84]" in tip.inner_text()
    assert "iqn 60.00 [" in tip.inner_text()
    desktop.page.mouse.move(0, 0)
    assert not tip.is_visible()


def test_arrow_keys_move_through_the_evaluations(desktop):
    plot = desktop.page.locator("#curves .plot").first
    plot.focus()
    for _ in range(2):
        plot.press("ArrowRight")
    assert plot.locator(".tip").inner_text().startswith("step 2,000")
    plot.press("ArrowLeft")
    assert plot.locator(".tip").inner_text().startswith("step 1,000")
    plot.press("Escape")
    assert not plot.locator(".tip").is_visible()


def test_the_baseline_of_differences_can_be_chosen(desktop):
    shown = desktop.page.locator("[data-baseline]:visible caption")
    rows = desktop.page.locator("[data-baseline]:visible tbody th")
    assert shown.all_inner_texts() == ["Minus the one before it that is nearest in settings"]
    texts = [text.strip() for text in rows.all_inner_texts()]
    assert texts[1:] == ["qr-dqn+wide − qr-dqn", f"iqn − {HOSTILE}"]  # a DQN, which has the fewest settings
    desktop.page.select_option("#baseline", label="iqn")
    assert shown.all_inner_texts() == ["Minus iqn"]


def test_hostile_names_are_shown_as_text_and_run_nothing(desktop):
    assert desktop.page.locator("img").count() == 0
    names = desktop.page.locator("#curves button.arm").all_inner_texts()
    assert any("onerror=alert(1)" in name for name in names)
    texts = desktop.page.evaluate("JSON.parse(document.getElementById('data').textContent).arms.map((arm) => arm.name)")
    assert HOSTILE in texts
    # Even markup that got into the page could not run.
    desktop.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img id=planted src=data: onerror=\"window.ran = 1\">')"
    )
    desktop.page.wait_for_timeout(100)
    assert desktop.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in complaint for complaint in desktop.complaints)
    desktop.complaints.clear()


def test_a_phone_shows_the_page_without_scrolling_sideways(browser, file):
    phone = Opened(browser, file, PHONE)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for box in phone.page.locator(".box, .plot, button").all():
        place = box.bounding_box()
        assert place is None or place["x"] + place["width"] <= PHONE["width"]
    assert not phone.complaints
    phone.page.close()


def test_text_is_readable_in_light_and_in_dark(browser, file):
    contrast = """() => {
      const light = (text) => {
        const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const paper = light(getComputedStyle(document.body).backgroundColor);
      return [...document.querySelectorAll("p, dt, a, th, .ci, .higher, .lower, .plot text")].map((element) => {
        const style = getComputedStyle(element);
        const ink = light(element.closest("svg") ? style.fill : style.color);
        return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      });
    }"""
    papers = []
    for scheme in ("light", "dark"):
        opened = Opened(browser, file, DESKTOP, scheme)
        papers.append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert min(opened.page.evaluate(contrast)) >= 4.5, scheme
        opened.page.close()
    assert papers == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]
